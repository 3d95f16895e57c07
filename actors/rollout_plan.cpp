#include "actors/rollout_plan.hpp"

#include "planner/plan/plan.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {
namespace {

std::vector<prompt_lengths> workload_of(const job& task, const std::vector<prompt>& prompts,
                                        std::size_t count) {
  std::vector<prompt_lengths> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back({prompts[i].id, static_cast<std::int32_t>(i),
                   static_cast<std::int32_t>(prompts[i].tokens.size()),
                   std::vector<std::int32_t>(task.n, 0)});
  return out;
}

result<epoch_list> past_of(const job& task, const length_history& history) {
  epoch_list past;
  for (std::uint32_t e = 0; e < history.epochs.size(); ++e) {
    const auto& named = task.history_epochs;
    const bool from_run = history.epochs[e].rfind("run-", 0) == 0; // What this run has produced.
    if (named.empty() || from_run
        || std::find(named.begin(), named.end(), history.epochs[e]) != named.end())
      past.push_back(epoch_prompts(history, e));
  }
  if (past.empty() && !task.history.empty()) {
    std::string known;
    for (const auto& e : history.epochs)
      known += (known.empty() ? "" : ", ") + e;
    return bad_input(task.history
                     + ": none of the epochs that history_epochs names is there; it has " + known);
  }
  return past;
}

plan_options options_of(const job& task, const std::string& arm) {
  plan_options o;
  o.policy = arm == "vanilla" ? plan_policy::vanilla : plan_policy::paper;
  o.world = static_cast<int>(task.world_size);
  o.floor = static_cast<int>(task.ep.floor);
  o.group_sizes.assign(task.ep.group_sizes.begin(), task.ep.group_sizes.end());
  for (const auto size : o.group_sizes)
    o.capacities.push_back({size, static_cast<std::int64_t>(task.kv.capacity_tokens)});
  o.prompts_per_step = static_cast<int>(task.prompts_per_step);
  o.max_num_seqs = static_cast<int>(task.rollout.max_num_seqs);
  o.kv.margin_milli = static_cast<std::int32_t>(std::lround(task.kv.margin * 1000));
  o.kv.max_response_length = static_cast<std::int32_t>(task.rollout.max_response_length);
  o.kv.count_prompt_tokens = task.kv.count_prompt_tokens;
  o.guard = task.guard.enabled && arm != "vanilla";
  o.guard_rule.quantile = task.guard.quantile;
  return o;
}

/// A plan that contracts may also take the stages below its floor when the rollout outlives the
/// predicted tail, as far as the KV cache is safe there: they cost nothing unless they happen.
void add_late_exits(const step_plan& planned, const plan_options& o, rollout_step* out) {
  for (const auto size : o.group_sizes)
    if (size < planned.exits.back().to && size >= o.floor
        && planned.peak_tokens <= capacity_at(o.capacities, size, o.experts))
      out->exits.push_back({out->predicted_tail, static_cast<std::uint32_t>(size)});
}

rollout_step to_rollout_step(const step_plan& planned, const plan_options& o) {
  rollout_step out;
  const auto world = static_cast<std::uint32_t>(o.world);
  for (std::uint32_t r = 0; r < planned.ranks.size(); ++r)
    for (const auto p : planned.ranks[r])
      out.prompts.push_back({p, rank_id(r)});
  for (const auto& x : planned.exits)
    out.exits.push_back(
        {static_cast<std::uint32_t>(std::lround(x.at)), static_cast<std::uint32_t>(x.to)});
  out.predicted_tail = static_cast<std::uint32_t>(std::lround(planned.tail));
  if (!planned.exits.empty()) add_late_exits(planned, o, &out);
  out.floor = out.exits.empty() ? world : out.exits.back().to;
  out.response_cap = static_cast<std::uint32_t>(planned.guard_cap);
  return out;
}

} // namespace

result<std::vector<rollout_step>> plan_rollouts(const job& task, const std::string& arm,
                                                const std::vector<prompt>& prompts,
                                                const length_history& history) {
  if (arm != "vanilla" && arm != "natural")
    return bad_input("arm '" + arm + "' is unknown; arms are vanilla and natural");
  const std::size_t count = std::size_t{task.steps} * task.prompts_per_step;
  if (count > prompts.size())
    return bad_input(task.prompts + " has " + std::to_string(prompts.size()) + " prompts, but "
                     + std::to_string(task.steps) + " steps of "
                     + std::to_string(task.prompts_per_step) + " need " + std::to_string(count)
                     + "; lower --steps or --prompts-per-step");
  const auto past = past_of(task, history);
  if (!past) return tl::unexpected(past.error());
  prediction_options prediction;
  prediction.max_response_length = static_cast<std::int32_t>(task.rollout.max_response_length);
  prediction.responses_per_prompt = static_cast<std::int32_t>(task.n);
  auto options = options_of(task, arm);
  options.prediction = prediction;
  options.guard_ratio = task.guard.ratio > 0
                            ? task.guard.ratio
                            : fit_guard(*past, prediction, options.guard_rule).ratio;
  const auto plan =
      plan_epoch(predict(*past, workload_of(task, prompts, count), prediction), options);
  if (!plan) return tl::unexpected(plan.error());
  std::vector<rollout_step> steps;
  for (const auto& s : plan->steps)
    steps.push_back(to_rollout_step(s, options));
  return steps;
}

std::uint64_t sample_key(std::uint64_t seed, const std::string& prompt_id, std::uint32_t sample) {
  std::uint64_t hash = 14695981039346656037ull ^ seed; // FNV-1a, then the splitmix64 finalizer.
  for (const unsigned char c : prompt_id)
    hash = (hash ^ c) * 1099511628211ull;
  hash += 0x9e3779b97f4a7c15ull * (sample + 1ull);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
  return hash ^ (hash >> 31);
}

} // namespace adafloor
