#pragma once
// Conversation: who is alive.
#include "messages/ids.hpp"

namespace adafloor {

/// rank -> membership, every heartbeat interval: "I am alive and serve `epoch`".
struct heartbeat {
  incarnation_id incarnation;
  epoch_id epoch;
  std::uint64_t step = 0;  ///< decode steps done in this rollout
  microseconds sent_at{0}; ///< on the rank's clock
  FIELDS(heartbeat, incarnation, epoch, step, sent_at)
};

/// membership -> rank: answer to `heartbeat`; lets a rank notice a dead planner and learn how far
/// its clock is from the planner's.
struct heartbeat_seen {
  std::uint64_t step = 0;  ///< copied from the heartbeat
  microseconds sent_at{0}; ///< copied from the heartbeat
  microseconds seen_at{0}; ///< on the planner's clock
  FIELDS(heartbeat_seen, step, sent_at, seen_at)
};

/// membership -> planner and broker: `rank` is dead by decision, whatever its process does.
/// membership -> that rank, as the answer to a heartbeat that came all the same: its process ends.
struct member_lost {
  rank_id rank;
  incarnation_id incarnation;
  std::string reason;
  microseconds silence{0};
  FIELDS(member_lost, rank, incarnation, reason, silence)
};

/// planner -> rank: the job ends; the rank answers `stopped` and its process exits.
struct stop {
  std::string reason;
  FIELDS(stop, reason)
};

/// rank -> planner: no more messages will come from this rank.
struct stopped {
  incarnation_id incarnation;
  FIELDS(stopped, incarnation)
};

} // namespace adafloor
