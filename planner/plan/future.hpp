#pragma once
// From what is known now to what exits are worth: scenarios put through the dynamic programme.
#include "planner/plan/exit_value.hpp"
#include "planner/plan/scenario.hpp"

namespace adafloor {

/// The limits under which a step runs at each size.
struct future_rules {
  std::vector<int> sizes;             ///< descending; sizes[0] is the present group
  std::vector<std::int64_t> capacity; ///< KV tokens per rank at each of them
  int movable = 0;                    ///< requests that one exit may move; 0: natural residency
  bool planned = false;               ///< planned residency: the last members stay
};

/// The rules of `plan` for a group of `group`.
future_rules rules_for(const step_plan& plan, const plan_options& options, int group);

/// One future of the requests of `view` with the given final response tokens.
exit_future build_future(const exit_view& view, const std::vector<double>& finals,
                         const future_rules& rules, const plan_options& options);

/// Mean of exit_values over `futures`. A target that is impossible in some future counts there as
/// staying to the end. Only sizes that seem possible now have a finite `now`: whether the requests
/// really pack is for the caller to check.
exit_worth expected_values(const exit_view& view, const future_rules& rules,
                           const std::vector<std::vector<double>>& futures,
                           const plan_options& options);

/// Mean decode step at which each size becomes possible (index 0: 0); the end of the step where it
/// does not.
std::vector<double> expected_times(const exit_view& view, const future_rules& rules,
                                   const std::vector<std::vector<double>>& futures,
                                   const plan_options& options);

} // namespace adafloor
