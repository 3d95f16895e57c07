#pragma once
// Paged key/value memory of one rank. A page holds kv_page_tokens positions in all layers. Pages
// are counted, promised before they are needed, shared by reference, and never moved. A free page
// keeps its memory while the capacity has room for it; what a smaller capacity leaves over goes
// back to the operating system at once.
#include "gpu/engine.hpp"
#include "gpu/kernels.hpp"
#include "gpu/mapped_memory.hpp"

#include <array>
#include <cassert>
#include <map>
#include <optional>
#include <vector>

namespace adafloor {

/// A page: [layer][kv head]{keys [head_dim][16], values [16][padded head_dim]}.
struct kv_layout {
  std::size_t layers = 0, kv_heads = 0, head_dim = 0;
  kv_dtype type = kv_dtype::float32; ///< of a key or value
  std::size_t plain_floats = 0;      ///< not 0: a page is so many floats without inner order
  std::size_t padded_head_dim() const { return round_up_lanes(head_dim); }
  std::size_t block_values() const { return kv_page_tokens * (head_dim + padded_head_dim()); }
  std::size_t value_bytes() const {
    return type == kv_dtype::bfloat16 ? sizeof(std::uint16_t) : sizeof(float);
  }
  /// Of a page, as it travels.
  std::size_t page_bytes() const {
    return plain_floats > 0 ? plain_floats * sizeof(float)
                            : layers * kv_heads * block_values() * value_bytes();
  }
};

using page_index = std::uint32_t;
using page_tokens = std::array<token_id, kv_page_tokens>;

/// Thread: the engine's. Invariant: used + promised <= capacity.
class kv_pool {
public:
  kv_pool(kv_layout layout, std::uint32_t capacity);

  const kv_layout& layout() const { return layout_; }
  kv_usage usage() const { return usage_; }
  /// Memory of one page, in whole pages of the system.
  std::uint64_t page_bytes() const { return stride_ * sizeof(float); }
  /// Pages with memory behind them: used, or free and ready. At most the capacity.
  std::uint32_t resident_pages() const {
    return usage_.used + static_cast<std::uint32_t>(free_.size());
  }

  /// Errors: refused when more than `pages` are used or promised; bad_input when 0.
  result<void> set_capacity(std::uint32_t pages);

  /// Sets pages aside; false when fewer are available.
  bool promise(std::uint32_t pages);
  /// Gives unused promises back.
  void withdraw(std::uint32_t pages);
  /// A page with one reference, out of a promise made before.
  page_index take_promised();
  /// A page with one reference that nobody was promised, or nothing.
  std::optional<page_index> take_available();
  void retain(page_index page);
  /// Drops a reference; at zero the page is free and no longer shared.
  void release(page_index page);
  std::uint32_t references(page_index page) const { return pages_[page].references; }

  /// K: float, or the 16 bits of a bfloat16, as the layout's type says.
  template <class K>
  K* block(page_index page, std::size_t layer, std::size_t kv_head) {
    assert(sizeof(K) == layout_.value_bytes());
    return reinterpret_cast<K*>(pages_[page].floats)
           + (layer * layout_.kv_heads + kv_head) * layout_.block_values();
  }
  float* data(page_index page) { return pages_[page].floats; }
  const float* data(page_index page) const { return pages_[page].floats; }

  /// A full page that follows `parent` (nothing: it is the first) and holds these tokens.
  std::optional<page_index> find_shared(std::optional<page_index> parent,
                                        const page_tokens& tokens) const;
  /// Makes a full page findable until it is free. The first of equal pages stays.
  void publish(std::optional<page_index> parent, const page_tokens& tokens, page_index page);

private:
  using share_key = std::pair<std::int64_t, page_tokens>;
  static share_key key_of(std::optional<page_index> parent, const page_tokens& tokens);

  struct page_record {
    float* floats = nullptr; ///< in its segment
    std::uint32_t references = 0;
    std::optional<share_key> key;
  };

  page_index take();
  void add_segment();
  void discard(page_index page);

  static constexpr std::uint32_t segment_pages = 64;
  kv_layout layout_;
  std::size_t stride_; ///< floats from page to page
  kv_usage usage_;
  std::vector<mapped_floats> segments_; ///< addresses of segment_pages pages each
  std::vector<page_record> pages_;
  std::vector<page_index> free_;  ///< with memory
  std::vector<page_index> empty_; ///< without memory
  std::map<share_key, page_index> shared_;
};

} // namespace adafloor
