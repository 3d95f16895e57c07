// libFuzzer: bytes from the network, before and after a peer has proven that it may join. What is
// accepted must survive a second round.
#include "actors/bootstrap_wire.hpp"
#include "messages/frame.hpp"

#include <cstdlib>

using namespace adafloor;

namespace {

template <class T>
void second_round(const std::optional<T>& got, std::optional<T> (*decode)(std::string_view)) {
  if (!got) return;
  const auto bytes = encode(*got);
  const auto again = decode(bytes);
  if (!again || encode(*again) != bytes) std::abort();
}

void control_frame(std::string_view bytes) {
  claimed_sender(bytes);
  const auto got = decode_frame(bytes);
  if (const auto* f = std::get_if<frame>(&got))
    if (encode_frame(f->header, f->payload) != bytes) std::abort();
}

/// A checksum stops nearly everything that a fuzzer thinks of: make one that is right.
void sealed_frame(std::string_view bytes) {
  if (bytes.size() < 4) return;
  frame_header h;
  h.type = static_cast<frame_type>(1 + static_cast<unsigned char>(bytes[0]) % 4);
  h.heard = bytes[1] & 1;
  h.wants_ack = bytes[1] & 2;
  h.seq = static_cast<unsigned char>(bytes[2]);
  if (h.type == frame_type::hello || h.type == frame_type::resend)
    h.reach = h.seq + static_cast<unsigned char>(bytes[3]);
  const auto whole = encode_frame(h, bytes.substr(4));
  control_frame(whole);
  control_frame(std::string_view(whole).substr(0, whole.size() - 1));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  control_frame(bytes);
  sealed_frame(bytes);
  second_round(decode_challenge(bytes), decode_challenge);
  second_round(decode_hello(bytes), decode_hello);
  second_round(decode_claim(bytes), decode_claim);
  second_round(decode_answer(bytes), decode_answer);
  if (const auto table = decode_table(bytes, 4))
    if (!decode_table(encode(*table), 4)) std::abort();
  std::string buffer(bytes), taken;
  while (take_frame(buffer, hello_bytes_max, &taken) == frame_state::whole)
    if (taken.size() > hello_bytes_max) std::abort();
  return 0;
}
