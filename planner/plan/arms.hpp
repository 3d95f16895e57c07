#pragma once
// The policies that `adafloor simulate` compares, and what none of them can beat.
#include "planner/plan/simulate.hpp"

namespace adafloor {

struct arm_spec {
  std::string name;
  plan_options options;
  sim_controls controls;
  bool oracle = false; ///< plans and decides with the true lengths
};

/// What arms are made from. `base` holds everything that they share; policy, floor, residency,
/// migration, guard and capacities are the arm's own.
struct arm_base {
  plan_options base;
  std::vector<group_capacity> natural; ///< KV tokens per rank at each size
  std::vector<group_capacity> planned; ///< the same with resident groups; empty: as natural
  bool guard = true;                   ///< of the arms whose name does not say
  migrate_kind migrate = migrate_kind::consolidate; ///< of adaptive_migrate
};

/// Names of all arms, in the order in which they are reported.
std::vector<std::string> arm_names();

/// Errors: bad_input with the nearest known name.
result<arm_spec> make_arm(std::string_view name, const arm_base& base);

/// An epoch under one arm.
struct arm_result {
  std::string arm;
  int world = 0;
  int floor = 0; ///< smallest group that any step reached
  double seconds = 0;
  sim_ledger ledger;
  std::int64_t generated_tokens = 0;
  int responses = 0, truncated_by_guard = 0, preemptions = 0, migrations = 0;
  double migrated_tokens = 0, blackout_seconds = 0;
  int leases = 0; ///< ranks that left, summed over exits
  epoch_plan plan;
  std::vector<step_result> steps;
};

/// Plans and simulates one epoch. `predicted` belongs to `truth` index by index; an oracle ignores
/// it. Errors: as plan_epoch.
result<arm_result> run_arm(const arm_spec& arm, const std::vector<prompt_lengths>& truth,
                           const std::vector<predicted_prompt>& predicted);

/// The least objective bound, in rank-seconds, that any policy can have on the given steps: at each
/// moment the cheapest allowed group that holds the live requests by number and by tokens,
/// perfectly packed, with free exits, copies and restores.
double lower_bound(const std::vector<step_plan>& steps, const std::vector<prompt_lengths>& truth,
                   const plan_options& options);

} // namespace adafloor
