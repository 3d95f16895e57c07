// Speed of planning and simulating, and growth from 16 to 1024 ranks. Synthetic heavy-tailed
// lengths, so that it runs anywhere.
#include "planner/plan/arms.hpp"
#include "planner/plan/chance.hpp"

#include <benchmark/benchmark.h>

#include <cmath>

namespace {

using namespace adafloor;

std::vector<prompt_lengths> lengths(std::uint64_t seed, int prompts) {
  std::vector<prompt_lengths> out;
  for (int p = 0; p < prompts; ++p) {
    auto place = static_cast<std::uint64_t>(p);
    double scale = 1200 + 8000 * std::pow(draw_unit(1, 0, place), 2);
    prompt_lengths entry{std::to_string(p), p, 80, {}};
    for (std::uint64_t j = 0; j < 16; ++j) {
      double factor = 0.5 + 0.5 / std::sqrt(draw_unit(seed, place + 1, j) + 0.05);
      entry.lengths.push_back(std::min(16384, static_cast<int>(scale * factor)));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<int> halvings(int world) {
  std::vector<int> out;
  for (int size = world; size >= 2; size /= 2)
    out.push_back(size);
  return out;
}

plan_options options_for(int world, plan_policy policy, migrate_kind migrate) {
  plan_options o;
  o.policy = policy;
  o.migrate = migrate;
  o.world = world;
  o.floor = policy == plan_policy::paper ? 2 : 0;
  o.prompts_per_step = 2 * world;
  o.group_sizes = halvings(world);
  o.capacities = {{2, 131072}, {4, 280576}, {8, 377344}, {16, 380800}};
  o.costs.laws = {{16, 48, 2.17, 0, 0, true},
                  {8, 60.9, 1, 5.25e-5, 0, true},
                  {4, 60.3, 0, 7.49e-5, 0, true},
                  {2, 63.3, 0, 7.49e-5, 0, false}};
  o.costs.exits = {{16, 8, 11.5}, {8, 4, 14}, {4, 2, 14}};
  o.costs.fixed_seconds = 25;
  o.costs.fixed_shrunk_seconds = 28.5;
  return o;
}

void plan(benchmark::State& state, plan_policy policy, migrate_kind migrate) {
  auto world = static_cast<int>(state.range(0));
  auto prompts = static_cast<int>(state.range(1));
  auto past = lengths(1, prompts), ahead = lengths(2, prompts);
  auto options = options_for(world, policy, migrate);
  for (auto _ : state) {
    auto predicted = predict({past}, ahead, options.prediction);
    auto made = plan_epoch(predicted, options);
    if (!made) state.SkipWithError(made.error().text.c_str());
    benchmark::DoNotOptimize(made);
  }
  state.counters["prompts"] = prompts;
}

void simulate(benchmark::State& state, plan_policy policy, migrate_kind migrate) {
  auto past = lengths(1, 160), ahead = lengths(2, 160);
  auto options = options_for(16, policy, migrate);
  auto predicted = predict({past}, ahead, options.prediction);
  auto made = plan_epoch(predicted, options);
  std::size_t next = 0;
  for (auto _ : state) {
    auto done =
        simulate_step(made->steps[next++ % made->steps.size()], ahead, predicted, options, {});
    benchmark::DoNotOptimize(done);
  }
}

void growth(benchmark::internal::Benchmark* b) {
  b->Args({16, 160})->Args({64, 1024})->Args({256, 4096})->Args({1024, 16384});
  b->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(plan, paper, plan_policy::paper, migrate_kind::off)->Apply(growth);
BENCHMARK_CAPTURE(plan, adaptive_consolidate, plan_policy::adaptive, migrate_kind::consolidate)
    ->Apply(growth);
BENCHMARK_CAPTURE(simulate, step_vanilla, plan_policy::vanilla, migrate_kind::off)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, step_paper, plan_policy::paper, migrate_kind::off)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, step_adaptive, plan_policy::adaptive, migrate_kind::off)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, step_consolidate, plan_policy::adaptive, migrate_kind::consolidate)
    ->Unit(benchmark::kMillisecond);

} // namespace

BENCHMARK_MAIN();
