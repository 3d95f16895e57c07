#pragma once
// The invariants of protocols.md section 8, read off a simulated world. Each throws `violation`.
#include "planner/sim/world.hpp"

namespace adafloor::sim {

/// After every event of node `n`.
void check_node(const world& w, std::uint32_t n);
/// Before `message` is acted on: what it says must be true by then.
void check_delivery(const world& w, const envelope& message);
/// A rank is kept out only for a cause, and is named.
void check_quarantine(const world& w, const rank_quarantined& away);
/// The rollout that the trainer ordered last is done: nothing is missing, nothing left over.
void check_rollout_done(const world& w, const rollout_done& done);
/// When the job has ended.
void check_end(const world& w);

} // namespace adafloor::sim
