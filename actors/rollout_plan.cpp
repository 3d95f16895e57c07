#include "actors/rollout_plan.hpp"

#include "gpu/engine.hpp"

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

constexpr const char* run_epoch_prefix = "run-"; ///< of epochs that a run has produced
constexpr std::ptrdiff_t run_epochs_kept = 64;

bool is_of_run(const std::string& epoch) {
  return epoch.rfind(run_epoch_prefix, 0) == 0;
}

result<epoch_list> past_of(const job& task, const length_history& history) {
  epoch_list past;
  for (std::uint32_t e = 0; e < history.epochs.size(); ++e) {
    const auto& named = task.history_epochs;
    if (named.empty() || is_of_run(history.epochs[e])
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

/// What the engine admits together on one rank: it promises each request the pages of its longest
/// response, but on the emulated device admits what fits now, as the simulator does.
int places_of(const job& task, const std::vector<group_capacity>& capacities) {
  if (is_emulated(task)) return static_cast<int>(task.rollout.max_num_seqs);
  const auto longest = task.rollout.max_prompt_length + task.rollout.max_response_length;
  const auto held = (longest + kv_page_tokens - 1) / kv_page_tokens * kv_page_tokens;
  const auto at_home = capacities.empty() ? task.kv.capacity_tokens
                                          : static_cast<std::uint64_t>(capacities.front().tokens);
  const auto fit = std::max<std::uint64_t>(at_home / held, 1);
  return static_cast<int>(std::min<std::uint64_t>(fit, task.rollout.max_num_seqs));
}

bool plans_residency(const job& task, const std::string& arm) {
  return arm == "planned" || (arm == "adaptive" && task.ep.residency == "planned");
}

/// Natural exits may go on to the stages below the planned floor when the rollout outlives the
/// predicted tail, as far as the KV cache is safe there: where no cost model prices exits, they
/// cost nothing unless they happen. With one, exits are those that the simulator plays.
void add_late_exits(const step_plan& planned, const plan_options& o, rollout_step* out) {
  for (const auto size : o.group_sizes)
    if (size < planned.exits.back().to && size >= o.floor
        && planned.peak_tokens <= capacity_at(o.capacities, size, o.experts))
      out->exits.push_back({out->predicted_tail, static_cast<std::uint32_t>(size)});
}

rollout_step to_rollout_step(const step_plan& planned,
                             const std::vector<predicted_prompt>& predicted, const plan_options& o,
                             bool exits_are_free) {
  rollout_step out;
  const auto world = static_cast<std::uint32_t>(o.world);
  for (std::uint32_t r = 0; r < planned.ranks.size(); ++r)
    for (const auto p : planned.ranks[r]) {
      out.prompts.push_back({p, rank_id(r)});
      out.rules.forecasts.push_back({static_cast<std::uint32_t>(predicted[p].prompt_tokens),
                                     predicted[p].known, predicted[p].lengths, predicted[p].pool});
    }
  for (const auto& x : planned.exits)
    out.exits.push_back(
        {static_cast<std::uint32_t>(std::lround(x.at)), static_cast<std::uint32_t>(x.to)});
  out.predicted_tail = static_cast<std::uint32_t>(std::lround(planned.tail));
  const bool natural = o.policy == plan_policy::paper && o.residency == residency_kind::natural;
  if (natural && exits_are_free && !planned.exits.empty()) add_late_exits(planned, o, &out);
  out.floor = out.exits.empty() ? world : out.exits.back().to;
  out.response_cap = static_cast<std::uint32_t>(planned.guard_cap);
  out.rules.adaptive = o.policy == plan_policy::adaptive;
  out.rules.residency = o.residency;
  out.rules.migrate = o.migrate;
  out.rules.capacity_tokens = static_cast<std::uint64_t>(planned.capacity_tokens);
  out.rules.response_cap = out.response_cap;
  return out;
}

} // namespace

std::vector<std::string> run_arm_names() {
  return {"vanilla", "natural", "planned", "adaptive"};
}

std::vector<std::vector<rank_id>> kept_groups(const job& task, rank_id rank) {
  std::vector<std::vector<rank_id>> groups;
  if (std::none_of(task.arms.begin(), task.arms.end(),
                   [&](const auto& arm) { return plans_residency(task, arm); }))
    return groups;
  for (const auto size : task.ep.group_sizes) {
    if (rank.value + size < task.world_size) break; // Falling: it is in none of the others either.
    std::vector<rank_id> members;
    for (auto r = task.world_size - size; r < task.world_size; ++r)
      members.emplace_back(r);
    groups.push_back(std::move(members));
  }
  return groups;
}

std::uint64_t resident_tokens(const job& task) {
  const auto kept = kept_groups(task, rank_id(task.world_size - 1)).size();
  return kept > 0 ? (kept - 1) * task.kv.resident_group_tokens : 0;
}

result<plan_options> arm_options(const job& task, const std::string& arm,
                                 const std::vector<group_capacity>& capacities) {
  const auto known = run_arm_names();
  if (std::find(known.begin(), known.end(), arm) == known.end())
    return bad_input("arm '" + arm + "' is unknown; arms are vanilla, natural, planned, adaptive");
  plan_options o;
  o.policy = arm == "vanilla"    ? plan_policy::vanilla
             : arm == "adaptive" ? plan_policy::adaptive
                                 : plan_policy::paper;
  if (plans_residency(task, arm)) o.residency = residency_kind::planned;
  if (arm != "vanilla")
    for (auto kind : {migrate_kind::stragglers, migrate_kind::consolidate})
      if (task.ep.migrate == name_of(kind)) o.migrate = kind;
  if (!task.ep.cost_model.empty()) {
    auto costs = parse_cost_model(task.ep.cost_model, "ep.cost_model");
    if (!costs) return tl::unexpected(costs.error());
    o.costs = std::move(*costs);
  }
  o.stragglers_max = static_cast<int>(task.ep.stragglers_max);
  o.world = static_cast<int>(task.world_size);
  o.floor = static_cast<int>(task.ep.floor);
  o.group_sizes.assign(task.ep.group_sizes.begin(), task.ep.group_sizes.end());
  o.capacities = capacities;
  if (is_emulated(task) && !o.costs.capacity.empty()) {
    const bool resident =
        o.residency == residency_kind::planned && !o.costs.planned_capacity.empty();
    o.capacities = resident ? o.costs.planned_capacity : o.costs.capacity;
  }
  o.prompts_per_step = static_cast<int>(task.prompts_per_step);
  o.max_num_seqs = places_of(task, capacities);
  o.kv.margin_milli = static_cast<std::int32_t>(std::lround(task.kv.margin * 1000));
  o.kv.max_response_length = static_cast<std::int32_t>(task.rollout.max_response_length);
  o.kv.count_prompt_tokens = task.kv.count_prompt_tokens;
  o.prediction.max_response_length = o.kv.max_response_length;
  o.prediction.responses_per_prompt = static_cast<std::int32_t>(task.n);
  o.guard = task.guard.enabled && arm != "vanilla";
  o.guard_rule.quantile = task.guard.quantile;
  o.guard_rule.step_tokens = static_cast<std::int32_t>(task.guard.step_tokens);
  o.guard_rule.least_cap = static_cast<std::int32_t>(task.guard.least_cap);
  for (auto& entry : o.capacities) // The groups are kept through every arm of the job.
    entry.tokens =
        std::max<std::int64_t>(entry.tokens - static_cast<std::int64_t>(resident_tokens(task)), 1);
  return o;
}

result<std::vector<group_capacity>> kv_capacities(const job& task, const model_facts& model) {
  const std::vector<int> sizes(task.ep.group_sizes.begin(), task.ep.group_sizes.end());
  const auto most = static_cast<std::int64_t>(task.kv.capacity_tokens);
  std::vector<group_capacity> table;
  for (const auto size : sizes)
    table.push_back({size, most});
  if (task.kv.rank_memory_bytes == 0) return table;
  memory_model memory;
  memory.device_bytes = static_cast<double>(task.kv.rank_memory_bytes);
  memory.dense_weight_bytes = static_cast<double>(model.dense_bytes);
  memory.expert_bytes = static_cast<double>(model.expert_resident_bytes) / model.layers;
  memory.kv_bytes_per_token = static_cast<double>(model.kv_page_resident_bytes) / kv_page_tokens;
  memory.layers = static_cast<int>(model.layers);
  memory.experts = static_cast<int>(model.experts);
  auto shared = capacities(memory, sizes);
  if (!shared)
    return bad_input("--rank-memory-bytes " + std::to_string(task.kv.rank_memory_bytes) + ": "
                     + shared.error().text);
  for (auto& entry : *shared)
    entry.tokens = std::min(entry.tokens, most);
  return shared;
}

result<std::vector<rollout_step>> plan_rollouts(const job& task, const std::string& arm,
                                                const std::vector<prompt>& prompts,
                                                const length_history& history,
                                                const std::vector<group_capacity>& capacities) {
  auto options = arm_options(task, arm, capacities);
  if (!options) return tl::unexpected(options.error());
  const std::size_t count = std::size_t{task.steps} * task.prompts_per_step;
  if (count > prompts.size())
    return bad_input(task.prompts + " has " + std::to_string(prompts.size()) + " prompts, but "
                     + std::to_string(task.steps) + " steps of "
                     + std::to_string(task.prompts_per_step) + " need " + std::to_string(count)
                     + "; lower --steps or --prompts-per-step");
  const auto past = past_of(task, history);
  if (!past) return tl::unexpected(past.error());
  options->guard_ratio = task.guard.ratio > 0
                             ? task.guard.ratio
                             : fit_guard(*past, options->prediction, options->guard_rule).ratio;
  const auto predicted = predict(*past, workload_of(task, prompts, count), options->prediction);
  const auto plan = plan_epoch(predicted, *options);
  if (!plan) return tl::unexpected(plan.error());
  std::vector<rollout_step> steps;
  for (const auto& s : plan->steps)
    steps.push_back(to_rollout_step(s, predicted, *options, task.ep.cost_model.empty()));
  return steps;
}

std::uint32_t begin_run_epoch(length_history& history) {
  const auto& names = history.epochs;
  if (std::count_if(names.begin(), names.end(), is_of_run) >= run_epochs_kept)
    history.forget_epoch(static_cast<std::uint32_t>(
        std::find_if(names.begin(), names.end(), is_of_run) - names.begin()));
  auto number = names.size() + 1;
  while (history.find_epoch(run_epoch_prefix + std::to_string(number)) >= 0)
    ++number;
  return history.epoch_index(run_epoch_prefix + std::to_string(number));
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
