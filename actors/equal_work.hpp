#pragma once
// What a guarded arm would have taken for the same work: TailGuard cuts responses, so its time says
// little beside the time of an arm that generated everything (planner.md section 6).
#include "actors/arm_result.hpp"
#include "actors/rollout_plan.hpp"

#include <optional>

namespace adafloor {

/// What an arm did: the plans of its steps and its response tokens, epoch by epoch.
struct finished_arm {
  std::string arm;
  std::vector<std::vector<rollout_step>> epochs;
  std::vector<std::map<response_key, std::int32_t>> tokens;
  std::uint64_t truncated_by_guard = 0;

  std::uint64_t generated_tokens() const;
};

/// Simulated rollout time of the arm's own steps with the full lengths, over the same with the
/// lengths as they were cut: above 1 where the guard saved time by doing less. `full` generated the
/// same responses without a guard. Nothing where it has not got them all. Uses the job's cost
/// model.
std::optional<double> equal_work_ratio(const finished_arm& cut, const finished_arm& full,
                                       const plan_options& options);

} // namespace adafloor
