#pragma once
// What a rank's time was spent on, for the ledger: intervals that touch and cover.
#include "messages/rollout.hpp"

namespace adafloor {

/// Bound of intervals per rollout; beyond it time goes on counting as the last state.
constexpr std::size_t timeline_intervals_max = 4096;

/// Fed by two sources, the engine and the lease gate, whose time stamps may come slightly out of
/// order: a stamp before the last change counts as the last change, so no time is lost or doubled.
/// All times on one clock, the rank's own.
struct timeline {
  bool running = false; ///< between begin and finish
  rank_state engine = rank_state::idle;
  bool leased = false;
  rank_state current = rank_state::idle;
  microseconds began_at{0};   ///< of the rollout
  microseconds changed_at{0}; ///< where `current` began
  std::vector<interval> intervals;
};

/// A new rollout begins; what is known about engine and lease stays.
void begin(timeline&, microseconds at);
void note_engine(timeline&, rank_state state, microseconds at);
/// Being lent goes before whatever the engine says.
void note_lease(timeline&, bool leased, microseconds at);
/// Intervals that cover [began_at, ended_at] exactly, all moved by `shift` (planner's clock minus
/// own clock) except that the outer ends are `planner_began` and `planner_ended`, which the rank
/// cannot estimate better than the planner knows them. Empty intervals are left out.
std::vector<interval> finish(timeline&, microseconds planner_began, microseconds planner_ended,
                             microseconds shift);

} // namespace adafloor
