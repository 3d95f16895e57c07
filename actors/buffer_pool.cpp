#include "actors/buffer_pool.hpp"

#include <sys/mman.h>

#include <cassert>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace adafloor {

namespace {

constexpr std::size_t smallest = 16 << 10;
constexpr std::size_t huge_page = 2 << 20;

// Sizes come in quarters of powers of two, so that buffers fit again without much waste.
std::size_t rounded(std::size_t size) {
  std::size_t top = smallest;
  while (top < size)
    top *= 2;
  if (top == smallest) return top;
  const std::size_t step = top / 8; // of the half that is above top / 2
  return (size + step - 1) / step * step;
}

std::byte* fresh(std::size_t capacity) {
  void* p = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  // Both are wishes: where the kernel refuses, pages are faulted in on first use instead.
  if (capacity >= huge_page) ::madvise(p, capacity, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  ::madvise(p, capacity, MADV_POPULATE_WRITE);
#endif
  return static_cast<std::byte*>(p);
}

} // namespace

struct detail::pool_state {
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::byte*>> free; // by capacity
  std::size_t kept_max = 0, kept = 0, allocations = 0;

  ~pool_state() {
    for (auto& [capacity, buffers] : free)
      for (auto* p : buffers)
        ::munmap(p, capacity);
  }

  std::byte* reuse(std::size_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& buffers = free[capacity];
    if (buffers.empty()) {
      ++allocations;
      return nullptr;
    }
    std::byte* p = buffers.back();
    buffers.pop_back();
    kept -= capacity;
    return p;
  }

  void give_back(std::byte* p, std::size_t capacity) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (kept + capacity <= kept_max) {
        free[capacity].push_back(p);
        kept += capacity;
        return;
      }
    }
    ::munmap(p, capacity);
  }
};

pooled_buffer::pooled_buffer(pooled_buffer&& other) noexcept
  : pool_(std::move(other.pool_)), data_(std::exchange(other.data_, nullptr)),
    size_(std::exchange(other.size_, 0)), capacity_(std::exchange(other.capacity_, 0)) {}

pooled_buffer& pooled_buffer::operator=(pooled_buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

pooled_buffer::~pooled_buffer() {
  if (data_ != nullptr) pool_->give_back(data_, capacity_);
}

void pooled_buffer::resize(std::size_t size) {
  assert(size <= capacity_);
  size_ = size;
}

buffer_pool::buffer_pool(std::size_t kept_bytes_max)
  : state_(std::make_shared<detail::pool_state>()) {
  state_->kept_max = kept_bytes_max;
}

result<pooled_buffer> buffer_pool::take(std::size_t size) {
  pooled_buffer b;
  b.capacity_ = rounded(size);
  b.data_ = state_->reuse(b.capacity_);
  if (b.data_ == nullptr) b.data_ = fresh(b.capacity_);
  if (b.data_ == nullptr)
    return fail(error_code::io, "no memory for a transfer buffer of " + std::to_string(b.capacity_)
                                    + " bytes; lower the transfer size or raise the memory limit");
  b.size_ = size;
  b.pool_ = state_;
  return b;
}

std::size_t buffer_pool::kept_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->kept;
}

std::size_t buffer_pool::allocations() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->allocations;
}

} // namespace adafloor
