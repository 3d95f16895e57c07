#pragma once
// 64-bit digests of bytes: XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Guards against
// damage, not against malice.
#include <cstddef>
#include <cstdint>

namespace adafloor {

/// XXH64 of `size` bytes.
std::uint64_t digest64(const void* data, std::size_t size, std::uint64_t seed = 0);

} // namespace adafloor
