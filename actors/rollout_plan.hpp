#pragma once
// From a job, its prompts and the history to the steps that the planner actor executes.
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "messages/rollout.hpp"
#include "planner/plan/plan.hpp"

namespace adafloor {

struct model_facts;

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
  exit_rules rules;               ///< one forecast per entry of `prompts`; `rules.prompts` is empty
};

/// KV tokens that one rank holds at each group size of the job: capacity_tokens, or less where its
/// memory budget is shared with more experts. Errors: bad_input when a size leaves no room.
result<std::vector<group_capacity>> kv_capacities(const job& task, const model_facts& model);

/// What `adafloor run` can run, each on the same prompts:
/// vanilla   takes them in order; the group never changes;
/// natural   sorts them by predicted tail, lays them out KV-safe for the floor (the published
///           planner), and lets ranks leave as soon as they are done;
/// planned   the same, with survivors fixed before the step and their groups kept resident;
/// adaptive  chooses floor and exits by what they are worth over resampled futures, again and again
///           while the step runs; residency is `ep.residency`.
/// All but vanilla migrate as `ep.migrate` says.
std::vector<std::string> run_arm_names();

/// The options of an arm of the job, as planner and simulator take them; `capacities` as
/// kv_capacities gives them. Errors: bad_input for an
/// unknown arm or a cost model that cannot be read.
result<plan_options> arm_options(const job& task, const std::string& arm,
                                 const std::vector<group_capacity>& capacities);

/// The groups of `rank` that the job keeps resident: the full world and, for each smaller size, the
/// last ranks. None where no arm has planned residency.
std::vector<std::vector<rank_id>> kept_groups(const job& task, rank_id rank);

/// KV tokens of a rank that kept groups take, at the rank that is in most of them; the full world
/// is there anyway. Part of `kv.capacity_tokens`.
std::uint64_t resident_tokens(const job& task);

/// Plans one epoch of `arm`: the first steps * prompts_per_step prompts of the file, every arm the
/// same set. Errors: bad_input when the file has too few prompts, the history has none of the
/// epochs that the job names, or the arm is unknown.
result<std::vector<rollout_step>> plan_rollouts(const job& task, const std::string& arm,
                                                const std::vector<prompt>& prompts,
                                                const length_history& history,
                                                const std::vector<group_capacity>& capacities);

/// A new epoch, the latest, for what this run produces. With each one beyond 64 the oldest of a run
/// is forgotten: what a plan takes from it is long outweighed, and both the history and the time to
/// plan would grow with the run. Returns its index.
std::uint32_t begin_run_epoch(length_history& history);

/// Names the random stream of one sample, whatever step, arm or rank it lands in.
std::uint64_t sample_key(std::uint64_t seed, const std::string& prompt_id, std::uint32_t sample);

} // namespace adafloor
