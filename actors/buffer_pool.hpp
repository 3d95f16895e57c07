#pragma once
// Large buffers that are used again. A fresh page costs up to 14 us per 4 KiB in a virtual machine,
// so memory is faulted in once, when it is first allocated, and then kept.
#include "messages/result.hpp"

#include <cstddef>
#include <memory>

namespace adafloor {

namespace detail {
struct pool_state;
}

/// Bytes on loan from a buffer_pool; returned on destruction, by any thread, even after the pool
/// itself is gone. Page-aligned. Contents of a fresh buffer are whatever was there before.
class pooled_buffer {
public:
  pooled_buffer() = default;
  pooled_buffer(pooled_buffer&& other) noexcept;
  pooled_buffer& operator=(pooled_buffer&& other) noexcept;
  ~pooled_buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }
  /// Changes `size()`; at most `capacity()`.
  void resize(std::size_t size);

private:
  friend class buffer_pool;
  std::shared_ptr<detail::pool_state> pool_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
};

/// Thread-safe.
class buffer_pool {
public:
  /// `kept_bytes_max`: what the pool keeps for later use; more is given back to the system.
  explicit buffer_pool(std::size_t kept_bytes_max);
  /// Errors: io (the system has no memory; names the size).
  result<pooled_buffer> take(std::size_t size);
  std::size_t kept_bytes() const;
  std::size_t allocations() const; ///< how often fresh memory had to be faulted in

private:
  std::shared_ptr<detail::pool_state> state_;
};

} // namespace adafloor
