#include "planner/plan/arms.hpp"

#include "planner/plan/nearest.hpp"

#include <algorithm>
#include <limits>

namespace adafloor {

std::vector<std::string> arm_names() {
  return {"vanilla",          "striped",          "lengthsort",    "lengthsort_striped",
          "lengthsort_guard", "fixed4",           "minskew",       "adafloor_n_f4",
          "adafloor_n_f2",    "adafloor_p_f4",    "adafloor_p_f2", "adafloor_n_f2_noguard",
          "adaptive",         "adaptive_migrate", "oracle"};
}

namespace {

// The published planner halves; free sizes are ours.
std::vector<int> halvings(int world) {
  std::vector<int> out;
  for (int size = world; size >= 2; size /= 2)
    out.push_back(size);
  return out;
}

bool starts(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

} // namespace

result<arm_spec> make_arm(std::string_view name, const arm_base& base) {
  auto names = arm_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    return bad_input("arm \"" + std::string{name} + "\" is unknown; nearest: "
                     + nearest_name(name, names) + " (`--arms all` runs every arm)");
  arm_spec arm;
  arm.name = name;
  arm.options = base.base;
  auto& o = arm.options;
  o.capacities = base.natural;
  o.migrate = migrate_kind::off;
  o.resize_pool = false;
  o.residency = residency_kind::natural;
  o.floor = 0;
  o.guard = base.guard && name != "vanilla" && name != "striped" && name != "oracle"
            && name != "adafloor_n_f2_noguard";
  arm.controls.stripe = name == "striped" || name == "lengthsort_striped";
  if (name == "vanilla" || name == "striped") {
    o.policy = plan_policy::vanilla;
  } else if (starts(name, "lengthsort")) {
    o.policy = plan_policy::lengthsort;
    o.guard = o.guard || name == "lengthsort_guard";
  } else if (name == "fixed4") {
    o.policy = plan_policy::fixed;
    o.group_sizes = halvings(o.world);
    o.floor = std::min(4, o.world);
  } else if (name == "minskew") {
    o.policy = plan_policy::minskew;
    o.group_sizes = halvings(o.world);
  } else if (starts(name, "adafloor_")) {
    o.policy = plan_policy::paper;
    o.group_sizes = halvings(o.world);
    o.floor = std::min(name.find("_f4") != std::string_view::npos ? 4 : 2, o.world);
    if (starts(name, "adafloor_p")) {
      o.residency = residency_kind::planned;
      if (!base.planned.empty()) o.capacities = base.planned;
    }
  } else {
    o.policy = plan_policy::adaptive;
    o.floor = base.base.floor;
    if (name != "adaptive") {
      o.migrate = base.migrate;
      o.resize_pool = base.base.resize_pool;
    }
    arm.oracle = name == "oracle";
    if (arm.oracle) {
      o.kv.count_prompt_tokens = true;
      o.kv.margin_milli = 1000;
      o.scenarios = 1;
    }
    arm.controls.oracle = arm.oracle;
  }
  return arm;
}

result<arm_result> run_arm(const arm_spec& arm, const std::vector<prompt_lengths>& truth,
                           const std::vector<predicted_prompt>& predicted) {
  std::vector<predicted_prompt> known;
  if (arm.oracle) known = predict({truth}, truth, arm.options.prediction);
  const auto& used = arm.oracle ? known : predicted;
  auto plan = plan_epoch(used, arm.options);
  if (!plan) return tl::unexpected(plan.error());
  arm_result out;
  out.arm = arm.name;
  out.world = out.floor = arm.options.world;
  for (const auto& step : plan->steps) {
    auto result = simulate_step(step, truth, used, arm.options, arm.controls);
    out.seconds += result.seconds;
    out.ledger += result.ledger;
    out.generated_tokens += result.generated_tokens;
    out.responses += result.responses;
    out.truncated_by_guard += result.truncated_by_guard;
    out.preemptions += result.preemptions;
    out.migrations += result.migrations;
    out.migrated_tokens += result.migrated_tokens;
    out.blackout_seconds = std::max(out.blackout_seconds, result.longest_copy_seconds);
    for (const auto& transition : result.transitions) {
      out.floor = std::min(out.floor, transition.to);
      out.leases += transition.from - transition.to;
    }
    out.steps.push_back(std::move(result));
  }
  assert_exact(out.ledger);
  out.plan = std::move(*plan);
  return out;
}

namespace {

// Least rank-ms of one decode step with `live` requests of `tokens` each.
double least_rank_ms(const plan_options& options, int live, double tokens) {
  double best = std::numeric_limits<double>::infinity();
  auto sizes = options.group_sizes;
  sizes.push_back(options.world);
  for (int size : sizes) {
    if (size > options.world) continue;
    bool fits = live <= size * options.max_num_seqs
                && live * tokens <= static_cast<double>(size)
                                        * static_cast<double>(
                                            capacity_at(options.capacities, size, options.experts));
    if (!fits && size < options.world) continue;
    int fewest = std::min(size, (live + options.max_num_seqs - 1) / options.max_num_seqs);
    for (int active = std::max(1, fewest); active <= std::min(size, live); ++active) {
      int batch = (live + active - 1) / active;
      auto cost = decode_cost(options.costs, size, active, batch, live);
      double widest = std::max(tokens, live * tokens / active);
      best = std::min(best, size * (cost.constant_ms + cost.per_max_kv_ms * widest));
    }
  }
  return best;
}

} // namespace

double lower_bound(const std::vector<step_plan>& steps, const std::vector<prompt_lengths>& truth,
                   const plan_options& options) {
  double sum = 0;
  for (const auto& step : steps) {
    std::vector<std::int32_t> lengths;
    for (auto prompt : step.prompts)
      for (auto length : truth[prompt].lengths) {
        length = std::min(length, options.kv.max_response_length);
        lengths.push_back(step.guard_cap > 0 ? std::min(length, step.guard_cap) : length);
      }
    std::sort(lengths.begin(), lengths.end());
    double at = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] <= at) continue;
      double steps_here = lengths[i] - at;
      sum += steps_here * least_rank_ms(options, static_cast<int>(lengths.size() - i), at) / 1000;
      at = lengths[i];
    }
    sum += options.world * options.costs.fixed_seconds;
  }
  return sum;
}

} // namespace adafloor
