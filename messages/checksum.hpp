#pragma once
#include <cstddef>
#include <cstdint>

namespace adafloor {

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected, RFC 3720 appendix B.4). `before` is the
/// result for the bytes in front of these. Uses the processor's instruction where it has one.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before = 0);

namespace detail {
/// The same by tables only; for tests and processors without the instruction.
std::uint32_t crc32c_by_table(const void* data, std::size_t size, std::uint32_t before = 0);
} // namespace detail

} // namespace adafloor
