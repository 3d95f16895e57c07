// The token log on its way: batches from the engine, the rank's window, the planner's order.
#define BOOST_TEST_MODULE protocol_tokens
#include "planner/protocol/rank.hpp"
#include "planner/protocol/token_batcher.hpp"
#include "tests/planner/protocol/planner_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

constexpr time_point at(std::int64_t milliseconds) {
  return time_point{ms(milliseconds)};
}

token_batcher small_batcher() {
  token_batcher b;
  b.lag_max = ms(100);
  b.window = 2;
  b.tokens_max = 10;
  begin(b, rollout_id{1});
  return b;
}

/// `count` tokens of `request` from index `first`; token i is 10 * request + i.
void generate(token_batcher& b, std::uint64_t request, std::uint32_t first, std::uint32_t count,
              time_point now) {
  for (auto i = first; i < first + count; ++i)
    add(b, request_id{request}, i, static_cast<token_id>(10 * request + i), -1.0F, now);
}

token_batch batch(std::uint64_t sequence, std::uint64_t rollout = 1) {
  return {rollout_id{rollout}, sequence, {{request_id{0}, 0, {7}, {-1}}}};
}

struct logging_rank : bench<rank_machine> {
  static constexpr std::uint32_t self = 1;
  logging_rank() : bench(rank_machine(config(), first_fence, at(1000))) {
    planner(admit_requests{rollout_id{1}, 0, 1, {{request_id{0}, 0, {1}, 5, {}}}});
    planner(start_rollout{rollout_id{1}, ms(900)});
    engine(engine_state{rollout_id{1}, rank_state::busy, now.time_since_epoch(), 0});
  }
  static rank_config config() {
    rank_config c;
    c.self = rank_id{self};
    c.world_size = 2;
    c.incarnation = process_of(self);
    c.token_window = 2;
    return c;
  }
  effects planner(any_message m) {
    return tell(say(0, role_kind::planner, machine.who.self, std::move(m)));
  }
  effects engine(any_message m) {
    return tell(say(self, role_kind::engine, machine.who.self, std::move(m)));
  }
};

struct small_world : planner_bench {
  small_world() : planner_bench(4) {}
};

std::vector<std::uint64_t> numbers(const effects& out, role_kind to) {
  std::vector<std::uint64_t> all;
  for (const auto& b : sent<token_batch>(out, to))
    all.push_back(b.sequence);
  return all;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_batch_waits_for_the_lag_and_no_longer) {
  auto b = small_batcher();
  generate(b, 1, 0, 2, at(0));
  generate(b, 2, 5, 1, at(50));
  generate(b, 1, 2, 1, at(60));
  BOOST_TEST(!next_batch(b, false, at(99)));
  const auto out = next_batch(b, false, at(100));
  BOOST_REQUIRE(out);
  BOOST_TEST(out->sequence == 1U);
  BOOST_REQUIRE_EQUAL(out->runs.size(), 2U);
  BOOST_TEST(out->runs[0].tokens == (std::vector<token_id>{10, 11, 12}),
             boost::test_tools::per_element());
  BOOST_TEST(out->runs[1].first == 5U);
  BOOST_TEST(!next_batch(b, true, at(300))); // nothing is left
}

BOOST_AUTO_TEST_CASE(a_request_that_was_elsewhere_in_between_gets_a_run_of_its_own) {
  auto b = small_batcher();
  generate(b, 1, 0, 2, at(0));
  generate(b, 1, 6, 2, at(0));
  const auto out = next_batch(b, true, at(0));
  BOOST_REQUIRE_EQUAL(out->runs.size(), 2U);
  BOOST_TEST(out->runs[1].first == 6U);
}

BOOST_AUTO_TEST_CASE(a_full_window_holds_batches_back_and_loses_nothing) {
  auto b = small_batcher();
  for (std::uint32_t i = 0; i < 2; ++i) {
    generate(b, 1, i, 1, at(i * 200));
    BOOST_TEST(next_batch(b, false, at(i * 200 + 100)).has_value());
  }
  generate(b, 1, 2, 13, at(400));
  BOOST_TEST(!next_batch(b, false, at(900)));
  hear(b, tokens_kept{rollout_id{1}, rank_id{0}, 1});
  hear(b, tokens_kept{rollout_id{9}, rank_id{0}, 2}); // of another rollout
  auto out = next_batch(b, false, at(900));
  BOOST_REQUIRE(out);
  BOOST_TEST(out->runs[0].tokens.size() == 10U); // at most so many at once
  BOOST_TEST(!next_batch(b, false, at(2000)));
  out = next_batch(b, true, at(2000)); // before a rest the window does not count
  BOOST_REQUIRE(out);
  BOOST_TEST(out->runs[0].first == 12U);
  BOOST_TEST(out->runs[0].tokens.size() == 3U);
}

BOOST_AUTO_TEST_CASE(without_a_lag_nothing_is_logged) {
  auto b = small_batcher();
  b.lag_max = ms(0);
  generate(b, 1, 0, 3, at(0));
  BOOST_TEST(!next_batch(b, true, at(1)));
}

BOOST_FIXTURE_TEST_CASE(batches_are_repeated_until_kept_within_a_window, logging_rank) {
  BOOST_TEST(numbers(engine(batch(1)), role_kind::planner).size() == 1U);
  engine(batch(2));
  BOOST_TEST(engine(batch(3)).empty());
  BOOST_TEST(numbers(wait(ms(60)), role_kind::planner) == (std::vector<std::uint64_t>{1, 2}),
             boost::test_tools::per_element());
  const auto out = planner(tokens_kept{rollout_id{1}, rank_id{self}, 2}); // both at once
  BOOST_TEST(sent<tokens_kept>(out, role_kind::engine).size() == 1U);
  BOOST_TEST(numbers(out, role_kind::planner) == (std::vector<std::uint64_t>{3}),
             boost::test_tools::per_element());
  BOOST_TEST(planner(tokens_kept{rollout_id{1}, rank_id{self}, 1}).empty()); // late
}

BOOST_FIXTURE_TEST_CASE(the_report_waits_until_the_log_has_every_token, logging_rank) {
  engine(batch(1));
  engine(rank_progress{rollout_id{1}, epoch_id{1}, 9, 0, 1, 9});
  engine(engine_state{rollout_id{1}, rank_state::idle, now.time_since_epoch(), 9});
  BOOST_TEST(sent<rollout_report>(planner(end_rollout{rollout_id{1}, ms(1500)})).empty());
  BOOST_TEST(sent<rollout_report>(planner(tokens_kept{rollout_id{1}, rank_id{self}, 1})).size()
             == 1U);
}

BOOST_FIXTURE_TEST_CASE(the_recorder_gets_each_batch_once_and_in_order, small_world) {
  run({});
  BOOST_TEST(rank(2, batch(2)).empty()); // overtook the first; comes again
  BOOST_TEST(numbers(rank(2, batch(1)), role_kind::recorder).size() == 1U);
  BOOST_TEST(rank(2, batch(1)).empty()); // doubled while it is being stored
  const auto next = rank(2, batch(2));
  BOOST_REQUIRE_EQUAL(numbers(next, role_kind::recorder).size(), 1U);
  BOOST_TEST(next[0].from.rank == rank_id{2}); // the log learns whose tokens they are
  BOOST_TEST(numbers(rank(3, batch(1)), role_kind::recorder).size() == 1U);
  const auto kept = local(role_kind::recorder, tokens_kept{rollout_id{1}, rank_id{2}, 1});
  BOOST_TEST(receivers<tokens_kept>(kept) == (std::vector<std::uint32_t>{2}),
             boost::test_tools::per_element());
  const auto again = sent<tokens_kept>(rank(2, batch(1)), role_kind::rank);
  BOOST_REQUIRE_EQUAL(again.size(), 1U);
  BOOST_TEST(again[0].sequence == 1U);
}

BOOST_FIXTURE_TEST_CASE(a_late_batch_of_a_rollout_that_ended_is_answered, small_world) {
  run({});
  finish_all_but({});
  for (std::uint32_t r = 0; r < 4; ++r)
    rank(r, rollout_report{rollout_id{1}, {}, 5, 1});
  BOOST_TEST(sent<tokens_kept>(rank(1, batch(4)), role_kind::rank).size() == 1U);
}
