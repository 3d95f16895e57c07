#define BOOST_TEST_MODULE simulate
// The simulator: exact ledgers, limits kept, odd workloads, prompts repaired, determinism.
#include "planner/plan/arms.hpp"
#include "planner/plan/chance.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <numeric>

using namespace adafloor;

namespace {

/// Heavy-tailed lengths of `prompts` x `samples`, the same prompts for every seed.
std::vector<prompt_lengths> workload(std::uint64_t seed, int prompts, int samples,
                                     std::int32_t limit) {
  std::vector<prompt_lengths> out;
  for (int p = 0; p < prompts; ++p) {
    auto place = static_cast<std::uint64_t>(p);
    double scale = 200 + 3000 * std::pow(draw_unit(1, 0, place), 3);
    prompt_lengths entry{std::to_string(p), p, 50, {}};
    for (int j = 0; j < samples; ++j) {
      double u = draw_unit(seed, place + 1, static_cast<std::uint64_t>(j));
      entry.lengths.push_back(
          std::clamp(static_cast<std::int32_t>(scale / std::sqrt(u + 0.02)), 1, limit));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

arm_base base_of(int world, int prompts) {
  arm_base base;
  base.base.world = world;
  base.base.prompts_per_step = prompts;
  base.base.kv.max_response_length = base.base.prediction.max_response_length = 4096;
  base.base.costs.laws = {{world, 48, 2, 1e-5, 0, true}, {2, 60, 0, 5e-5, 0, true}};
  base.base.costs.exits = {{16, 8, 2}, {8, 4, 2}, {4, 2, 2}};
  base.base.costs.fixed_seconds = 1;
  base.base.costs.fixed_shrunk_seconds = 2;
  base.base.costs.restore_seconds = 0.5;
  base.base.costs.prefill_tokens_per_second = 1000;
  base.base.costs.copy_bytes_per_second = 1e9;
  base.base.costs.kv_bytes_per_token = 1e4;
  base.natural = {{2, 40000}, {4, 60000}, {8, 75000}, {16, 80000}};
  return base;
}

std::int64_t tokens_of(const std::vector<prompt_lengths>& list, std::int32_t limit) {
  std::int64_t sum = 0;
  for (const auto& p : list)
    for (auto l : p.lengths)
      sum += std::min(l, limit);
  return sum;
}

} // namespace

BOOST_AUTO_TEST_CASE(every_arm_generates_every_token_and_its_ledger_adds_up) {
  for (std::uint64_t seed = 2; seed < 8; ++seed) {
    auto base = base_of(16, 32);
    base.guard = seed % 2 == 0;
    base.base.resize_pool = seed % 3 == 0;
    auto past = workload(seed, 64, 16, 4096), truth = workload(seed + 100, 64, 16, 4096);
    auto predicted = predict({past}, truth, base.base.prediction);
    double adaptive = 0, bound = 0;
    for (const auto& name : arm_names()) {
      auto arm = make_arm(name, base);
      BOOST_REQUIRE(arm.has_value());
      arm->controls.record_spans = true;
      auto r = run_arm(*arm, truth, predicted);
      BOOST_REQUIRE(r.has_value());
      BOOST_TEST(imbalance(r->ledger) < 1e-9, name);
      BOOST_TEST(r->responses == 64 * 16);
      if (r->truncated_by_guard == 0)
        BOOST_TEST(r->generated_tokens == tokens_of(truth, 4096), name);
      double drawn = 0;
      for (const auto& step : r->steps)
        for (const auto& span : step.spans)
          drawn += span.to_seconds - span.from_seconds;
      BOOST_TEST(drawn == r->ledger.rank_seconds, boost::test_tools::tolerance(1e-9));
      for (const auto& step : r->steps) {
        int group = 16;
        for (const auto& t : step.transitions) {
          BOOST_TEST(t.from == group);
          BOOST_TEST(t.to < group);
          group = t.to;
        }
        BOOST_TEST(step.restored == (group < 16));
      }
      if (name == "adaptive_migrate") {
        adaptive = r->ledger.bound();
        auto options = base.base;
        options.capacities = base.natural;
        bound = lower_bound(r->plan.steps, truth, options);
      }
      auto again = run_arm(*arm, truth, predicted);
      BOOST_TEST(again->ledger.busy == r->ledger.busy);
      BOOST_TEST(again->seconds == r->seconds);
    }
    BOOST_TEST(bound <= adaptive);
    BOOST_TEST(bound > 0.3 * adaptive);
  }
}

BOOST_AUTO_TEST_CASE(equal_work_replay_generates_what_the_guard_cuts) {
  auto base = base_of(16, 32);
  auto past = workload(3, 64, 16, 1000), truth = workload(4, 64, 16, 4096);
  base.base.guard_rule.least_cap = 512;
  auto predicted = predict({past}, truth, base.base.prediction);
  auto arm = make_arm("adafloor_n_f2", base);
  auto guarded = run_arm(*arm, truth, predicted);
  arm->controls.apply_guard_cap = false;
  auto equal = run_arm(*arm, truth, predicted);
  BOOST_TEST(guarded->truncated_by_guard > 0);
  BOOST_TEST(equal->truncated_by_guard == 0);
  BOOST_TEST(equal->generated_tokens == tokens_of(truth, 4096));
  BOOST_TEST(guarded->generated_tokens < equal->generated_tokens);
  BOOST_TEST(guarded->seconds < equal->seconds);
}

BOOST_AUTO_TEST_CASE(preemption_where_demand_exceeds_the_pool_and_nowhere_else) {
  auto base = base_of(4, 8);
  base.base.group_sizes = {4, 2};
  base.natural = {{2, 3000}, {4, 3000}};
  auto truth = workload(5, 8, 16, 2000);
  auto predicted = predict({truth}, truth, base.base.prediction);
  auto tight = run_arm(*make_arm("vanilla", base), truth, predicted);
  BOOST_TEST(tight->preemptions > 0);
  BOOST_TEST(tight->generated_tokens == tokens_of(truth, 4096));
  base.natural.clear();
  auto roomy = run_arm(*make_arm("vanilla", base), truth, predicted);
  BOOST_TEST(roomy->preemptions == 0);
  BOOST_TEST(roomy->seconds < tight->seconds);
}

BOOST_AUTO_TEST_CASE(batch_limit_queues_the_rest) {
  auto base = base_of(2, 4);
  base.base.group_sizes = {2};
  base.natural.clear();
  base.base.max_num_seqs = 1;
  base.base.costs.laws = {{2, 100, 0, 0, 0, true}};
  std::vector<prompt_lengths> truth;
  for (int p = 0; p < 4; ++p)
    truth.push_back({std::to_string(p), p, 0, {10, 20}});
  auto predicted = predict({truth}, truth, base.base.prediction);
  auto r = run_arm(*make_arm("vanilla", base), truth, predicted);
  BOOST_TEST(r->steps.at(0).steps == 60); // two prompts of 30 tokens on each rank, one at a time
  BOOST_TEST(r->seconds == 7.0);
}

BOOST_AUTO_TEST_CASE(odd_workloads_behave) {
  struct shape {
    int world, prompts, samples;
    std::int32_t length;
  };
  for (auto s :
       {shape{16, 1, 16, 100}, shape{1, 5, 4, 100}, shape{16, 33, 1, 100}, shape{4, 40, 2, 4096},
        shape{8, 7, 3, 1}, shape{3, 20, 2, 50}, shape{16, 0, 0, 0}}) {
    auto base = base_of(s.world, 2 * s.world);
    std::vector<prompt_lengths> truth;
    for (int p = 0; p < s.prompts; ++p)
      truth.push_back({std::to_string(p), p, 3, std::vector<std::int32_t>(s.samples, s.length)});
    auto predicted = predict({truth}, truth, base.base.prediction);
    for (const auto& name : arm_names()) {
      auto r = run_arm(*make_arm(name, base), truth, predicted);
      BOOST_REQUIRE(r.has_value());
      BOOST_TEST(r->responses == s.prompts * s.samples);
      BOOST_TEST(r->generated_tokens == std::int64_t{s.prompts} * s.samples * s.length);
      BOOST_TEST(imbalance(r->ledger) < 1e-9);
    }
  }
}

BOOST_AUTO_TEST_CASE(bundles_and_repair_keep_every_prompt) {
  auto prompts = predict({workload(6, 96, 8, 4096)}, workload(6, 96, 8, 4096), {});
  for (int per_step : {12, 16, 20, 24, 48}) {
    plan_options options;
    options.world = 4;
    options.group_sizes = {4, 2};
    options.prompts_per_step = per_step;
    options.kv.max_response_length = 4096;
    options.capacities = {{2, 90000}, {4, 100000}};
    auto plan = plan_epoch(prompts, options);
    BOOST_REQUIRE(plan.has_value());
    std::vector<int> seen(96, 0);
    for (const auto& step : plan->steps) {
      BOOST_TEST(step.ranks.size() == 4U);
      for (const auto& rank : step.ranks)
        for (auto p : rank)
          ++seen[p];
      BOOST_TEST((step.over_capacity || step.peak_tokens <= step.capacity_tokens));
    }
    BOOST_TEST(std::count(seen.begin(), seen.end(), 1) == 96);
  }
}

// Two steps; the long one does not fit one rank's pool until a prompt moves to the short one.
BOOST_AUTO_TEST_CASE(repair_swaps_with_the_nearest_step) {
  std::vector<prompt_lengths> list;
  for (int p = 0; p < 8; ++p)
    list.push_back({std::to_string(p), p, 0, std::vector<std::int32_t>(p < 4 ? 2 : 10, 100 + p)});
  auto prompts = predict({list}, list, {});
  kv_options kv{1000, 16384, false};
  auto steps = cut_steps(prompts, 4, true);
  milli_tokens capacity = 1500 * 1000;
  auto before = smallest_peak(make_units(prompts, steps[1], 2, kv), 2);
  BOOST_TEST(before > capacity);
  int swaps = repair_steps(steps, prompts, 2, kv, capacity);
  BOOST_TEST(swaps > 0);
  BOOST_TEST(smallest_peak(make_units(prompts, steps[1], 2, kv), 2) <= capacity);
  BOOST_TEST(smallest_peak(make_units(prompts, steps[0], 2, kv), 2) <= capacity);
}

BOOST_AUTO_TEST_CASE(options_are_checked) {
  plan_options options;
  options.world = 0;
  BOOST_TEST(!plan_epoch({}, options).has_value());
  options.world = 4;
  options.floor = 5;
  auto bad = plan_epoch({}, options);
  BOOST_REQUIRE(!bad.has_value());
  BOOST_TEST(bad.error().text.find("floor is 5") != std::string::npos);
  auto unknown = make_arm("adaptiv", {});
  BOOST_REQUIRE(!unknown.has_value());
  BOOST_TEST(unknown.error().text.find("nearest: adaptive") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(published_exits_come_earlier_when_what_blocks_them_moves) {
  auto base = base_of(16, 32);
  auto past = workload(3, 64, 16, 4096), truth = workload(4, 64, 16, 4096);
  auto predicted = predict({past}, truth, base.base.prediction);
  for (const std::string name : {"adafloor_n_f2", "adafloor_p_f4"}) {
    double leased = 0;
    for (auto migrate : {migrate_kind::off, migrate_kind::stragglers, migrate_kind::consolidate}) {
      auto arm = make_arm(name, base);
      BOOST_REQUIRE(arm.has_value());
      arm->options.migrate = migrate;
      auto r = run_arm(*arm, truth, predicted);
      BOOST_REQUIRE(r.has_value());
      BOOST_TEST(imbalance(r->ledger) < 1e-9);
      BOOST_TEST((r->migrations > 0) == (migrate != migrate_kind::off));
      BOOST_TEST(r->ledger.leased > leased, name << ", " << name_of(migrate));
      leased = r->ledger.leased;
      for (std::size_t i = 0; i < r->steps.size(); ++i)
        for (const auto& t : r->steps[i].transitions) {
          if (migrate != migrate_kind::stragglers || t.moved == 0) continue;
          BOOST_TEST(t.moved <= arm->options.stragglers_max);
          for (const auto& exit : r->plan.steps[i].exits)
            if (exit.to == t.to) BOOST_TEST(t.at_step >= exit.at);
        }
    }
  }
}
