#define BOOST_TEST_MODULE vectors
// Public figures of the published planner. The epochs themselves are not part of this project:
// tests that need them are skipped where the file is absent.
#include "planner/plan/guard.hpp"
#include "planner/plan/plan.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <sstream>

using namespace adafloor;
namespace utf = boost::unit_test;

namespace {

const std::string epochs_path =
    std::string{ADAFLOOR_SOURCE_DIR} + "/../shared/data/adafloor_epochs.csv";

struct with_epochs {
  boost::test_tools::assertion_result operator()(utf::test_unit_id) const {
    boost::test_tools::assertion_result there{std::ifstream{epochs_path}.good()};
    there.message() << epochs_path << " is not here";
    return there;
  }
};

struct epoch_a {
  std::vector<predicted_prompt> prompts;
  std::vector<std::vector<layout_unit>> units;
  epoch_a() {
    std::ifstream in{epochs_path};
    std::stringstream text;
    text << in.rdbuf();
    auto history = parse_history(text.str(), epochs_path);
    BOOST_REQUIRE(history.has_value());
    auto a = epoch_prompts(*history, static_cast<std::uint32_t>(history->find_epoch("a")));
    prompts = predict({a}, a, {});
    for (const auto& step : cut_steps(prompts, 32, true))
      units.push_back(make_units(prompts, step, 16, {}));
  }
};

constexpr milli_tokens no_limit = milli_tokens{1} << 50;
const std::vector<int> halves{16, 8, 4, 2};

std::int64_t gap_sum(const std::vector<layout_unit>& units, const mates& matching) {
  std::int64_t sum = 0;
  for (std::size_t a = 0; a < units.size(); ++a)
    if (a < matching[a]) sum += std::abs(units[a].tail - units[matching[a]].tail);
  return sum;
}

std::vector<int> floors(const epoch_a& epoch, const std::vector<group_capacity>& caps, int floor) {
  std::vector<int> out;
  for (const auto& units : epoch.units)
    out.push_back(paper_choice(units, 16, halves, caps, floor).floor);
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(smallest_possible_largest_peak, *utf::precondition(with_epochs{})) {
  epoch_a epoch;
  const std::vector<milli_tokens> expected{58578840, 95166400, 144072000, 207709600, 313775360};
  BOOST_REQUIRE(epoch.units.size() == expected.size());
  for (std::size_t s = 0; s < expected.size(); ++s)
    BOOST_TEST(smallest_peak(epoch.units[s], 16) == expected[s]);
}

BOOST_AUTO_TEST_CASE(minimum_gap_matching, *utf::precondition(with_epochs{})) {
  epoch_a epoch;
  const std::vector<std::int64_t> gaps{1172, 1309, 1269, 2267, 2137};
  const std::vector<milli_tokens> peaks{91628400, 119955600, 199787960, 254666400, 374949120};
  const std::vector<std::int64_t> tails{3768, 5881, 8396, 11939, 16384};
  for (std::size_t s = 0; s < gaps.size(); ++s) {
    auto matching = match_units(epoch.units[s], 16, s == 2 ? 262656000 : no_limit);
    BOOST_REQUIRE(matching.has_value());
    BOOST_TEST(gap_sum(epoch.units[s], *matching) == gaps[s]);
    BOOST_TEST(largest_peak(epoch.units[s], *matching) == peaks[s]);
    BOOST_TEST(epoch.units[s].back().tail == tails[s]);
  }
  auto capped = match_units(epoch.units[2], 16, 147456000);
  BOOST_REQUIRE(capped.has_value());
  BOOST_TEST(largest_peak(epoch.units[2], *capped) == 147099600);
}

BOOST_AUTO_TEST_CASE(release_area_of_consecutive_pairs, *utf::precondition(with_epochs{})) {
  epoch_a epoch;
  const double expected[5][3] = {{8560, 10968, 11608},
                                 {7912, 9860, 10434},
                                 {10416, 12824, 13738},
                                 {11912, 14784, 16020},
                                 {0, 0, 0}};
  for (std::size_t s = 0; s < 5; ++s) {
    const auto& units = epoch.units[s];
    std::vector<double> ends;
    for (std::size_t i = 1; i < units.size(); i += 2)
      ends.push_back(static_cast<double>(units[i].tail));
    auto tail = static_cast<double>(units.back().tail);
    for (int f = 0; f < 3; ++f) {
      auto exits = natural_exits(ends, 16, stage_sizes(halves, 16, 8 >> f));
      BOOST_TEST(release_area(exits, 16, tail) == expected[s][f]);
      auto plan = paper_floor(units, 16, 8 >> f, halves, no_limit);
      BOOST_TEST(plan.has_value() == (expected[s][f] > 0));
      if (plan) BOOST_TEST(plan->area == expected[s][f]);
    }
  }
}

BOOST_AUTO_TEST_CASE(floors_of_the_published_planner, *utf::precondition(with_epochs{})) {
  epoch_a epoch;
  const std::vector<group_capacity> natural{{2, 147456}, {4, 280576}, {8, 377344}, {16, 380800}};
  auto safer = natural;
  safer[0].tokens = 131072;
  const std::vector<group_capacity> planned{{4, 133120}, {8, 262656}, {16, 380800}};
  const std::vector<int> as_published{2, 2, 2, 4, 16}, safer_floors{2, 2, 4, 4, 16},
      planned_floors{4, 4, 8, 8, 16};
  BOOST_TEST(floors(epoch, natural, 2) == as_published, boost::test_tools::per_element{});
  BOOST_TEST(floors(epoch, safer, 2) == safer_floors, boost::test_tools::per_element{});
  BOOST_TEST(floors(epoch, planned, 4) == planned_floors, boost::test_tools::per_element{});
}

BOOST_AUTO_TEST_CASE(a_plan_uses_each_prompt_once, *utf::precondition(with_epochs{})) {
  epoch_a epoch;
  for (auto policy : {plan_policy::vanilla, plan_policy::paper, plan_policy::adaptive}) {
    plan_options options;
    options.policy = policy;
    options.capacities = {{2, 131072}, {4, 280576}, {8, 377344}, {16, 380800}};
    auto plan = plan_epoch(epoch.prompts, options);
    BOOST_REQUIRE(plan.has_value());
    std::vector<int> seen(epoch.prompts.size(), 0);
    for (const auto& step : plan->steps)
      for (const auto& rank : step.ranks) {
        BOOST_TEST(rank.size() == 2U);
        for (auto p : rank)
          ++seen[p];
      }
    BOOST_TEST((std::count(seen.begin(), seen.end(), 1) == 160));
  }
}

BOOST_AUTO_TEST_CASE(guard_caps) {
  const double raw[] = {4521.6, 7057.2, 10075.2, 14326.8, 19660.8};
  const std::int32_t caps[] = {4608, 7168, 10240, 14336, 0};
  for (std::size_t i = 0; i < 5; ++i)
    BOOST_TEST(guard_cap(1.20, raw[i] / 1.20, 16384, {}) == caps[i]);
  BOOST_TEST(guard_cap(1.20, 100, 16384, {}) == 4096); // never below
}

// Six prompts; two perfect matchings tie on gap, larger m and A, and only token sums tell them
// apart.
BOOST_AUTO_TEST_CASE(toy_of_six) {
  const std::vector<int> m{100, 108, 180, 112, 185, 176};
  const int a[6][6] = {{0, 90, 80, 70, 60, 50}, {90, 0, 85, 75, 65, 55},  {80, 85, 0, 95, 88, 58},
                       {70, 75, 95, 0, 92, 62}, {60, 65, 88, 92, 0, 100}, {50, 55, 58, 62, 100, 0}};
  auto solve = [&](const std::vector<int>& tokens) {
    pair_costs costs{6};
    for (std::size_t i = 0; i < 6; ++i)
      for (std::size_t j = i + 1; j < 6; ++j) {
        if (a[i][j] > 75) continue;
        wide_int balance = (tokens[i] + tokens[j]) * (tokens[i] + tokens[j]);
        costs.set(i, j, (((wide_int{std::abs(m[i] - m[j])} << 20) + a[i][j]) << 40) + balance);
      }
    auto found = cheapest_perfect_matching(costs);
    BOOST_REQUIRE(found.has_value());
    int gap = 0, larger = 0, peak = 0;
    for (std::size_t i = 0; i < 6; ++i) {
      auto j = (*found)[i];
      if (j < i) continue;
      gap += std::abs(m[i] - m[j]);
      larger += std::max(m[i], m[j]);
      peak += a[i][j];
    }
    BOOST_TEST(gap == 93);
    BOOST_TEST(larger == 477);
    BOOST_TEST(peak == 193);
    return (*found)[0];
  };
  BOOST_TEST(solve({100, 200, 100, 300, 300, 300}) == 4U); // 04 13 25
  BOOST_TEST(solve({300, 200, 100, 100, 300, 300}) == 3U); // 03 14 25
}

BOOST_AUTO_TEST_CASE(peaks_clip_before_the_maximum) {
  predicted_prompt p;
  p.lengths.assign(16, 16384);
  BOOST_TEST(kv_peak(kv_items(p, {})) == 262144000);
  p.lengths.assign(16, 15000);
  BOOST_TEST(kv_peak(kv_items(p, {})) == 262144000);
  p.lengths = {100, 60, 60, 10};
  BOOST_TEST(kv_peak(kv_items(p, {1000, 16384, false})) == 180000);
  p.prompt_tokens = 7;
  BOOST_TEST(kv_peak(kv_items(p, {1000, 16384, true})) == 201000);
}
