#pragma once
// Little byte strings for blobs that move between ranks: fields in order, host byte order (all
// supported machines are little-endian), every read bounded.
#include "gpu/digest.hpp"
#include "gpu/engine.hpp"

#include <cstring>
#include <type_traits>

namespace adafloor {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blobs are little-endian");

class byte_writer {
public:
  /// What `memory` holds is forgotten.
  explicit byte_writer(byte_string memory = {}) : bytes_(std::move(memory)) { bytes_.clear(); }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, std::size_t size) {
    auto p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  template <class T>
  void put_list(const std::vector<T>& values) {
    put<std::uint64_t>(values.size());
    put_bytes(values.data(), values.size() * sizeof(T));
  }
  /// Appends the digest of all that was put.
  byte_string seal() {
    put(digest64(bytes_.data(), bytes_.size()));
    return std::move(bytes_);
  }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

private:
  byte_string bytes_;
};

/// Reads past the end give zeros and clear ok().
class byte_reader {
public:
  explicit byte_reader(bytes_view bytes) : bytes_(bytes) {}

  /// Checks the digest that seal() put at the end and takes it away.
  bool unseal() {
    if (bytes_.size < sizeof(std::uint64_t)) return ok_ = false;
    bytes_.size -= sizeof(std::uint64_t);
    std::uint64_t stored;
    std::memcpy(&stored, bytes_.data + bytes_.size, sizeof stored);
    return ok_ = stored == digest64(bytes_.data, bytes_.size);
  }
  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (auto p = take(sizeof value)) std::memcpy(&value, p, sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> get_list() {
    auto count = get<std::uint64_t>();
    if (count > left() / sizeof(T)) {
      ok_ = false;
      return {};
    }
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), take(count * sizeof(T)), count * sizeof(T));
    return values;
  }
  /// `size` bytes, or null.
  const std::byte* take(std::size_t size) {
    if (!ok_ || size > left()) {
      ok_ = false;
      return nullptr;
    }
    at_ += size;
    return bytes_.data + at_ - size;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size - at_; }

private:
  bytes_view bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

} // namespace adafloor
