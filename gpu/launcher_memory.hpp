#pragma once
// Arrays in a launcher's memory.
#include "gpu/launcher.hpp"

#include <vector>

namespace adafloor {

template <class T>
class device_array {
public:
  device_array() = default;
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  device_array(device_array&& other) noexcept { *this = std::move(other); }
  device_array& operator=(device_array&& other) noexcept {
    std::swap(launcher_, other.launcher_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~device_array() { reset(); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  void reset() {
    if (data_ != nullptr) launcher_->release(data_);
    data_ = nullptr;
    size_ = 0;
  }
  /// Room for at least `size` elements; contents are lost when it grows. Errors: of `allocate`.
  result<void> need(launcher& where, std::size_t size) {
    if (size <= size_) return {};
    if (data_ != nullptr) where.forget_graphs(); // they hold its address
    reset();
    auto memory = where.allocate(size * sizeof(T));
    if (!memory) return tl::unexpected(memory.error());
    launcher_ = &where;
    data_ = static_cast<T*>(*memory);
    size_ = size;
    return {};
  }
  /// Exactly these values.
  result<void> assign(launcher& where, const T* values, std::size_t size) {
    if (auto ok = need(where, size); !ok) return ok;
    return where.upload(data_, values, size * sizeof(T));
  }
  result<void> assign(launcher& where, const std::vector<T>& values) {
    return assign(where, values.data(), values.size());
  }

private:
  launcher* launcher_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Uploads float32 as storage type T. Errors: bad_input naming `what` when a value does not fit.
template <class T>
result<void> upload_as(launcher& where, T* to, const float* values, std::size_t count,
                       const std::string& what) {
  constexpr std::size_t at_once = 1U << 20;
  std::vector<T> part;
  for (std::size_t at = 0; at < count; at += at_once) {
    const auto n = std::min(at_once, count - at);
    part.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      narrow(values[at + i], part[i]);
      if (bits_of(widen(part[i])) != bits_of(values[at + i]))
        return bad_input(what
                         + ": has values that bfloat16 does not hold, unlike the embedding; "
                           "store all weights in one type");
    }
    if (auto ok = where.upload(to + at, part.data(), n * sizeof(T)); !ok) return ok;
  }
  return {};
}

} // namespace adafloor
