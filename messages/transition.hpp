#pragma once
// Conversation: the EP group changes its members (protocols.md sections 3, 6 and 7).
#include "messages/ids.hpp"

namespace adafloor {

/// `recover`: ranks of the group have died, and the others go on without them (section 7). It takes
/// the place of whatever transition was under way.
enum class transition_kind : std::uint8_t { contract = 1, restore = 2, recover = 3 };
constexpr transition_kind enum_max(transition_kind) {
  return transition_kind::recover;
}
const char* name_of(transition_kind);

enum class refusal : std::uint8_t {
  no_memory = 1,     ///< expert slots or KV do not fit
  lease_active = 2,  ///< the rank is lent out
  owns_requests = 3, ///< a leaver still has live requests
  bad_map = 4,       ///< an expert has no owner, two owners, or an owner outside the group
  source_failed = 5, ///< an expert could not be fetched
  busy = 6,          ///< another transition is being prepared
};
constexpr refusal enum_max(refusal) {
  return refusal::busy;
}
const char* name_of(refusal);

/// planner -> old and new members. Epoch numbers are never used twice, aborted ones included.
struct prepare_transition {
  epoch_id epoch;      ///< of the group to be
  epoch_id from_epoch; ///< of the group that is running
  transition_kind kind = transition_kind::contract;
  std::vector<rank_id> members; ///< of the group to be, ascending
  std::vector<rank_id> leavers; ///< members of the running group that are not in `members`
  std::vector<rank_id> owners;  ///< owner of expert e, for every layer
  std::uint64_t map_hash = 0;   ///< expert_map_hash(owners)
  // Only of a recovery:
  std::vector<rank_id> dead = {};     ///< by decision of the membership, all there are so far
  std::vector<request_id> ended = {}; ///< moved between the dead and others; their response is here
  bool decode = false;                ///< the rollout goes on generating
  FIELDS(prepare_transition, epoch, from_epoch, kind, members, leavers, owners, map_hash, dead,
         ended, decode)
};

/// rank -> planner: everything for `epoch` is reserved and resident. Leavers say it, too.
struct prepared {
  epoch_id epoch;
  std::uint64_t map_hash = 0;
  std::uint32_t experts_resident = 0; ///< of those that the map gives to this rank
  std::uint64_t bytes_pulled = 0;
  std::vector<request_id> taken = {}; ///< in a recovery: moved here from ranks that are dead
  std::string address = {};           ///< where this rank takes part in exchanges; opaque
  FIELDS(prepared, epoch, map_hash, experts_resident, bytes_pulled, taken, address)
};

/// rank -> planner: not possible; nothing stays reserved.
struct refused {
  epoch_id epoch;
  refusal reason = refusal::busy;
  std::string text;
  FIELDS(refused, epoch, reason, text)
};

/// planner -> prepared ranks: forget `epoch`. Resent until `transition_aborted`.
struct abort_transition {
  epoch_id epoch;
  std::string reason;
  FIELDS(abort_transition, epoch, reason)
};
struct transition_aborted {
  epoch_id epoch;
  FIELDS(transition_aborted, epoch)
};

/// planner -> old and new members: all are prepared. Never taken back. Resent until `switched`.
struct commit_transition {
  epoch_id epoch;
  std::vector<std::string> addresses = {}; ///< of the members, in their order; empty: as it was
  FIELDS(commit_transition, epoch, addresses)
};

/// engine -> rank -> planner: this rank runs `epoch` (or has left the group with it).
struct switched {
  epoch_id epoch;
  std::uint64_t at_step = 0;
  microseconds pause{0}; ///< how long this rank did not decode because of the switch
  FIELDS(switched, epoch, at_step, pause)
};

/// planner -> old and new members: every member runs `epoch`; experts that the map does not give
/// to a rank may be dropped, leavers may go. Resent until `settled`.
struct settle_transition {
  epoch_id epoch;
  FIELDS(settle_transition, epoch)
};
struct settled {
  epoch_id epoch;
  bool detached = false; ///< the rank is outside the group and free to be lent
  FIELDS(settled, epoch, detached)
};

/// planner -> trainer: a transition was committed and settled; one line for reports.
struct transition_record {
  epoch_id epoch;
  transition_kind kind = transition_kind::contract;
  std::uint32_t from = 0; ///< ranks
  std::uint32_t to = 0;   ///< ranks
  std::uint64_t at_step = 0;
  microseconds began_at{0}; ///< prepare was sent
  microseconds settled_at{0};
  microseconds pause_max{0}; ///< longest pause of a member
  std::uint64_t bytes = 0;   ///< expert bytes pulled by all members
  std::vector<rank_id> members;
  FIELDS(transition_record, epoch, kind, from, to, at_step, began_at, settled_at, pause_max, bytes,
         members)
};

/// planner -> trainer: a rank died. What is left of the world goes on; `recovery_record` tells
/// when.
struct rank_lost {
  rank_id rank;
  std::uint32_t world_size = 0; ///< ranks that are left
  microseconds silence{0};      ///< from its last sign of life to the decision
  std::string text;
  FIELDS(rank_lost, rank, world_size, silence, text)
};

/// planner -> trainer: a group without the dead ranks runs; one line for reports.
struct recovery_record {
  epoch_id epoch; ///< of that group
  std::vector<rank_id> lost;
  std::uint32_t members = 0;   ///< ranks of the group
  microseconds began_at{0};    ///< the last of them was declared dead
  microseconds switched_at{0}; ///< all members run the epoch
  microseconds silence{0};     ///< before the decision; with it the stall of the group
  std::uint32_t requests = 0;  ///< of the dead, rebuilt elsewhere
  std::uint64_t tokens = 0;    ///< of their responses that the log had: computed, not drawn again
  std::uint64_t prompt_tokens = 0; ///< computed again
  std::uint32_t experts = 0;       ///< of the dead, that others serve now
  FIELDS(recovery_record, epoch, lost, members, began_at, switched_at, silence, requests, tokens,
         prompt_tokens, experts)
};

/// planner -> trainer: all responses are durable, all leases returned, the full world is back.
struct rollout_done {
  rollout_id rollout;
  microseconds began_at{0};
  microseconds ended_at{0};
  std::vector<transition_record> transitions;
  std::uint32_t aborted_transitions = 0;
  FIELDS(rollout_done, rollout, began_at, ended_at, transitions, aborted_transitions)
};

/// planner -> trainer: the rollout cannot be completed. `peer_lost` tells a lost rank.
struct rollout_failed {
  rollout_id rollout;
  bool peer_lost = false;
  std::string text;
  FIELDS(rollout_failed, rollout, peer_lost, text)
};

} // namespace adafloor
