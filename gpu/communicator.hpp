#pragma once
// One expert-parallel (EP) group as a member's engine sees it. Implementations: in-process threads
// (gpu/loopback), UCX (actors/ucx_collective), NCCL (gpu/nccl_fabric). One conformance suite
// (tests/gpu/communicator_conformance.hpp) runs over all of them.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <memory>
#include <vector>

namespace adafloor {

/// Bytes in host memory that somebody else owns.
struct bytes_view {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

/// Names one exchange of a decode step. Every member calls with the same id, in the same order;
/// a frame with another id is a protocol error that names the sender.
struct exchange_id {
  std::uint64_t step = 0;
  std::uint16_t layer = 0;
  enum phase_kind : std::uint16_t { dispatch = 0, combine = 1, header = 2 } phase = dispatch;
  friend bool operator==(const exchange_id& a, const exchange_id& b) {
    return a.step == b.step && a.layer == b.layer && a.phase == b.phase;
  }
};

/// What every member tells every other member once per step (protocols.md section 2). All members
/// read the same set of headers, so they take the same decisions without a further round.
struct step_header {
  epoch_id epoch;
  std::uint64_t step = 0;
  epoch_id ready_epoch;                ///< the epoch that this member is ready to switch to
  std::uint32_t live_requests = 0;     ///< requests that still generate on this member
  std::uint32_t finished_requests = 0; ///< responses ended on this member in this rollout
  std::uint64_t kv_tokens = 0;         ///< KV cache of this member, in tokens, whole pages
};

class communicator {
public:
  virtual ~communicator() = default;

  virtual epoch_id epoch() const = 0;
  /// Members in ascending order of rank; `exchange` indexes by position in this list.
  virtual const std::vector<rank_id>& members() const = 0;
  virtual std::size_t self_index() const = 0;

  /// All-to-all of byte strings of any size, zero included: `outgoing[i]` goes to member i and
  /// `(*incoming)[i]` is what member i sent to this one in the same exchange (self included).
  /// Blocks; not thread-safe. `outgoing` may be reused after return. The views in `incoming` stay
  /// valid until the next call. Errors: aborted, timed_out and peer_lost (name rank and exchange).
  virtual result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                                std::vector<bytes_view>* incoming) = 0;

  /// The same members go on as the group of a newer epoch: how a group that is kept between uses is
  /// used again. Local, and only while no exchange runs. Errors: bad_input when `epoch` is not
  /// newer than the group's own.
  virtual result<void> enter(epoch_id epoch) = 0;

  /// Makes a running and every later `exchange` fail with `aborted`. Any thread.
  virtual void abort() noexcept = 0;
};

/// Makes communicators for groups. The full-world links are made once and kept for the life of the
/// fabric, so making a group is cheap. A communicator must not outlive its fabric.
class collective_fabric {
public:
  virtual ~collective_fabric() = default;
  /// `members` ascending, contains self. Local: needs no answer from the other members.
  /// Thread: the engine's.
  virtual result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                           std::vector<rank_id> members) = 0;
  /// Lets the links go on with what is under way (connections, keep-alive) while no exchange runs.
  /// Engine's thread; never blocks; to be called a few times a second.
  virtual void progress() {}
  /// The version that every later frame carries and expects: members that differ get an error that
  /// names them, not wrong sums. Engine's thread.
  virtual void set_weights_version(weights_id /*version*/) {}
};

} // namespace adafloor
