#include "planner/plan/adaptive.hpp"

#include "planner/plan/future.hpp"

#include <algorithm>

namespace adafloor {
namespace {

// The step before its first token: every request of the layout, nothing generated.
exit_view fresh_view(const std::vector<predicted_prompt>& workload,
                     const std::vector<std::vector<std::size_t>>& ranks,
                     const plan_options& options) {
  exit_view view;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    rank_id rank{static_cast<std::uint32_t>(r)};
    view.members.push_back(rank);
    for (auto prompt : ranks[r])
      for (std::size_t i = 0; i < workload[prompt].lengths.size(); ++i)
        view.live.push_back({view.live.size(), prompt, rank, 0,
                             options.kv.count_prompt_tokens
                                 ? static_cast<double>(workload[prompt].prompt_tokens)
                                 : 0});
  }
  return view;
}

struct candidate {
  floor_plan plan;
  double value = 0;
};

// Big steps cost time per future, and their many requests average each other out.
int futures_for(std::size_t requests, int scenarios) {
  if (requests > 8192) return std::min(scenarios, 2);
  return std::max(1, requests > 1024 ? std::min(scenarios, 4) : scenarios);
}

void weigh(candidate& c, const std::vector<predicted_prompt>& workload,
           const std::vector<std::size_t>& prompts, const std::vector<layout_unit>& units,
           const plan_options& options) {
  step_plan step;
  step.prompts = prompts;
  step.exits = c.plan.exits;
  step.capacity_tokens = capacity_at(options.capacities, c.plan.floor, options.experts);
  auto ranks = rank_lists(units, c.plan.matching, static_cast<std::size_t>(options.world));
  auto view = fresh_view(workload, ranks, options);
  if (view.live.empty()) return;
  survival_model model{workload, prompts};
  exit_memory memory;
  auto rules = rules_for(step, options, options.world);
  double limit = options.kv.max_response_length;
  auto futures = sample_finals(memory, model, view.live, limit, options.seed,
                               futures_for(view.live.size(), options.scenarios));
  auto worth = expected_values(view, rules, futures, options);
  c.value = std::min(*std::min_element(worth.now.begin(), worth.now.end()),
                     *std::min_element(worth.wait.begin(), worth.wait.end()));
  auto times = expected_times(view, rules, futures, options);
  for (std::size_t i = 0; i < c.plan.exits.size(); ++i)
    c.plan.exits[i].at = times[i + 1]; // rules list the same sizes after the world's own
}

} // namespace

floor_plan adaptive_choice(const std::vector<predicted_prompt>& workload,
                           const std::vector<std::size_t>& prompts,
                           const std::vector<layout_unit>& units, const plan_options& options) {
  constexpr std::size_t floors_weighed = 3;
  auto stages = stage_sizes(options.group_sizes, options.world, std::max(options.floor, 1));
  std::reverse(stages.begin(), stages.end());
  auto world = static_cast<std::size_t>(options.world);
  std::vector<candidate> candidates;
  for (int floor : stages) {
    // A pool that is resized with the group binds at each size on its own.
    int bound_at = options.resize_pool ? options.world : floor;
    auto capacity = capacity_at(options.capacities, bound_at, options.experts) * 1000;
    auto matching = match_units(units, world, capacity);
    if (!matching) continue;
    candidate c;
    c.plan = plan_for_matching(units, std::move(*matching), options, floor);
    weigh(c, workload, prompts, units, options);
    candidates.push_back(std::move(c));
    // With a pool of its own at each size a shallower floor only takes choices away.
    if (options.resize_pool || candidates.size() == floors_weighed) break;
  }
  if (candidates.empty())
    return full_world(units, options.world,
                      capacity_at(options.capacities, options.world, options.experts) * 1000);
  auto best = candidates.begin();
  for (auto c = candidates.begin(); c != candidates.end(); ++c)
    if (c->value < best->value) best = c;
  auto& deepest = candidates.front();
  bool worth_it = best->value <= deepest.value * (1 - options.floor_gain);
  return std::move(worth_it ? best->plan : deepest.plan);
}

} // namespace adafloor
