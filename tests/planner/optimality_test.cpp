#define BOOST_TEST_MODULE optimality
// Exhaustive search on small random instances against what the planner finds.
#include "planner/plan/chance.hpp"
#include "planner/plan/simulate.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <optional>

using namespace adafloor;

namespace {

/// Numbers in [0, n) from a seed.
struct dice {
  std::uint64_t seed, counter = 0;
  int operator()(int n) {
    return static_cast<int>(draw_bits(seed, 0, counter++) % static_cast<std::uint64_t>(n));
  }
};

wide_int cheapest_by_search(const pair_costs& costs, unsigned used,
                            const std::function<bool(std::vector<std::size_t>&)>& fits,
                            std::vector<std::size_t>& mate) {
  constexpr wide_int none = wide_int{1} << 120;
  auto n = costs.size();
  if (used == (1U << n) - 1) return fits(mate) ? 0 : none;
  std::size_t a = 0;
  while ((used >> a & 1U) != 0)
    ++a;
  wide_int best = none;
  for (std::size_t b = a + 1; b < n; ++b) {
    if ((used >> b & 1U) != 0 || !costs.allowed(a, b)) continue;
    mate[a] = b;
    mate[b] = a;
    auto rest = cheapest_by_search(costs, used | 1U << a | 1U << b, fits, mate);
    if (rest < none) best = std::min(best, rest + costs.at(a, b));
  }
  return best;
}

pair_costs random_costs(dice& roll, std::size_t n) {
  pair_costs costs{n};
  int density = 30 + roll(71), range = roll(2) == 0 ? 20 : 1000;
  std::vector<int> tails;
  for (std::size_t i = 0; i < n; ++i)
    tails.push_back(roll(range));
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b)
      if (roll(100) < density)
        costs.set(a, b, (wide_int{std::abs(tails[a] - tails[b])} << 60) + roll(1000));
  return costs;
}

} // namespace

BOOST_AUTO_TEST_CASE(matching_is_the_cheapest) {
  int infeasible = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    dice roll{seed};
    auto costs = random_costs(roll, 2 + 2 * static_cast<std::size_t>(roll(4)));
    std::vector<std::size_t> mate(costs.size());
    auto best = cheapest_by_search(
        costs, 0, [](auto&) { return true; }, mate);
    auto found = cheapest_perfect_matching(costs);
    bool feasible = best < wide_int{1} << 120;
    infeasible += feasible ? 0 : 1;
    BOOST_TEST(feasible == found.has_value(), "seed " << seed);
    BOOST_TEST(feasible == has_perfect_matching(costs.size(), [&](std::size_t a, std::size_t b) {
                 return costs.allowed(a, b);
               }));
    if (feasible && found) BOOST_TEST((total_cost(costs, *found) == best), "seed " << seed);
  }
  BOOST_TEST(infeasible > 100); // both kinds occur
}

BOOST_AUTO_TEST_CASE(matching_with_quotas_is_the_cheapest) {
  int feasible_count = 0, binding = 0;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    dice roll{seed};
    auto n = 4 + 2 * static_cast<std::size_t>(roll(3));
    auto costs = random_costs(roll, n);
    std::vector<pair_quota> quotas;
    for (std::size_t nodes = 2 + static_cast<std::size_t>(roll(3)); nodes <= n; nodes += 2)
      quotas.push_back({nodes, static_cast<std::size_t>(roll(static_cast<int>(nodes / 2 + 1)))});
    auto fits = [&](std::vector<std::size_t>& mate) {
      for (const auto& q : quotas) {
        std::size_t inside = 0;
        for (std::size_t a = 0; a < q.nodes; ++a)
          inside += mate[a] < a ? 1U : 0U;
        if (inside < q.pairs) return false;
      }
      return true;
    };
    std::vector<std::size_t> mate(n);
    auto best = cheapest_by_search(costs, 0, fits, mate);
    auto found = cheapest_with_quotas(costs, quotas);
    bool feasible = best < wide_int{1} << 120;
    BOOST_TEST(feasible == found.has_value(), "seed " << seed);
    if (!feasible || !found) continue;
    ++feasible_count;
    BOOST_TEST((total_cost(costs, *found) == best), "seed " << seed);
    auto free_choice = cheapest_perfect_matching(costs);
    binding += total_cost(costs, *free_choice) < best ? 1 : 0;
  }
  BOOST_TEST(feasible_count > 300);
  BOOST_TEST(binding > 20);
}

namespace {

struct instance {
  std::vector<prompt_lengths> truth;
  plan_options options;
  step_plan step;
};

instance random_instance(std::uint64_t seed) {
  dice roll{seed};
  instance out;
  auto& o = out.options;
  o.world = 3 + roll(3);
  o.group_sizes = {5, 4, 3, 2, 1};
  o.policy = plan_policy::adaptive;
  o.lambda = 1 + 0.5 * roll(3);
  o.costs.laws.clear();
  for (int size = 1; size <= o.world; ++size)
    o.costs.laws.push_back({size, 40.0 + 10 * roll(5), 1.0 * roll(4), 0, 0, true});
  for (int from = 2; from <= o.world; ++from)
    for (int to = 1; to < from; ++to)
      o.costs.exits.push_back({from, to, 0.1 * roll(12)});
  o.costs.fixed_seconds = 1;
  o.costs.fixed_shrunk_seconds = 1 + 0.1 * roll(5);
  out.step.floor = 1;
  out.step.capacity_tokens = 1 << 30;
  for (int size = o.world - 1; size >= 1; --size)
    if (roll(4) != 0) out.step.exits.push_back({0, size});
  for (int r = 0; r < o.world; ++r) {
    out.step.ranks.emplace_back();
    for (int p = roll(3); p > 0; --p) {
      auto index = out.truth.size();
      out.truth.push_back({"p" + std::to_string(index), 0, 0, {}});
      for (int j = 1 + roll(2); j > 0; --j)
        out.truth.back().lengths.push_back(1 + roll(60));
      out.step.ranks.back().push_back(index);
      out.step.prompts.push_back(index);
    }
  }
  return out;
}

double objective(const step_result& r, const plan_options& o) {
  return (o.lambda - 1) * r.ledger.rank_seconds + r.ledger.bound();
}

/// Least objective over every way to take exits at completions (and at the start).
double best_by_search(const instance& in, const std::vector<predicted_prompt>& predicted) {
  std::vector<double> moments{0};
  for (const auto& p : in.truth)
    for (auto length : p.lengths)
      moments.push_back(length);
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  double best = 1e300;
  std::vector<planned_exit> script;
  std::function<void(std::size_t, int)> extend = [&](std::size_t first, int group) {
    sim_controls controls;
    controls.scripted = true;
    controls.script = script;
    auto result = simulate_step(in.step, in.truth, predicted, in.options, controls);
    // A script that could not be followed at its moments is another script's duplicate or worse.
    best = std::min(best, objective(result, in.options));
    for (std::size_t m = first; m + 1 < moments.size(); ++m)
      for (const auto& exit : in.step.exits) {
        if (exit.to >= group) continue;
        script.push_back({moments[m], exit.to});
        extend(m, exit.to);
        script.pop_back();
      }
  };
  extend(0, in.options.world);
  return best;
}

} // namespace

BOOST_AUTO_TEST_CASE(exits_are_optimal_when_the_future_is_known) {
  int exits = 0, compared = 0, stayed = 0;
  for (std::uint64_t seed = 1; compared < 400; ++seed) {
    auto in = random_instance(seed);
    if (in.truth.empty() || in.truth.size() > 5) continue;
    ++compared;
    auto predicted = predict({in.truth}, in.truth, in.options.prediction);
    sim_controls controls;
    controls.oracle = true;
    auto taken = simulate_step(in.step, in.truth, predicted, in.options, controls);
    exits += taken.transitions.empty() ? 0 : 1;
    stayed += taken.transitions.empty() ? 1 : 0;
    double best = best_by_search(in, predicted);
    BOOST_TEST(objective(taken, in.options) <= best + 1e-9,
               "seed " << seed << ": " << objective(taken, in.options) << " against " << best);
  }
  BOOST_TEST(exits > 100);
  BOOST_TEST(stayed > 20);
}

BOOST_AUTO_TEST_CASE(published_schedules_have_the_largest_area) {
  int feasible = 0, none = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    dice roll{seed};
    const int world = 4;
    std::vector<layout_unit> units;
    for (int i = 0; i < 2 * world; ++i) {
      layout_unit u;
      u.prompts = {static_cast<std::size_t>(i)};
      u.tail = 1 + roll(40);
      u.items = {{u.tail * 1000, 0}, {(1 + roll(static_cast<int>(u.tail))) * 1000LL, 0}};
      u.tokens = u.tail;
      units.push_back(u);
    }
    std::stable_sort(units.begin(), units.end(),
                     [](const auto& a, const auto& b) { return a.tail < b.tail; });
    milli_tokens capacity = (60 + roll(90)) * 1000LL;
    double tail = static_cast<double>(units.back().tail), best = -1;
    auto costs = layout_costs(units, capacity);
    std::vector<std::size_t> mate(units.size());
    cheapest_by_search(
        costs, 0,
        [&](std::vector<std::size_t>& m) {
          std::vector<double> ends;
          for (std::size_t a = 0; a < m.size(); ++a)
            if (a < m[a]) ends.push_back(static_cast<double>(units[m[a]].tail));
          auto exits = natural_exits(ends, world, {2, 1});
          if (exits.back().at < tail) best = std::max(best, release_area(exits, world, tail));
          return true;
        },
        mate);
    auto plan = paper_floor(units, world, 1, {4, 2, 1}, capacity);
    BOOST_TEST((best >= 0) == plan.has_value(), "seed " << seed);
    if (plan) BOOST_TEST(plan->area == best, "seed " << seed);
    ++(plan ? feasible : none);
  }
  BOOST_TEST(feasible > 50);
  BOOST_TEST(none > 20);
}
