// `adafloor plan`: plans an epoch from history and explains it.
#include "apps/commands.hpp"
#include "apps/plan_inputs.hpp"

#include <fmt/format.h>

#include <iostream>
#include <memory>

namespace adafloor {
namespace {

using nlohmann::json;

json step_json(const step_plan& step, const std::vector<predicted_prompt>& prompts) {
  json exits = json::array(), ranks = json::array();
  for (const auto& exit : step.exits)
    exits.push_back({{"at", exit.at}, {"to", exit.to}});
  for (const auto& rank : step.ranks) {
    json ids = json::array();
    for (auto p : rank)
      ids.push_back(prompts[p].id);
    ranks.push_back(std::move(ids));
  }
  return {{"floor", step.floor},
          {"tail", step.tail},
          {"area", step.area},
          {"exits", exits},
          {"guard_cap", step.guard_cap > 0 ? json(step.guard_cap) : json(nullptr)},
          {"ranks", ranks},
          {"peak_tokens", step.peak_tokens},
          {"capacity_tokens", step.capacity_tokens},
          {"over_capacity", step.over_capacity}};
}

void print_plan(const epoch_plan& plan, const plan_inputs& in, const guard_fit& fit) {
  std::cout << fmt::format("{:<5} {:>8} {:>6} {:>10} {:>11} {:>11} {:>10}  {}\n", "step", "prompts",
                           "floor", "tail", "peak KV", "pool", "guard cap", "exits");
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    const auto& step = plan.steps[s];
    std::string exits;
    for (const auto& exit : step.exits)
      exits += fmt::format("{}{} ranks at {:.0f}", exits.empty() ? "" : ", ", exit.to, exit.at);
    auto cap = step.guard_cap > 0 ? std::to_string(step.guard_cap) : std::string{"off"};
    bool limited = !in.arms.natural.empty();
    std::cout << fmt::format("{:<5} {:>8} {:>6} {:>10.0f} {:>11} {:>11} {:>10}  {}{}\n", s + 1,
                             step.prompts.size(), step.floor, step.tail, step.peak_tokens,
                             limited ? std::to_string(step.capacity_tokens) : "no limit", cap,
                             exits.empty() ? "stays whole" : exits,
                             step.over_capacity ? " (exceeds the pool: expect preemption)" : "");
  }
  std::cout << "Tails and exits are decode steps. The epoch's prompts are the same, their order is "
               "by predicted tail.\n"
            << guard_text(fit) << '\n';
  if (plan.unknown_prompts > 0)
    std::cout << fmt::format("{} prompts have no history and take the pooled lengths of the "
                             "others.\n",
                             plan.unknown_prompts);
  if (plan.swaps > 0)
    std::cout << fmt::format("{} prompts moved to a near step so that every rank fits its pool.\n",
                             plan.swaps);
}

int run_plan(const plan_flags& flags, const std::string& policy, bool as_json) {
  auto in = resolve(flags);
  if (!in) return print_error(in.error());
  auto options = in->arms.base;
  if (policy == "paper") {
    options.policy = plan_policy::paper;
  } else if (policy == "adaptive") {
    options.policy = plan_policy::adaptive;
    options.migrate = in->migrate;
  } else {
    return print_error(
        {error_code::bad_input, "--policy " + policy + ": allowed: adaptive, paper"});
  }
  options.residency = in->residency;
  bool planned = in->residency == residency_kind::planned && !in->arms.planned.empty();
  options.capacities = planned ? in->arms.planned : in->arms.natural;
  options.guard = in->arms.guard;
  auto workload = epoch_prompts(in->workload, in->workload_epochs.front());
  auto past = past_epochs(in->history, in->history_epochs);
  if (!workload.empty())
    options.prediction.responses_per_prompt = static_cast<int>(workload.front().lengths.size());
  auto prompts = predict(past, workload, options.prediction);
  auto plan = plan_epoch(prompts, options);
  if (!plan) return print_error(plan.error());
  auto fit = fit_guard(past, options.prediction, options.guard_rule);
  if (!as_json) {
    print_plan(*plan, *in, fit);
    return 0;
  }
  json steps = json::array();
  for (const auto& step : plan->steps)
    steps.push_back(step_json(step, prompts));
  auto guard = guard_json(fit);
  guard["ratio"] = plan->guard_ratio;
  std::cout << json{{"steps", steps},
                    {"guard", guard},
                    {"unknown_prompts", plan->unknown_prompts},
                    {"swaps", plan->swaps},
                    {"policy", policy},
                    {"world_size", options.world}}
                   .dump()
            << std::endl;
  return 0;
}

} // namespace

void add_plan(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("plan", "Plan an epoch from history and explain it");
  command->footer("Example: adafloor plan --history history.csv --history-epochs a "
                  "--workload-epoch b --floor 2");
  auto flags = std::make_shared<plan_flags>();
  auto policy = std::make_shared<std::string>("adaptive");
  auto as_json = std::make_shared<bool>(false);
  add_plan_options(*command, *flags);
  command->add_option("--policy", *policy, "adaptive, or paper: the published planner");
  command->add_flag("--json", *as_json, "print one object on stdout");
  command->callback(
      [flags, policy, as_json, exit_code] { *exit_code = run_plan(*flags, *policy, *as_json); });
}

} // namespace adafloor
