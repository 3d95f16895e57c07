#pragma once
// Bytes on the wire: a msgpack array [from, to, incarnation, fence, tag, [field, ...]]. Adding a
// field at the end of a struct is compatible both ways: old readers skip it, new readers keep its
// default. A list of floats is one binary field, little-endian, so its bits arrive as they left.
#include "messages/catalog.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace adafloor {

/// Bounds of the decoder; a frame beyond one of them is refused before memory is taken.
constexpr std::size_t frame_array_max = 1u << 17;  ///< elements of one array
constexpr std::size_t frame_floats_max = 1u << 17; ///< numbers of one list
constexpr std::size_t frame_string_max = 1u << 20; ///< bytes of one string
constexpr std::size_t frame_bytes_max = 16u << 20; ///< bytes of one frame

std::string encode(const envelope&);

/// Empty if `frame` is not one well-formed envelope with a known tag. Never throws: bytes from the
/// wire are not trusted.
std::optional<envelope> decode(std::string_view frame) noexcept;

} // namespace adafloor
