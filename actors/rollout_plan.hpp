#pragma once
// From a job, its prompts and the history to the steps that the planner actor executes.
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "messages/rollout.hpp"
#include "planner/plan/history.hpp"

namespace adafloor {

/// One prompt of a step: its index in the prompt file and the rank that generates its samples.
struct placed_prompt {
  std::size_t prompt = 0;
  rank_id home;
};

struct rollout_step {
  std::vector<placed_prompt> prompts;
  std::vector<group_exit> exits; ///< empty: the group never contracts
  std::uint32_t floor = 0;       ///< ranks
  std::uint32_t predicted_tail = 0;
  std::uint32_t response_cap = 0; ///< 0: none below max_response_length
};

/// Plans one epoch of `arm`: the first steps * prompts_per_step prompts of the file, every arm the
/// same set. vanilla takes them in order with a fixed group; natural sorts them by predicted tail,
/// lays them out KV-safe and lets the group shrink to the floor. Errors: bad_input when the file
/// has too few prompts, the history has none of the epochs that the job names, or the arm is
/// unknown.
result<std::vector<rollout_step>> plan_rollouts(const job& task, const std::string& arm,
                                                const std::vector<prompt>& prompts,
                                                const length_history& history);

/// Names the random stream of one sample, whatever step, arm or rank it lands in.
std::uint64_t sample_key(std::uint64_t seed, const std::string& prompt_id, std::uint32_t sample);

} // namespace adafloor
