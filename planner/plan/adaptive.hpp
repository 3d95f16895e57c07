#pragma once
// The default policy: floor and exits by expectation over resampled futures.
#include "planner/plan/plan.hpp"

namespace adafloor {

/// A floor plan with natural exits for a given matching.
floor_plan plan_for_matching(const std::vector<layout_unit>& units, mates matching,
                             const plan_options& options, int floor);

/// The deepest KV-safe floor, unless another gains at least `floor_gain` of the objective over the
/// scenarios; the exits it lists are the expected ones. An explicit options.floor bounds the depth.
floor_plan adaptive_choice(const std::vector<predicted_prompt>& workload,
                           const std::vector<std::size_t>& prompts,
                           const std::vector<layout_unit>& units, const plan_options& options);

} // namespace adafloor
