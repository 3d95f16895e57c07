#pragma once
// When the EP group gets smaller: quorum schedules and the published planner's choice of floor.
#include "planner/plan/capacity.hpp"
#include "planner/plan/layout.hpp"
#include "planner/plan/roles.hpp"

namespace adafloor {

/// The stages from `world` down to `floor`: the allowed sizes below world and not below floor,
/// descending. Empty if floor >= world.
std::vector<int> stage_sizes(const std::vector<int>& group_sizes, int world, int floor);

/// Predicted release area in rank-tokens, sum over exits of (leavers) * (tail - at).
double release_area(const std::vector<planned_exit>& exits, int world, double tail);

/// Exits of natural residency for given rank tails: at the moment the ranks still predicted to run
/// fit each stage. Ascending in time.
std::vector<planned_exit> natural_exits(std::vector<double> rank_tails, int world,
                                        const std::vector<int>& stages);

/// A step laid out for one floor.
struct floor_plan {
  int floor = 0;
  mates matching;                  ///< of the step's units; empty: one unit per rank
  std::vector<planned_exit> exits; ///< empty if nothing is released
  double area = 0;                 ///< rank-tokens
  double tail = 0;                 ///< predicted end of the step, tokens
  milli_tokens peak = 0;           ///< largest A_mu of a rank
};

/// The published planner for one floor: thresholds come from the units' finish times, candidates in
/// falling area, each checked by an exact matching with quotas under `capacity`; the first feasible
/// one is optimal. Ties: smaller gap, then A_mu, then token balance. Nothing if no matching fits,
/// or if the last exit would be at or after the tail and so release nothing.
std::optional<floor_plan> paper_floor(const std::vector<layout_unit>& units, int world, int floor,
                                      const std::vector<int>& group_sizes, milli_tokens capacity);

/// The published choice over the floors of `capacities`. With `requested` > 0: that floor, and the
/// next larger one where it is infeasible or releases nothing ("natural floor 2" and so on). With
/// 0: largest area; equal area: fewer transitions, then the larger floor. The full world (no exits)
/// if no floor releases anything.
floor_plan paper_choice(const std::vector<layout_unit>& units, int world,
                        const std::vector<int>& group_sizes,
                        const std::vector<group_capacity>& capacities, int requested);

/// The step at the full world: no exits. The minimum-gap matching, or, where even this capacity is
/// exceeded, the one with the smallest peak; then `peak` says so.
floor_plan full_world(const std::vector<layout_unit>& units, int world, milli_tokens capacity);

} // namespace adafloor
