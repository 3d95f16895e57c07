#include "gpu/kv_pool.hpp"

#include <cassert>
#include <string>

namespace adafloor {

const char* to_string(kv_dtype type) {
  return type == kv_dtype::bfloat16 ? "bfloat16" : "float32";
}

result<kv_dtype> parse_kv_dtype(const std::string& text) {
  for (const auto type : {kv_dtype::float32, kv_dtype::bfloat16})
    if (text == to_string(type)) return type;
  return bad_input(text + ": there are float32 and bfloat16");
}

kv_pool::kv_pool(kv_layout layout, std::uint32_t capacity)
  : layout_(layout),
    stride_(mapped_floats::rounded((layout.page_bytes() + sizeof(float) - 1) / sizeof(float))) {
  usage_.capacity = capacity;
}

result<void> kv_pool::set_capacity(std::uint32_t pages) {
  if (pages == 0) return bad_input("KV pool: capacity is 0 pages, allowed is at least 1");
  if (usage_.used + usage_.promised > pages)
    return fail(error_code::refused,
                "KV pool: " + std::to_string(usage_.used) + " pages are used and "
                    + std::to_string(usage_.promised) + " promised, so it cannot shrink to "
                    + std::to_string(pages) + "; let requests end or move them first");
  usage_.capacity = pages;
  while (usage_.used + free_.size() > pages) {
    auto page = free_.back();
    free_.pop_back();
    discard(page);
    empty_.push_back(page);
  }
  return {};
}

bool kv_pool::promise(std::uint32_t pages) {
  if (usage_.available() < pages) return false;
  usage_.promised += pages;
  return true;
}

void kv_pool::withdraw(std::uint32_t pages) {
  assert(usage_.promised >= pages);
  usage_.promised -= pages;
}

void kv_pool::add_segment() {
  auto& floats = segments_.emplace_back(segment_pages * stride_);
  const auto first = static_cast<page_index>(pages_.size());
  pages_.resize(pages_.size() + segment_pages);
  for (std::uint32_t i = segment_pages; i-- > 0;) {
    pages_[first + i].floats = floats.data() + i * stride_;
    empty_.push_back(first + i);
  }
}

void kv_pool::discard(page_index page) {
  segments_[page / segment_pages].discard(page % segment_pages * stride_, stride_);
}

page_index kv_pool::take() {
  page_index page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    if (empty_.empty()) add_segment();
    page = empty_.back();
    empty_.pop_back();
    segments_[page / segment_pages].populate(page % segment_pages * stride_, stride_);
  }
  pages_[page].references = 1;
  ++usage_.used;
  return page;
}

page_index kv_pool::take_promised() {
  assert(usage_.promised > 0);
  --usage_.promised;
  return take();
}

std::optional<page_index> kv_pool::take_available() {
  if (usage_.available() == 0) return std::nullopt;
  return take();
}

void kv_pool::retain(page_index page) {
  assert(pages_[page].references > 0);
  ++pages_[page].references;
}

void kv_pool::release(page_index page) {
  auto& record = pages_[page];
  assert(record.references > 0);
  if (--record.references > 0) return;
  if (record.key) shared_.erase(*record.key);
  record.key.reset();
  --usage_.used;
  free_.push_back(page);
}

kv_pool::share_key kv_pool::key_of(std::optional<page_index> parent, const page_tokens& tokens) {
  return {parent ? static_cast<std::int64_t>(*parent) : -1, tokens};
}

std::optional<page_index> kv_pool::find_shared(std::optional<page_index> parent,
                                               const page_tokens& tokens) const {
  auto i = shared_.find(key_of(parent, tokens));
  if (i == shared_.end()) return std::nullopt;
  return i->second;
}

void kv_pool::publish(std::optional<page_index> parent, const page_tokens& tokens,
                      page_index page) {
  auto key = key_of(parent, tokens);
  if (pages_[page].key || !shared_.emplace(key, page).second) return;
  pages_[page].key = key;
}

} // namespace adafloor
