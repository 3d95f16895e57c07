#pragma once
// 64-bit digests of bytes: XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Guards against
// damage, not against malice.
#include <cstddef>
#include <cstdint>

namespace adafloor {

/// XXH64 of `size` bytes.
std::uint64_t digest64(const void* data, std::size_t size, std::uint64_t seed = 0);

/// A digest for large pieces, at the pace of the memory: 64 lanes of 32 bits, each of which takes
/// every 64th word as FNV-1a does but rotates in between; then XXH64 over the lanes and the bytes
/// that are left. Equal on all machines. One wrong word is always seen.
std::uint64_t wide_digest64(const void* data, std::size_t size);

/// The same of bytes that come one piece after the other.
class wide_digest {
public:
  wide_digest();
  void add(const void* data, std::size_t size);
  std::uint64_t value() const;

private:
  std::uint32_t lanes_[64];
  unsigned char rest_[sizeof lanes_]; ///< too few at the end to fill the lanes
  std::size_t size_ = 0;              ///< of all that was added
};

} // namespace adafloor
