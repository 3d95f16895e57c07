#include "messages/frame.hpp"

#include "messages/checksum.hpp"

namespace adafloor {

namespace {

constexpr std::uint32_t magic = 0x314C4641; // "AFL1"

// Offsets; the checksum is last and covers what is before it, then the payload.
enum at : std::size_t {
  at_magic = 0,
  at_version = 4,
  at_type = 6,
  at_flags = 7,
  at_sender = 8,
  at_from = 12,
  at_to = 20,
  at_seq = 28,
  at_ack = 36,
  at_consumed = 44,
  at_length = 52,
  at_reach = 56, // distance from seq
  at_crc = 60,
};

template <class T>
void put(std::string& s, std::size_t where, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    s[where + i] = static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFFu);
}

template <class T>
T get(std::string_view s, std::size_t where) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    v |= std::uint64_t{static_cast<unsigned char>(s[where + i])} << (8 * i);
  return static_cast<T>(v);
}

} // namespace

const char* describe(frame_fault f) {
  switch (f) {
  case frame_fault::too_short:
    return "shorter than a header";
  case frame_fault::bad_magic:
    return "wrong magic";
  case frame_fault::bad_version:
    return "unknown version";
  case frame_fault::bad_length:
    return "wrong length";
  case frame_fault::bad_type:
    return "unknown type";
  case frame_fault::bad_checksum:
    return "wrong checksum";
  }
  return "unknown fault";
}

std::string encode_frame(const frame_header& h, std::string_view payload) {
  std::string s;
  s.reserve(frame_header_bytes + payload.size());
  s.resize(frame_header_bytes);
  put(s, at_magic, magic);
  put(s, at_version, frame_version);
  put(s, at_type, static_cast<std::uint8_t>(h.type));
  put(s, at_flags, static_cast<std::uint8_t>((h.heard ? 1 : 0) | (h.wants_ack ? 2 : 0)));
  put(s, at_sender, h.sender.value);
  put(s, at_from, h.from.value);
  put(s, at_to, h.to.value);
  put(s, at_seq, h.seq);
  put(s, at_ack, h.ack);
  put(s, at_consumed, h.consumed);
  put(s, at_length, static_cast<std::uint32_t>(payload.size()));
  put(s, at_reach, static_cast<std::uint32_t>(h.reach > h.seq ? h.reach - h.seq : 0));
  put(s, at_crc, crc32c(payload.data(), payload.size(), crc32c(s.data(), at_crc)));
  s.append(payload);
  return s;
}

std::optional<rank_id> claimed_sender(std::string_view bytes) {
  if (bytes.size() < at_from) return std::nullopt;
  return rank_id{get<std::uint32_t>(bytes, at_sender)};
}

std::variant<frame, frame_fault> decode_frame(std::string_view bytes) {
  if (bytes.size() < frame_header_bytes) return frame_fault::too_short;
  if (get<std::uint32_t>(bytes, at_magic) != magic) return frame_fault::bad_magic;
  if (get<std::uint16_t>(bytes, at_version) != frame_version) return frame_fault::bad_version;
  frame f;
  f.payload = bytes.substr(frame_header_bytes);
  if (get<std::uint32_t>(bytes, at_length) != f.payload.size()) return frame_fault::bad_length;
  const auto crc = crc32c(f.payload.data(), f.payload.size(), crc32c(bytes.data(), at_crc));
  if (get<std::uint32_t>(bytes, at_crc) != crc) return frame_fault::bad_checksum;
  const auto type = get<std::uint8_t>(bytes, at_type);
  if (type < 1 || type > 4) return frame_fault::bad_type;
  f.header.type = static_cast<frame_type>(type);
  f.header.heard = (get<std::uint8_t>(bytes, at_flags) & 1) != 0;
  f.header.wants_ack = (get<std::uint8_t>(bytes, at_flags) & 2) != 0;
  f.header.sender = rank_id{get<std::uint32_t>(bytes, at_sender)};
  f.header.from = incarnation_id{get<std::uint64_t>(bytes, at_from)};
  f.header.to = incarnation_id{get<std::uint64_t>(bytes, at_to)};
  f.header.seq = get<std::uint64_t>(bytes, at_seq);
  f.header.ack = get<std::uint64_t>(bytes, at_ack);
  f.header.consumed = get<std::uint64_t>(bytes, at_consumed);
  const bool ranged = f.header.type == frame_type::hello || f.header.type == frame_type::resend;
  f.header.reach = ranged ? f.header.seq + get<std::uint32_t>(bytes, at_reach) : 0;
  return f;
}

} // namespace adafloor
