#include "gpu/mapped_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <new>
#include <utility>

namespace adafloor {

namespace {

std::size_t page_floats() {
  static const auto floats = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / sizeof(float);
  return floats;
}

} // namespace

std::size_t mapped_floats::rounded(std::size_t floats) {
  return (floats + page_floats() - 1) / page_floats() * page_floats();
}

mapped_floats::mapped_floats(std::size_t floats) : size_(floats) {
  if (floats == 0) return;
  void* memory = mmap(nullptr, rounded(floats) * sizeof(float), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  floats_ = static_cast<float*>(memory);
}

mapped_floats::mapped_floats(mapped_floats&& other) noexcept {
  *this = std::move(other);
}

mapped_floats& mapped_floats::operator=(mapped_floats&& other) noexcept {
  std::swap(floats_, other.floats_);
  std::swap(size_, other.size_);
  return *this;
}

mapped_floats::~mapped_floats() {
  if (floats_) munmap(floats_, rounded(size_) * sizeof(float));
}

void mapped_floats::populate([[maybe_unused]] std::size_t first,
                             [[maybe_unused]] std::size_t count) {
#ifdef MADV_POPULATE_WRITE
  (void)madvise(floats_ + first, count * sizeof(float), MADV_POPULATE_WRITE);
#endif
}

void mapped_floats::discard(std::size_t first, std::size_t count) {
  assert(first % page_floats() == 0 && count % page_floats() == 0 && first + count <= size_);
  [[maybe_unused]] const int done = madvise(floats_ + first, count * sizeof(float), MADV_DONTNEED);
  assert(done == 0);
}

} // namespace adafloor
