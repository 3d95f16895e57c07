#include "actors/equal_work.hpp"

#include "planner/plan/simulate.hpp"

namespace adafloor {
namespace {

/// One step as the simulator takes it: prompts are numbered within the step.
struct replay {
  step_plan plan;
  std::vector<predicted_prompt> predicted;
  std::vector<prompt_lengths> truth;
};

std::optional<replay> replay_of(const rollout_step& step, const plan_options& options,
                                const std::map<response_key, std::int32_t>& tokens) {
  replay out;
  out.plan.ranks.resize(static_cast<std::size_t>(options.world));
  for (std::size_t i = 0; i < step.prompts.size(); ++i) {
    const auto& placed = step.prompts[i];
    const auto& known = step.rules.forecasts[i];
    out.plan.prompts.push_back(i);
    out.plan.ranks[placed.home.value].push_back(i);
    predicted_prompt p;
    p.prompt_tokens = static_cast<std::int32_t>(known.prompt_tokens);
    p.lengths = known.lengths;
    p.pool = known.pool;
    p.known = known.known;
    out.predicted.push_back(std::move(p));
    prompt_lengths truth;
    truth.prompt_tokens = static_cast<std::int32_t>(known.prompt_tokens);
    for (std::uint32_t sample = 0;; ++sample) {
      const auto found = tokens.find({placed.prompt, sample});
      if (found == tokens.end()) break;
      truth.lengths.push_back(found->second);
    }
    if (truth.lengths.empty()) return std::nullopt;
    out.truth.push_back(std::move(truth));
  }
  for (const auto& exit : step.exits)
    out.plan.exits.push_back({static_cast<double>(exit.at), static_cast<int>(exit.to)});
  out.plan.floor = static_cast<int>(step.floor);
  out.plan.tail = step.predicted_tail;
  out.plan.guard_cap = static_cast<std::int32_t>(step.response_cap);
  out.plan.capacity_tokens = static_cast<std::int64_t>(step.rules.capacity_tokens);
  return out;
}

} // namespace

std::uint64_t finished_arm::generated_tokens() const {
  std::uint64_t sum = 0;
  for (const auto& epoch : tokens)
    for (const auto& [key, length] : epoch)
      sum += static_cast<std::uint64_t>(length);
  return sum;
}

std::optional<double> equal_work_ratio(const finished_arm& cut, const finished_arm& full,
                                       const plan_options& options) {
  if (full.tokens.size() != cut.epochs.size()) return std::nullopt;
  double as_cut = 0, whole = 0;
  for (std::size_t e = 0; e < cut.epochs.size(); ++e)
    for (const auto& step : cut.epochs[e]) {
      const auto played = replay_of(step, options, full.tokens[e]);
      if (!played) return std::nullopt;
      for (const bool capped : {true, false}) {
        sim_controls controls;
        controls.apply_guard_cap = capped;
        const auto seconds =
            simulate_step(played->plan, played->truth, played->predicted, options, controls)
                .seconds;
        (capped ? as_cut : whole) += seconds;
      }
    }
  if (as_cut <= 0) return std::nullopt;
  return whole / as_cut;
}

} // namespace adafloor
