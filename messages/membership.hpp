#pragma once
// Conversation: who is alive.
#include "messages/ids.hpp"

namespace adafloor {

/// rank -> membership, every heartbeat interval: "I am alive and serve `epoch`".
struct heartbeat {
  incarnation_id incarnation;
  epoch_id epoch;
  std::uint64_t step = 0; ///< decode steps done in this rollout
  FIELDS(heartbeat, incarnation, epoch, step)
};

/// membership -> rank: answer to `heartbeat`; lets a rank notice a dead planner.
struct heartbeat_seen {
  std::uint64_t step = 0; ///< copied from the heartbeat
  FIELDS(heartbeat_seen, step)
};

/// membership -> planner and broker: `rank` is dead by decision, whatever its process does.
struct member_lost {
  rank_id rank;
  incarnation_id incarnation;
  std::string reason;
  FIELDS(member_lost, rank, incarnation, reason)
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
