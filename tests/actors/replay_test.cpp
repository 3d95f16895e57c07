#define BOOST_TEST_MODULE replay
#include "actors/arm_result.hpp"
#include "actors/replay.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

using namespace adafloor;

namespace {
microseconds us(int n) {
  return microseconds{n};
}
rollout_report report_of(std::vector<interval> intervals) {
  rollout_report r;
  r.intervals = std::move(intervals);
  return r;
}
} // namespace

BOOST_AUTO_TEST_CASE(what_follows_the_last_token_is_booked_as_the_cost_model_has_it) {
  std::map<rank_id, rollout_report> reports{
      // Waits for the broker, is restored late and rests.
      {rank_id(0), report_of({{rank_state::busy, us(0), us(60)},
                              {rank_state::idle, us(60), us(67)},
                              {rank_state::transition, us(67), us(75)},
                              {rank_state::idle, us(75), us(80)}})},
      // Comes back from a lease while the last tokens are being told.
      {rank_id(1), report_of({{rank_state::dummy, us(0), us(20)},
                              {rank_state::leased, us(20), us(64)},
                              {rank_state::idle, us(64), us(80)}})}};
  book_fixed_time(reports, us(60), us(70), us(100));
  const auto ledger = ledger_of(reports, us(0), us(100));
  BOOST_REQUIRE_MESSAGE(ledger.has_value(), ledger.error().text);
  const auto spent = [&](rank_state s) { return std::lround(ledger->spent(s) * 1e6); };
  BOOST_TEST(spent(rank_state::busy) == 60);
  BOOST_TEST(spent(rank_state::dummy) == 20);
  BOOST_TEST(spent(rank_state::leased) == 40);
  BOOST_TEST(spent(rank_state::transition) == 20);
  BOOST_TEST(spent(rank_state::idle) == 60);
}

BOOST_AUTO_TEST_CASE(a_rollout_without_tokens_or_without_restoration_has_a_fixed_time_too) {
  std::map<rank_id, rollout_report> reports{
      {rank_id(0), report_of({{rank_state::idle, us(0), us(8)}})}, {rank_id(1), {}}};
  book_fixed_time(reports, us(0), us(0), us(10));
  for (const auto& [rank, report] : reports) {
    BOOST_REQUIRE(report.intervals.size() == 1U);
    BOOST_TEST((report.intervals.front().state == rank_state::idle));
    BOOST_TEST(report.intervals.front().end.count() == 10);
  }
}
