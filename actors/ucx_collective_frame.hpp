#pragma once
// A frame of a collective, as ucx_collective sends and keeps it.
#include "actors/buffer_pool.hpp"
#include "gpu/communicator.hpp"

#include <cstdint>
#include <string>

namespace adafloor {

constexpr std::uint32_t collective_magic = 0x32434641; // "AFC2"

enum class frame_kind : std::uint8_t {
  whole = 0, ///< the payload follows
  loan,      ///< the payload is in the sender's memory, to be read by a neighbour
  loan_over, ///< it was read, or (`refused`) cannot be
};

// What stands in front of every payload. Both ends have the same byte order: UCX refuses others.
struct frame_head {
  std::uint32_t magic = 0;
  std::uint32_t sender = 0;
  std::uint64_t from = 0, to = 0; // incarnations
  std::uint64_t epoch = 0;
  std::uint64_t weights_version = 0;
  std::uint64_t turn = 0; // number of the exchange in its epoch, from 1
  std::uint64_t step = 0;
  std::uint16_t layer = 0, phase = 0;
  std::uint32_t crc = 0; // of the payload, 0 where checksums are off
  std::uint64_t length = 0;
  std::uint64_t neighbourhood = 0; // of the sender, see single_copy.hpp
  std::uint64_t address = 0;       // loan: of the whole frame
  std::uint32_t pid = 0;           // loan: in which process
  frame_kind kind = frame_kind::whole;
  std::uint8_t refused = 0;
  char unused[34] = {};
};
static_assert(sizeof(frame_head) == 128, "payloads stay aligned to a cache line");

/// A whole frame, received.
struct arrived {
  frame_head head;
  pooled_buffer buffer; // head and payload
  bytes_view payload() const { return {buffer.data() + sizeof(frame_head), head.length}; }
};

inline exchange_id id_of(const frame_head& h) {
  return {h.step, h.layer, static_cast<exchange_id::phase_kind>(h.phase)};
}

inline std::string describe(const exchange_id& id) {
  const char* phase = id.phase == exchange_id::dispatch  ? "dispatch"
                      : id.phase == exchange_id::combine ? "combine"
                      : id.phase == exchange_id::header  ? "header"
                                                         : "unknown phase";
  return "step " + std::to_string(id.step) + " layer " + std::to_string(id.layer) + " " + phase;
}

} // namespace adafloor
