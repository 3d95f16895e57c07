#pragma once
// How the files of the planner machine reach each other. Nobody else includes this.
#include "planner/protocol/planner.hpp"

namespace adafloor::planner_parts {

using phase = planner_machine::phase;

inline address local(const planner_machine& m, role_kind role) {
  return role_at(m.config.self, role);
}
inline void enter(planner_machine& m, phase next, time_point now) {
  m.now_in = next;
  m.phase_began_at = now;
}

// planner.cpp
/// The world is not usable any more: tells the trainer and obeys nothing but `stop` from here on.
void fail_world(planner_machine&, std::string text, bool peer_lost, effects&);
/// "rank 1, 4"
std::string name_ranks(const std::vector<rank_id>& ranks);

// planner_rollout.cpp
void begin_admission(planner_machine&, const begin_rollout&, time_point now, effects&);
void hear_admitted(planner_machine&, rank_id, const requests_admitted&, time_point now, effects&);
void hear_started(planner_machine&, rank_id, const rollout_started&, time_point now, effects&);
void hear_response(planner_machine&, rank_id, const response&, time_point now, effects&);
void hear_kept(planner_machine&, const response_kept&, time_point now, effects&);
void hear_tokens(planner_machine&, const envelope&, const token_batch&, effects&);
void hear_tokens_kept(planner_machine&, const tokens_kept&, effects&);
void hear_progress(planner_machine&, rank_id, const rank_progress&, time_point now, effects&);
void hear_report(planner_machine&, const envelope&, const rollout_report&, time_point now,
                 effects&);
/// True unless `lockstep` waits for what some member has to tell of the newest step.
bool in_step(const planner_machine&);
/// Acknowledges the response that was held back, if any.
void let_time_pass(planner_machine&, effects&);
void close_books(planner_machine&, time_point now, effects&);
/// Sends what the window of unacknowledged parts has room for.
void send_parts(planner_machine&, rank_id, planner_machine::rank_part&, time_point now, effects&);
bool all_admitted(const planner_machine::rank_part&);
/// The phase goes on when no rank is waited for any more.
void start_if_admitted(planner_machine&, time_point now, effects&);
void run_if_started(planner_machine&, time_point now, effects&);
void end_if_reported(planner_machine&, time_point now, effects&);
void tick_rollout(planner_machine&, time_point now, effects&);

// planner_exits.cpp
/// Why the rules cannot be obeyed, or empty.
std::string objection_to_rules(const begin_rollout&);
/// Sets up what exits are decided from; the requests of the rollout are there already.
void take_rules(planner_machine&, const begin_rollout&);
/// A request of `rank` ended at `step`: the next that waits there starts.
void start_next(planner_machine&, rank_id, std::uint64_t step);
/// The members of the smaller group to form now, or nothing. May order requests to move first; then
/// it is to be asked again when no move is open any more.
std::optional<std::vector<rank_id>> due_group(planner_machine&, time_point now, effects&);

// planner_group.cpp
/// Does what is due next while responses come in: contract the group, or, when every response is
/// durable, bring the full world back.
void advance(planner_machine&, time_point now, effects&);
/// Tells the broker again of all ranks that may be lent: their windows are predicted anew.
void tell_windows(planner_machine&, time_point now, effects&);
void hear_transition(planner_machine&, const envelope&, time_point now, effects&);
void hear_recalled(planner_machine&, const leases_recalled&, time_point now, effects&);
void tick_group(planner_machine&, time_point now, effects&);
void begin_restoration(planner_machine&, time_point now, effects&);
/// Every expert at home, as far as its home is in the world.
std::vector<rank_id> restored_owners(const planner_machine&);
/// The group of a transition that is committed is the group from then on.
void take_over_group(planner_machine&);

// planner_recovery.cpp
/// `rank` is dead by decision.
void lose_rank(planner_machine&, const member_lost&, time_point now, effects&);
/// Commits the group without the dead as soon as it can go on generating.
void go_on_with_recovery(planner_machine&, time_point now, effects&);
/// The survivors gave a group without the dead up: tries again, with an epoch of its own.
void retry_recovery(planner_machine&, time_point now, effects&);
/// The group without the dead runs and has settled.
void conclude_recovery(planner_machine&, time_point now, effects&);
/// A survivor is prepared, and says what it took over from the dead.
void hear_taken(planner_machine&, rank_id, const prepared&);
/// An engine waits for a peer in vain.
void suspect(planner_machine&, const envelope&, std::string text, time_point now);
void tick_recovery(planner_machine&, time_point now, effects&);

// planner_migration.cpp
/// A response of `request` came from `rank`: if it was moving there, it has arrived.
void note_arrival(planner_machine&, request_id, rank_id);
/// From here on the request counts for `to`.
void rehome(planner_machine&, planner_machine::request_part&, rank_id to);
void hear_moved(planner_machine&, const envelope&, const request_moved&, time_point now, effects&);
void tick_moves(planner_machine&, time_point now, effects&);

// planner.cpp
void hear_local(planner_machine&, const envelope&, time_point now, effects&);

// planner_orders.cpp
void begin_weights(planner_machine&, const update_weights&, time_point now, effects&);
void hear_weights(planner_machine&, rank_id, const weights_updated&, effects&);
void hear_weights(planner_machine&, rank_id, const weights_refused&, effects&);
void begin_stop(planner_machine&, const stop&, time_point now, effects&);
void hear_stopped(planner_machine&, rank_id, effects&);
void tick_orders(planner_machine&, time_point now, effects&);

} // namespace adafloor::planner_parts
