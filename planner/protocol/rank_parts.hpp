#pragma once
// How rank.cpp reaches the other files of the rank machine. Nobody else includes this.
#include "planner/protocol/rank.hpp"

namespace adafloor::rank_parts {

inline address planner_of(const rank_machine& m) {
  return role_at(m.config.planner_rank, role_kind::planner);
}
inline address broker_of(const rank_machine& m) {
  return role_at(m.config.planner_rank, role_kind::broker);
}
inline address engine_of(const rank_machine& m) {
  return role_at(m.config.self, role_kind::engine);
}
inline address sidecar_of(const rank_machine& m) {
  return role_at(m.config.self, role_kind::sidecar);
}

/// Requests of the running rollout that this rank has not finished, is giving away or taking over.
bool owns_requests(const rank_machine&);
/// The membership has answered: from the first heartbeat on silence means death.
inline bool is_known_to_live(const rank_machine& m) {
  return m.clock_round_trip > microseconds{0};
}
void beat(rank_machine&, time_point now, effects&);
/// A rollout was admitted and its books are not closed.
bool rollout_runs(const rank_machine&);

#define ADAFLOOR_RANK_HANDLES(message)                                                             \
  void handle(rank_machine&, const envelope&, const message&, time_point now, effects&);
// rank.cpp
ADAFLOOR_RANK_HANDLES(heartbeat_seen)
ADAFLOOR_RANK_HANDLES(member_lost)
ADAFLOOR_RANK_HANDLES(stop)
ADAFLOOR_RANK_HANDLES(update_weights)
ADAFLOOR_RANK_HANDLES(weights_updated)
ADAFLOOR_RANK_HANDLES(weights_refused)
ADAFLOOR_RANK_HANDLES(engine_failed)
// rank_rollout.cpp
ADAFLOOR_RANK_HANDLES(admit_requests)
ADAFLOOR_RANK_HANDLES(start_rollout)
ADAFLOOR_RANK_HANDLES(response)
ADAFLOOR_RANK_HANDLES(response_kept)
ADAFLOOR_RANK_HANDLES(token_batch)
ADAFLOOR_RANK_HANDLES(tokens_kept)
ADAFLOOR_RANK_HANDLES(rank_progress)
ADAFLOOR_RANK_HANDLES(engine_state)
ADAFLOOR_RANK_HANDLES(end_rollout)
// rank_transition.cpp
ADAFLOOR_RANK_HANDLES(prepare_transition)
ADAFLOOR_RANK_HANDLES(abort_transition)
ADAFLOOR_RANK_HANDLES(commit_transition)
ADAFLOOR_RANK_HANDLES(settle_transition)
ADAFLOOR_RANK_HANDLES(engine_prepared)
ADAFLOOR_RANK_HANDLES(engine_refused)
ADAFLOOR_RANK_HANDLES(switched)
// rank_lease.cpp
ADAFLOOR_RANK_HANDLES(lease_grant)
ADAFLOOR_RANK_HANDLES(lease_renew)
ADAFLOOR_RANK_HANDLES(lease_revoke)
ADAFLOOR_RANK_HANDLES(lease_closed)
ADAFLOOR_RANK_HANDLES(lease_accepted)
ADAFLOOR_RANK_HANDLES(lease_denied)
ADAFLOOR_RANK_HANDLES(lease_returned)
// rank_migration.cpp
ADAFLOOR_RANK_HANDLES(move_request)
#undef ADAFLOOR_RANK_HANDLES

// rank_transition.cpp
/// Tells the planner that all is prepared, once it is.
void answer_if_prepared(rank_machine&, effects&);

// rank_migration.cpp
/// Whatever the other rank of a move or the own engine says about it.
void hear_move(rank_machine&, const envelope&, const move_key&, time_point now, effects&);
bool moves_open(const rank_machine&);
/// This rank owns no request and may be asking its engine for one all the same: an order to move it
/// came late, and the engine answers when its step ends, which without the dead it never does.
bool only_asks_engine(const rank_machine&);
/// Ends moves to and from ranks that are dead by decision; `ended`: requests that have their
/// response.
void lose_peers(rank_machine&, const std::vector<request_id>& ended, effects&);
/// A move from a dead rank is not over here.
bool takes_from_dead(const rank_machine&);
/// Requests that were committed here and came from dead ranks.
std::vector<request_id> taken_from_dead(const rank_machine&);
void tick_moves(rank_machine&, time_point now, effects&);

void tick_rollout(rank_machine&, time_point now, effects&);
void tick_lease(rank_machine&, time_point now, effects&);

} // namespace adafloor::rank_parts
