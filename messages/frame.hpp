#pragma once
// How a frame of the control link looks on the wire: a header of 64 bytes, little-endian, and the
// payload. Decoding is total: any bytes give a frame or a fault.
#include "messages/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace adafloor {

enum class frame_type : std::uint8_t {
  hello = 1,  ///< opens a channel; seq = lowest, reach = highest version that the sender speaks
  data = 2,   ///< seq numbers the payload, from 1
  ack = 3,    ///< only `ack` and `consumed` count
  resend = 4, ///< please send seq..reach again
};

struct frame_header {
  frame_type type = frame_type::ack;
  bool heard = false;     ///< hello: the sender has the receiver's hello
  bool wants_ack = false; ///< ack: please acknowledge at once (the sender's window is in use)
  rank_id sender;
  incarnation_id from; ///< of the sender
  incarnation_id to;   ///< of the receiver, as the sender knows it
  std::uint64_t seq = 0;
  std::uint64_t reach = 0;    ///< end of the range of hello and resend; 0 otherwise
  std::uint64_t ack = 0;      ///< all data up to this number has arrived
  std::uint64_t consumed = 0; ///< all data up to this number has been handed over
};

struct frame {
  frame_header header;
  std::string_view payload; ///< in the decoded bytes
};

enum class frame_fault : std::uint8_t {
  too_short = 1,
  bad_magic,
  bad_version,
  bad_length,
  bad_type,
  bad_checksum,
};
const char* describe(frame_fault f);

constexpr std::size_t frame_header_bytes = 64;
constexpr std::uint16_t frame_version = 1; ///< of this layout

/// CRC32C covers header and payload.
std::string encode_frame(const frame_header& h, std::string_view payload);
std::variant<frame, frame_fault> decode_frame(std::string_view bytes);
/// Who a faulty frame says it is from; may be wrong.
std::optional<rank_id> claimed_sender(std::string_view bytes);

} // namespace adafloor
