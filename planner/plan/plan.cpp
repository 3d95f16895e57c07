#include "planner/plan/plan.hpp"

#include "planner/plan/adaptive.hpp"

#include <algorithm>
#include <numeric>

namespace adafloor {

std::string_view name_of(plan_policy policy) {
  switch (policy) {
  case plan_policy::vanilla:
    return "vanilla";
  case plan_policy::lengthsort:
    return "lengthsort";
  case plan_policy::fixed:
    return "fixed";
  case plan_policy::minskew:
    return "minskew";
  case plan_policy::paper:
    return "paper";
  case plan_policy::adaptive:
    break;
  }
  return "adaptive";
}

result<void> check_options(const plan_options& options) {
  auto bad = [](std::string_view key, auto value, std::string_view allowed) {
    return bad_input("plan options: " + std::string{key} + " is " + std::to_string(value)
                     + "; allowed: " + std::string{allowed});
  };
  if (options.world < 1) return bad("world", options.world, "1 or more ranks");
  if (options.prompts_per_step < 1)
    return bad("prompts_per_step", options.prompts_per_step, "1 or more");
  if (options.max_num_seqs < 1) return bad("max_num_seqs", options.max_num_seqs, "1 or more");
  if (options.floor < 0 || options.floor > options.world)
    return bad("floor", options.floor, "auto (0) or 1.." + std::to_string(options.world));
  if (options.kv.margin_milli < 1000)
    return bad("kv margin in thousandths", options.kv.margin_milli, "1000 or more");
  if (options.kv.max_response_length < 1)
    return bad("max_response_length", options.kv.max_response_length, "1 or more tokens");
  if (options.guard && options.guard_ratio < 1)
    return bad("guard ratio", options.guard_ratio, "1 or more");
  if (options.lambda < 1) return bad("lambda", options.lambda, "1 or more");
  // More ranks than experts is allowed: experts are then held more than once.
  for (int size : options.group_sizes)
    if (size < 1) return bad("a group size", size, "1 or more ranks");
  if (options.experts < 1) return bad("experts", options.experts, "1 or more");
  for (const auto& entry : options.capacities)
    if (entry.ranks < 1 || entry.tokens < 1)
      return bad("a KV capacity", entry.tokens, "1 or more tokens at 1 or more ranks");
  return {};
}

namespace {

std::int64_t capacity_for(const plan_options& options, int floor) {
  return capacity_at(options.capacities, floor, options.experts);
}

// q prompts per rank in the given order; the first ranks take one more where it does not divide.
std::vector<std::vector<std::size_t>> in_order(const std::vector<std::size_t>& step, int world) {
  auto ranks = static_cast<std::size_t>(world);
  std::vector<std::vector<std::size_t>> out(ranks);
  std::size_t next = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    auto count = step.size() / ranks + (r < step.size() % ranks ? 1 : 0);
    for (std::size_t i = 0; i < count; ++i)
      out[r].push_back(step[next++]);
  }
  return out;
}

step_plan plain_step(const std::vector<predicted_prompt>& workload,
                     std::vector<std::size_t> prompts, const plan_options& options) {
  step_plan step;
  bool fixed = options.policy == plan_policy::fixed;
  step.ranks = in_order(prompts, options.world);
  step.floor = fixed && options.floor > 0 ? options.floor : options.world;
  std::vector<double> tails;
  for (const auto& rank : step.ranks) {
    double tail = 0;
    std::vector<std::vector<kv_item>> items;
    std::vector<const std::vector<kv_item>*> sets;
    for (auto p : rank) {
      tail = std::max(tail, workload[p].tail);
      items.push_back(kv_items(workload[p], options.kv));
    }
    for (const auto& list : items)
      sets.push_back(&list);
    if (!sets.empty()) step.peak_tokens = std::max(step.peak_tokens, kv_peak(sets) / 1000);
    step.tail = std::max(step.tail, tail);
    tails.push_back(tail);
  }
  if (fixed)
    step.exits = natural_exits(tails, options.world,
                               stage_sizes(options.group_sizes, options.world, step.floor));
  step.area = release_area(step.exits, options.world, step.tail);
  step.prompts = std::move(prompts);
  return step;
}

floor_plan minskew_choice(const std::vector<layout_unit>& units, const plan_options& options) {
  auto stages = stage_sizes(options.group_sizes, options.world, std::max(options.floor, 1));
  std::reverse(stages.begin(), stages.end());
  auto world = static_cast<std::size_t>(options.world);
  for (int floor : stages) {
    auto matching = match_units(units, world, capacity_for(options, floor) * 1000);
    if (!matching) continue;
    return plan_for_matching(units, std::move(*matching), options, floor);
  }
  return full_world(units, options.world, capacity_for(options, options.world) * 1000);
}

step_plan matched_step(const std::vector<predicted_prompt>& workload,
                       std::vector<std::size_t> prompts, const plan_options& options) {
  auto world = static_cast<std::size_t>(options.world);
  auto units = make_units(workload, prompts, world, options.kv);
  floor_plan chosen;
  if (options.policy == plan_policy::paper)
    chosen =
        paper_choice(units, options.world, options.group_sizes, options.capacities, options.floor);
  else if (options.policy == plan_policy::lengthsort)
    chosen = full_world(units, options.world, capacity_for(options, options.world) * 1000);
  else if (options.policy == plan_policy::minskew)
    chosen = minskew_choice(units, options);
  else
    chosen = adaptive_choice(workload, prompts, units, options);
  step_plan step;
  step.prompts = std::move(prompts);
  step.ranks = rank_lists(units, chosen.matching, world);
  step.floor = chosen.floor;
  step.tail = chosen.tail;
  step.exits = std::move(chosen.exits);
  step.area = chosen.area;
  step.peak_tokens = chosen.peak / 1000;
  return step;
}

} // namespace

floor_plan plan_for_matching(const std::vector<layout_unit>& units, mates matching,
                             const plan_options& options, int floor) {
  floor_plan plan;
  plan.floor = floor;
  plan.peak = largest_peak(units, matching);
  std::vector<double> tails;
  for (std::size_t a = 0; a < units.size(); ++a) {
    if (!matching.empty() && matching[a] < a) continue;
    auto other = matching.empty() ? 0 : units[matching[a]].tail;
    tails.push_back(static_cast<double>(std::max(units[a].tail, other)));
    plan.tail = std::max(plan.tail, tails.back());
  }
  plan.matching = std::move(matching);
  plan.exits =
      natural_exits(tails, options.world, stage_sizes(options.group_sizes, options.world, floor));
  plan.area = release_area(plan.exits, options.world, plan.tail);
  return plan;
}

result<epoch_plan> plan_epoch(const std::vector<predicted_prompt>& workload,
                              const plan_options& options) {
  if (auto checked = check_options(options); !checked) return tl::unexpected(checked.error());
  bool sort = options.policy != plan_policy::vanilla;
  bool plain = options.policy == plan_policy::vanilla || options.policy == plan_policy::fixed;
  epoch_plan plan;
  plan.guard_ratio = options.guard_ratio;
  for (const auto& prompt : workload)
    plan.unknown_prompts += prompt.known ? 0 : 1;
  auto steps = cut_steps(workload, static_cast<std::size_t>(options.prompts_per_step), sort);
  auto world = static_cast<std::size_t>(options.world);
  if (!plain)
    plan.swaps = repair_steps(steps, workload, world, options.kv,
                              capacity_for(options, options.world) * 1000);
  for (auto& prompts : steps) {
    auto step = plain ? plain_step(workload, std::move(prompts), options)
                      : matched_step(workload, std::move(prompts), options);
    step.capacity_tokens = capacity_for(options, step.floor);
    step.over_capacity = step.peak_tokens > step.capacity_tokens;
    if (options.guard)
      step.guard_cap = guard_cap(options.guard_ratio, step.tail, options.kv.max_response_length,
                                 options.guard_rule);
    plan.steps.push_back(std::move(step));
  }
  return plan;
}

} // namespace adafloor
