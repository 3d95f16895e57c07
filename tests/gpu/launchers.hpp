#pragma once
// Launchers to test kernels with, and buffers in their memory.
#include "gpu/kernels.hpp"
#include "gpu/launcher.hpp"
#include "gpu/plugin.hpp"

#include <boost/test/unit_test.hpp>

#include <random>
#include <vector>

namespace adafloor::tests {

/// At cache lines, as the CPU's kernels want them.
using floats = std::vector<float, cache_line_allocator<float>>;

inline void need(const result<void>& done) {
  BOOST_REQUIRE_MESSAGE(done, done.error().text);
}

/// Everything that this machine can execute bodies with.
inline std::vector<std::unique_ptr<launcher>>& launchers() {
  static auto all = [] {
    std::vector<std::unique_ptr<launcher>> made;
    for (auto order :
         {thread_order::ascending, thread_order::descending, thread_order::interleaved})
      made.push_back(make_host_launcher(order));
    if (auto gpu = open_cuda(0))
      made.push_back(std::move(*gpu));
    else
      BOOST_TEST_MESSAGE("skipped: no CUDA device (" << gpu.error().text << ")");
    return made;
  }();
  return all;
}

/// A GPU where there is one, else this processor.
inline std::unique_ptr<launcher> fastest_launcher() {
  if (auto gpu = open_cuda(0)) return std::move(*gpu);
  return make_host_launcher();
}

/// In [-scale, scale]; plain arithmetic, since library distributions differ between platforms.
inline floats noise(std::size_t n, float scale = 1) {
  static std::mt19937 generator(11);
  floats values(n);
  for (auto& v : values)
    v = scale * (static_cast<float>(generator() % 20001) / 10000.0F - 1.0F);
  return values;
}

/// Rows of n floats with zeros up to a multiple of sixteen.
inline floats padded_rows(const floats& rows, std::size_t n) {
  const auto stride = round_up_lanes(n);
  floats out(rows.size() / n * stride);
  for (std::size_t r = 0; r < rows.size() / n; ++r)
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(r * n), n,
                out.begin() + static_cast<std::ptrdiff_t>(r * stride));
  return out;
}

/// As storage type T holds these values.
template <class T>
std::vector<T> stored(const floats& values) {
  std::vector<T> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    narrow(values[i], out[i]);
  return out;
}
template <class T>
floats widened(const std::vector<T>& values) {
  floats out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] = widen(values[i]);
  return out;
}

/// Values in a launcher's memory.
template <class T>
class on_device {
public:
  template <class A>
  on_device(launcher& l, const std::vector<T, A>& values) : on_device(l, values.size()) {
    need(l.upload(data_, values.data(), size_ * sizeof(T)));
  }
  on_device(launcher& l, std::size_t size) : launcher_(&l), size_(size) {
    auto memory = l.allocate(size * sizeof(T));
    BOOST_REQUIRE_MESSAGE(memory, memory.error().text);
    data_ = static_cast<T*>(*memory);
  }
  on_device(on_device&& other) noexcept
    : launcher_(other.launcher_), data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }
  on_device& operator=(on_device&&) = delete;
  ~on_device() { launcher_->release(data_); }

  T* data() const { return data_; }
  auto values() const {
    std::vector<T, std::conditional_t<std::is_same_v<T, float>, cache_line_allocator<float>,
                                      std::allocator<T>>>
        out(size_);
    need(launcher_->download(out.data(), data_, size_ * sizeof(T)));
    return out;
  }

private:
  launcher* launcher_;
  T* data_ = nullptr;
  std::size_t size_;
};

} // namespace adafloor::tests
