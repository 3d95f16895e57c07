#pragma once
// Conversation: a rank's machine and the engine thread of its own process. Never on the wire, but
// in the catalog, so that machines speak to the engine as they speak to everybody.
#include "messages/rollout.hpp"
#include "messages/transition.hpp"

namespace adafloor {

/// rank -> engine: hold these until `engine_start`. No answer, except `engine_failed` for a request
/// that can never run here.
struct engine_admit {
  rollout_id rollout;
  std::vector<rollout_request> requests;
  std::vector<token_run> resumed = {}; ///< as in admit_requests
  FIELDS(engine_admit, rollout, requests, resumed)
};

/// rank -> engine: decode until no member of the group has live requests.
struct engine_start {
  rollout_id rollout;
  FIELDS(engine_start, rollout)
};

/// rank -> engine: reserve slots, pull missing experts in the background from the owners of the
/// running epoch, build the communicator. Answered by `engine_prepared` or `engine_refused`. With
/// `recover` the running step is abandoned, no other begins before the switch, the preparation
/// takes the place of any other, and experts of the dead come from the checkpoint.
struct engine_prepare {
  epoch_id epoch;
  std::vector<rank_id> members;
  std::vector<rank_id> owners;
  bool recover = false;
  std::vector<rank_id> dead = {};
  FIELDS(engine_prepare, epoch, members, owners, recover, dead)
};
struct engine_prepared {
  epoch_id epoch;
  std::uint64_t map_hash = 0; ///< of the experts that are really resident, not of the plan
  std::uint32_t experts_resident = 0;
  std::uint64_t bytes_pulled = 0;
  std::string address = {}; ///< as in prepared
  FIELDS(engine_prepared, epoch, map_hash, experts_resident, bytes_pulled, address)
};
struct engine_refused {
  epoch_id epoch;
  refusal reason = refusal::busy;
  std::string text;
  FIELDS(engine_refused, epoch, reason, text)
};

/// rank -> engine: give back what `engine_prepare` reserved for `epoch`.
struct engine_abort {
  epoch_id epoch;
  FIELDS(engine_abort, epoch)
};

/// rank -> engine: announce `epoch` as ready_epoch in the headers; switch when every member does,
/// or at once when no member has live requests. Answered by `switched`. After a recovery's switch
/// the group decodes on, if `decode`, until no member has live requests.
struct engine_commit {
  epoch_id epoch;
  bool decode = false;
  std::vector<std::string> addresses = {}; ///< as in commit_transition
  FIELDS(engine_commit, epoch, decode, addresses)
};

/// rank -> engine: drop experts that the running map does not give to this rank, except its home
/// experts. No answer.
struct engine_settle {
  epoch_id epoch;
  FIELDS(engine_settle, epoch)
};

/// engine -> rank: from `at` on (own clock) the rank's time counts as `state`. After `engine_start`
/// it is busy or dummy at first; idle means that decoding is over (no member has live requests) or
/// that the rank left the group. A rank reports a rollout only when its engine said idle after it.
struct engine_state {
  rollout_id rollout;
  rank_state state = rank_state::idle;
  microseconds at{0};
  std::uint64_t step = 0;
  FIELDS(engine_state, rollout, state, at, step)
};

/// engine -> rank: the engine cannot go on. `peer` is the rank that a collective waited for, or
/// this rank itself.
struct engine_failed {
  rank_id peer;
  bool peer_lost = false;
  std::string text;
  FIELDS(engine_failed, peer, peer_lost, text)
};

} // namespace adafloor
