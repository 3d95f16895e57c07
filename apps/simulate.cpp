// `adafloor simulate`: all arms on a workload, ledger per arm.
#include "apps/commands.hpp"
#include "apps/plan_inputs.hpp"
#include "apps/simulate_page.hpp"
#include "apps/simulate_report.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <memory>

namespace adafloor {
namespace {

struct simulate_flags {
  plan_flags plan;
  std::vector<std::string> arms{"all"}, pairs;
  int seeds = 1;
  bool as_json = false;
  std::string html;
};

/// One planning history and one executed epoch.
struct pairing {
  std::vector<std::uint32_t> past;
  std::uint32_t ahead = 0;
};

std::vector<pairing> pairings(const plan_inputs& in, const std::vector<std::uint32_t>& all_pairs) {
  std::vector<pairing> out;
  for (auto a : all_pairs)
    for (auto b : all_pairs)
      if (a != b) out.push_back({{a}, b});
  if (all_pairs.empty())
    for (auto ahead : in.workload_epochs)
      out.push_back({in.history_epochs, ahead});
  return out;
}

result<std::vector<arm_spec>> chosen_arms(const simulate_flags& flags, const arm_base& base) {
  auto names = flags.arms;
  if (names.size() == 1 && names.front() == "all") names = arm_names();
  std::vector<arm_spec> out;
  for (const auto& name : names) {
    auto arm = make_arm(name, base);
    if (!arm) return tl::unexpected(arm.error());
    arm->controls.record_spans = !flags.html.empty();
    out.push_back(std::move(*arm));
  }
  return out;
}

result<std::vector<std::uint32_t>> pair_epochs(const simulate_flags& flags, const plan_inputs& in) {
  std::vector<std::uint32_t> out;
  for (const auto& name : flags.pairs) {
    int a = in.history.find_epoch(name), b = in.workload.find_epoch(name);
    if (a < 0 || b < 0)
      return bad_input("--pairs " + name + ": no such epoch in the history and the workload");
    if (a != b) return bad_input("--pairs needs the history itself as workload");
    out.push_back(static_cast<std::uint32_t>(a));
  }
  if (out.size() == 1) return bad_input("--pairs needs at least two epochs");
  return out;
}

result<run_record_set> run_all(const simulate_flags& flags, const plan_inputs& in) {
  auto epochs = pair_epochs(flags, in);
  if (!epochs) return tl::unexpected(epochs.error());
  run_record_set out;
  auto list = pairings(in, *epochs);
  for (const auto& pair : list) {
    auto past = past_epochs(in.history, pair.past);
    auto truth = epoch_prompts(in.workload, pair.ahead);
    for (int seed = 1; seed <= flags.seeds; ++seed) {
      auto base = in.arms;
      base.base.seed = static_cast<std::uint64_t>(seed);
      base.base.prediction.responses_per_prompt =
          truth.empty() ? 1 : std::max<int>(1, static_cast<int>(truth.front().lengths.size()));
      if (flags.plan.guard_ratio <= 0)
        base.base.guard_ratio = fit_guard(past, base.base.prediction, base.base.guard_rule).ratio;
      auto arms = chosen_arms(flags, base);
      if (!arms) return tl::unexpected(arms.error());
      auto predicted = predict(past, truth, base.base.prediction);
      simulated_run run;
      for (auto e : pair.past)
        run.history.push_back(in.history.epochs[e]);
      run.workload = in.workload.epochs[pair.ahead];
      run.seed = seed;
      for (const auto& arm : *arms) {
        auto result = run_arm(arm, truth, predicted);
        if (!result) return tl::unexpected(result.error());
        simulated_arm entry{std::move(*result), std::nullopt, lengths_digest(arm, *result, truth)};
        if (arm.options.guard) {
          // The same plan without the cap: both do the work that was asked for.
          auto replay = arm;
          replay.controls.apply_guard_cap = false;
          replay.controls.record_spans = false;
          auto equal = run_arm(replay, truth, predicted);
          if (!equal) return tl::unexpected(equal.error());
          entry.equal_work = std::move(*equal);
        }
        run.arms.push_back(std::move(entry));
      }
      run.bound = step_set_bound(base, truth, predicted);
      out.runs.push_back(std::move(run));
      if (list.size() * static_cast<std::size_t>(flags.seeds) > 1)
        std::cerr << fmt::format("adafloor: {} of {} runs\n", out.runs.size(),
                                 list.size() * static_cast<std::size_t>(flags.seeds));
    }
  }
  out.costs = in.arms.base.costs;
  out.world = in.arms.base.world;
  return out;
}

int run_simulate(const simulate_flags& flags) {
  if (flags.seeds < 1 || flags.seeds > 1000)
    return print_error(
        {error_code::bad_input, fmt::format("--seeds {}: allowed: 1..1000", flags.seeds)});
  auto in = resolve(flags.plan);
  if (!in) return print_error(in.error());
  auto done = run_all(flags, *in);
  if (!done) return print_error(done.error());
  if (!flags.html.empty()) {
    std::vector<arm_result> shown;
    for (const auto& arm : done->runs.front().arms)
      shown.push_back(arm.result);
    std::ofstream page{flags.html, std::ios::trunc};
    page << simulation_page(run_title(*done), shown);
    page.flush();
    if (!page) return print_error({error_code::io, flags.html + ": cannot be written"});
    std::cerr << "adafloor: wrote " << flags.html << '\n';
  }
  if (flags.as_json)
    std::cout << report_json(*done).dump() << std::endl;
  else
    std::cout << report_text(*done);
  return 0;
}

} // namespace

void add_simulate(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("simulate", "All arms on a workload, ledger per arm");
  command->footer(
      "Arms: vanilla, striped, lengthsort, lengthsort_striped, lengthsort_guard, fixed4, "
      "minskew,\nadafloor_n_f4, adafloor_n_f2, adafloor_p_f4, adafloor_p_f2, "
      "adafloor_n_f2_noguard, adaptive,\nadaptive_migrate, oracle.\n"
      "Example: adafloor simulate --history history.csv --history-epochs a "
      "--workload-epoch b --cost-model ascend-eager --arms all");
  auto flags = std::make_shared<simulate_flags>();
  add_plan_options(*command, flags->plan);
  command->add_option("--arms", flags->arms, "all, or a list")->delimiter(',');
  command->add_option("--pairs", flags->pairs, "plan from each of these epochs, run each other one")
      ->delimiter(',');
  command->add_option("--seeds", flags->seeds, "repetitions with other resampling seeds");
  command->add_option("--html", flags->html, "write rank timelines and step tails to this file");
  command->add_flag("--json", flags->as_json, "print one object on stdout");
  command->callback([flags, exit_code] { *exit_code = run_simulate(*flags); });
}

} // namespace adafloor
