#pragma once
// One step of rollouts, simulated event by event and exactly between events.
#include "planner/plan/ledger.hpp"
#include "planner/plan/plan.hpp"

namespace adafloor {

struct sim_transition {
  int from = 0, to = 0;
  double at_step = 0; ///< decode steps since the rollout began
  double at_seconds = 0;
  double pause_seconds = 0;
  int moved = 0;           ///< requests that migrated for it
  double moved_tokens = 0; ///< their KV tokens
};

/// A stretch of time of one rank, for drawing.
struct rank_span {
  enum kind_type : std::uint8_t { busy, dummy, leased, transition, idle } kind = busy;
  int rank = 0;
  double from_seconds = 0, to_seconds = 0;
};

struct step_result {
  double seconds = 0;
  double steps = 0; ///< decode steps until the last response ended
  sim_ledger ledger;
  std::vector<sim_transition> transitions;
  std::int64_t generated_tokens = 0;
  int responses = 0;
  int truncated_by_guard = 0;
  int migrations = 0;
  double migrated_tokens = 0;
  double longest_copy_seconds = 0; ///< of one batch of migrations
  int preemptions = 0;
  bool restored = false;
  double restore_seconds = 0;
  std::vector<rank_span> spans; ///< only if asked for
};

struct sim_controls {
  bool apply_guard_cap = true; ///< false: equal-work replay, exits as planned with the guard
  bool record_spans = false;
  /// What-if: these exits instead of the policy's, each as soon as `at` is reached and the
  /// unfinished ranks fit; in order.
  bool scripted = false;
  std::vector<planned_exit> script;
  bool oracle = false; ///< decisions know the true lengths
  bool stripe = false; ///< spread the samples of each prompt over all ranks, ignoring plan.ranks
};

/// Runs `plan` on the true lengths. `truth[i]` and `predicted[i]` belong to the prompt index i that
/// the plan uses. `options` must be those the plan was made with. Decisions use predictions and
/// what has been seen so far, never the truth to come. Asserts the ledger.
step_result simulate_step(const step_plan& plan, const std::vector<prompt_lengths>& truth,
                          const std::vector<predicted_prompt>& predicted,
                          const plan_options& options, const sim_controls& controls);

} // namespace adafloor
