#define BOOST_TEST_MODULE arm_result
#include "actors/arm_result.hpp"

#include <boost/test/unit_test.hpp>

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
const std::vector<prompt> prompts{{"a", {1}, {}}, {"b", {2}, {}}};
std::string digest_of(const std::vector<std::map<response_key, kept_response>>& epochs) {
  response_digests digests;
  for (const auto& epoch : epochs)
    digests.add(epoch, prompts);
  return digests.tokens();
}

} // namespace

BOOST_AUTO_TEST_CASE(a_ledger_adds_up_what_every_rank_did) {
  const auto ledger = ledger_of(
      {{rank_id(0),
        report_of({{rank_state::busy, us(0), us(6)}, {rank_state::idle, us(6), us(10)}})},
       {rank_id(1),
        report_of({{rank_state::dummy, us(0), us(3)}, {rank_state::leased, us(3), us(10)}})}},
      us(0), us(10));
  BOOST_REQUIRE(ledger.has_value());
  BOOST_TEST(ledger->rank_seconds == 20e-6, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(ledger->spent(rank_state::leased) == 7e-6, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(ledger->gap() < 1e-9);
}

BOOST_AUTO_TEST_CASE(a_hole_an_overlap_and_a_short_time_line_are_found) {
  const auto check = [](std::vector<interval> intervals) {
    const auto r = ledger_of({{rank_id(5), report_of(std::move(intervals))}}, us(0), us(10));
    BOOST_REQUIRE(!r.has_value());
    BOOST_TEST(r.error().text.find("rank 5") != std::string::npos);
  };
  check({{rank_state::busy, us(0), us(4)}, {rank_state::busy, us(5), us(10)}});
  check({{rank_state::busy, us(0), us(6)}, {rank_state::busy, us(5), us(10)}});
  check({{rank_state::busy, us(0), us(9)}});
  check({{rank_state::busy, us(1), us(10)}});
}

BOOST_AUTO_TEST_CASE(migrations_are_counted_and_their_pause_is_told) {
  arm_books books;
  for (std::uint32_t missed : {2u, 1u, 7u}) {
    request_moved m;
    m.bytes = 100;
    m.missed_steps = missed;
    books.moves.push_back(m);
  }
  const auto told = books.to_json()["migrations"];
  BOOST_TEST(told["count"] == 3);
  BOOST_TEST(told["bytes"] == 300);
  BOOST_TEST(told["blackout_steps_p50"] == 2);
  BOOST_TEST(told["blackout_steps_max"] == 7);
  BOOST_TEST(arm_books{}.to_json()["migrations"]["blackout_steps_max"] == 0);
}

BOOST_AUTO_TEST_CASE(leases_are_told_by_what_they_gave_and_what_they_cost) {
  lease_record worked;
  worked.window = us(9'000'000);
  worked.granted_at = us(1'000'000);
  worked.working_at = us(2'000'000);
  worked.revoked_at = us(4'900'000);
  worked.returned_at = us(5'000'000);
  worked.units_done = 6;
  worked.tokens = 60;
  auto killed = worked; // before its first result
  killed.working_at = us(0);
  killed.revoked_at = us(4'000'000);
  killed.forced = true;
  killed.clean = false;
  killed.units_done = 0;
  killed.tokens = 0;
  lending_state lending;
  lending.slowdown_ppm = 21'000;
  const auto told = leases_json({worked, killed}, lending);
  const auto near = boost::test_tools::tolerance(1e-9);
  BOOST_TEST(told["granted"] == 2);
  BOOST_TEST(told["forced"] == 1);
  BOOST_TEST(told["unclean"] == 1);
  BOOST_TEST(told["units"] == 6);
  BOOST_TEST(told["seconds"].get<double>() == 8.0, near);
  BOOST_TEST(told["start_up_share"].get<double>() == 5.0 / 8, near);
  BOOST_TEST(told["units_per_leased_second"].get<double>() == 0.75, near);
  BOOST_TEST(told["revoke_seconds_p50"].get<double>() == 0.1, near);
  BOOST_TEST(told["revoke_seconds_p99"].get<double>() == 1.0, near);
  BOOST_TEST(told["slowdown"].get<double>() == 0.021, near);
  BOOST_TEST(told["ranks_max"].is_null()); // no limit
  BOOST_TEST(lease_json(killed)["state"] == "unclean");
  BOOST_TEST(leases_json({}, lending)["start_up_share"] == 0.0);
}

BOOST_AUTO_TEST_CASE(the_digest_sees_every_token_sample_and_prompt) {
  std::map<response_key, kept_response> base{{{0, 0}, {{1, 2}, {}, finish_reason::eos}},
                                             {{1, 0}, {{3}, {}, finish_reason::eos}}};
  const auto digest = digest_of({base});
  BOOST_TEST(digest.size() == 64u);
  BOOST_TEST(digest_of({base}) == digest);
  auto other = base;
  other[{0, 0}].tokens[1] = 7;
  BOOST_TEST(digest_of({other}) != digest);
  other = base;
  other[{0, 1}] = other[{1, 0}];
  other.erase({1, 0});
  BOOST_TEST(digest_of({other}) != digest);
  BOOST_TEST(digest_of({base, base}) != digest);
}

BOOST_AUTO_TEST_CASE(the_digest_is_sha256_over_id_sample_and_tokens) {
  // printf 'a\0\0\0\0\1\0\0\0\2\0\0\0' | sha256sum
  const std::map<response_key, kept_response> one{{{0, 0}, {{1, 2}, {}, finish_reason::eos}}};
  BOOST_TEST(digest_of({one})
             == "6c3823f8ebe63a7f3fa6a2115d49a4c107e3e903f5869a464e8c73113746a7fa");
}

BOOST_AUTO_TEST_CASE(quantiles_are_values_that_occurred) {
  BOOST_TEST(quantile({}, 0.5) == 0);
  BOOST_TEST(quantile({3, 1, 2}, 0.5) == 2);
  BOOST_TEST(quantile({3, 1, 2}, 1) == 3);
  BOOST_TEST(quantile({3, 1, 2}, 0) == 1);
}
