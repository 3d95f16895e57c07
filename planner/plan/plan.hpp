#pragma once
// The plan of an epoch: one function, called by `adafloor plan`, the simulator and the runtime.
#include "messages/rollout.hpp"
#include "planner/plan/cost_model.hpp"
#include "planner/plan/guard.hpp"
#include "planner/plan/schedule.hpp"

#include <string>
#include <vector>

namespace adafloor {

enum class plan_policy {
  vanilla,    ///< dataset order, q prompts per rank in order, fixed group
  lengthsort, ///< steps of similar predicted tails, minimum-gap matching, fixed group
  fixed,      ///< sorted neighbours share a rank, always shrinks to the floor, no KV check
  minskew,    ///< minimum-gap matching under the floor's capacity, no quotas
  paper,      ///< the published planner
  adaptive    ///< the default
};

struct plan_options {
  plan_policy policy = plan_policy::adaptive;
  residency_kind residency = residency_kind::natural;
  migrate_kind migrate = migrate_kind::off;
  int world = 16;
  int floor = 0;                             ///< 2, 4, 8, ...; 0: auto
  std::vector<int> group_sizes{16, 8, 4, 2}; ///< sizes the group may have (`ep.group_sizes`)
  std::vector<group_capacity> capacities;    ///< KV tokens per rank; empty: no limit
  int experts = 128;
  int prompts_per_step = 32;
  int max_num_seqs = 32;
  int stragglers_max = 8;   ///< requests that one assisted exit may move with migrate = stragglers
  bool resize_pool = false; ///< the KV pool grows and shrinks with the group
  kv_options kv;
  prediction_options prediction; ///< for the conditioning on survival
  bool guard = false;
  double guard_ratio = 1.20;
  guard_options guard_rule;
  double lambda = 1;        ///< weight of time: lambda * W * T - leased
  int scenarios = 12;       ///< resampled futures per decision
  std::uint64_t seed = 1;   ///< of the resampling
  double floor_gain = 0.01; ///< another floor than the deepest must gain at least this share
  cost_model costs;
};

/// One step of the epoch. Ranks are numbered 0..world-1; prompts by index into the workload.
struct step_plan {
  std::vector<std::size_t> prompts;
  std::vector<std::vector<std::size_t>> ranks; ///< prompts of each rank, in order
  int floor = 0;
  double tail = 0; ///< predicted end, decode steps
  std::vector<planned_exit> exits;
  double area = 0;                  ///< predicted release, rank-tokens
  std::int32_t guard_cap = 0;       ///< response cap; 0: none
  std::int64_t capacity_tokens = 0; ///< KV pool of one rank while the pool is not resized
  std::int64_t peak_tokens = 0;     ///< largest A_mu of a rank
  bool over_capacity = false;       ///< the peak exceeds the pool: expect preemption
};

struct epoch_plan {
  std::vector<step_plan> steps;
  double guard_ratio = 1.20;
  int unknown_prompts = 0;
  int swaps = 0; ///< cross-step repair
};

/// Plans one epoch: each prompt of `workload` (dataset order) exactly once. Pure; the same inputs
/// give the same plan. Errors: bad_input naming the option, its value and what is allowed.
result<epoch_plan> plan_epoch(const std::vector<predicted_prompt>& workload,
                              const plan_options& options);

/// Checks the options alone (plan_epoch does it too).
result<void> check_options(const plan_options& options);

std::string_view name_of(plan_policy policy);

} // namespace adafloor
