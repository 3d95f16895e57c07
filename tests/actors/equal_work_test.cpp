#define BOOST_TEST_MODULE equal_work
#include "actors/equal_work.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;

namespace {

/// Two ranks with one prompt each, one response per prompt; the step is capped at 100 tokens.
rollout_step capped_step() {
  rollout_step step;
  for (std::uint32_t r = 0; r < 2; ++r) {
    step.prompts.push_back({r, rank_id{r}});
    step.rules.forecasts.push_back({1, true, {80}, {80}});
  }
  step.rules.capacity_tokens = 10'000;
  step.response_cap = 100;
  return step;
}

finished_arm arm_with(std::int32_t first, std::int32_t second, std::uint64_t cut) {
  finished_arm arm{"x", {{capped_step()}}, {{}}, cut};
  arm.tokens[0] = {{{0, 0}, first}, {{1, 0}, second}};
  return arm;
}

plan_options flat() {
  plan_options o;
  o.policy = plan_policy::vanilla;
  o.world = 2;
  o.kv.max_response_length = 1000;
  return o;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_step_that_was_cut_at_half_takes_twice_as_long_in_full) {
  const auto ratio = equal_work_ratio(arm_with(80, 100, 1), arm_with(80, 200, 0), flat());
  BOOST_REQUIRE(ratio.has_value());
  BOOST_TEST(*ratio == 2.0, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(arm_with(80, 200, 0).generated_tokens() == 280u);
}

BOOST_AUTO_TEST_CASE(where_nothing_was_cut_the_work_is_equal) {
  const auto ratio = equal_work_ratio(arm_with(80, 90, 0), arm_with(80, 90, 0), flat());
  BOOST_REQUIRE(ratio.has_value());
  BOOST_TEST(*ratio == 1.0);
}

BOOST_AUTO_TEST_CASE(responses_that_nobody_generated_in_full_cannot_be_replayed) {
  auto full = arm_with(80, 200, 0);
  full.tokens[0].erase({1, 0});
  BOOST_TEST(!equal_work_ratio(arm_with(80, 100, 1), full, flat()).has_value());
  full.tokens.clear();
  BOOST_TEST(!equal_work_ratio(arm_with(80, 100, 1), full, flat()).has_value());
}
