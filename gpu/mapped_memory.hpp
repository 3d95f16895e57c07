#pragma once
// Floats whose memory goes back to the operating system as soon as it is given up, whatever the
// allocator would keep: what one rank stops holding, another process of the machine can use.
#include <cstddef>
#include <cstdint>

namespace adafloor {

/// Zeros at first. Memory stands behind a system page once it is written. Starts at a system page.
class mapped_floats {
public:
  mapped_floats() = default;
  /// Throws std::bad_alloc when the system has no addresses left.
  explicit mapped_floats(std::size_t floats);
  mapped_floats(mapped_floats&& other) noexcept;
  mapped_floats& operator=(mapped_floats&& other) noexcept;
  ~mapped_floats();

  float* data() { return floats_; }
  const float* data() const { return floats_; }
  std::size_t size() const { return size_; }

  /// Puts memory behind these floats now, in one go: in a virtual machine a fault for each system
  /// page costs twenty times as much. A wish: where the system cannot, memory comes when they are
  /// written. Bounds as of `discard`.
  void populate(std::size_t first, std::size_t count);
  /// Gives the memory of these floats back; they are zero again. Both are multiples of a system
  /// page's floats, as `rounded` makes them.
  void discard(std::size_t first, std::size_t count);

  /// `floats` rounded up to whole system pages, which is what they take.
  static std::size_t rounded(std::size_t floats);

private:
  float* floats_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace adafloor
