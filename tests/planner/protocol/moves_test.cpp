// The planner's side of live requests that move from rank to rank.
#define BOOST_TEST_MODULE protocol_moves
#include "tests/planner/protocol/planner_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;
using phase = planner_machine::phase;

namespace {

/// Four ranks, one request each; the rollout runs.
struct running_world : planner_bench {
  running_world() : planner_bench(4) { run({2}); }
  bool move(std::uint32_t request, std::uint32_t to) {
    sent_last.clear();
    return order_move(machine, request_id{request}, rank_id{to}, now, sent_last);
  }
  /// The source of request `request` answers the newest order.
  effects moved(std::uint32_t request, std::uint32_t to, move_outcome how) {
    request_moved m{{rollout_id{1}, request_id{request}, machine.moves_ordered}, rank_id{to}, how};
    return rank(request, m);
  }
  effects sent_last;
};

} // namespace

BOOST_FIXTURE_TEST_CASE(an_order_is_repeated_until_it_is_answered, running_world) {
  BOOST_TEST(move(1, 2));
  BOOST_REQUIRE_EQUAL(sent<move_request>(sent_last).size(), 1u);
  BOOST_TEST(sent_last[0].to.rank == rank_id{1});
  BOOST_TEST(sent<move_request>(sent_last)[0].to == rank_id{2});
  BOOST_TEST(sent<move_request>(wait(ms(210))).size() == 4u);
  const auto out = moved(1, 2, move_outcome::moved);
  BOOST_REQUIRE_EQUAL(sent<request_moved>(out, role_kind::trainer).size(), 1u);
  BOOST_TEST(out[0].from.rank == rank_id{1});
  BOOST_TEST(!moves_open(machine));
  BOOST_TEST(sent<move_request>(wait(ms(210))).empty());
  BOOST_TEST(sent<request_moved>(moved(1, 2, move_outcome::moved)).empty()); // a double
}

BOOST_FIXTURE_TEST_CASE(orders_that_make_no_sense_are_not_given, running_world) {
  BOOST_TEST(!move(1, 1));  // it is there
  BOOST_TEST(!move(1, 9));  // no such rank
  BOOST_TEST(!move(77, 1)); // no such request
  finish(3);
  BOOST_TEST(!move(3, 1)); // complete
  BOOST_TEST(move(1, 2));
  BOOST_TEST(!move(1, 0)); // moves already
  finish(0);
  moved(1, 2, move_outcome::refused); // ranks 1 and 2 are unfinished, so the group becomes 2
  BOOST_TEST(preparing());
  BOOST_TEST(!move(1, 3)); // about to leave
  BOOST_TEST(move(1, 2));
}

BOOST_FIXTURE_TEST_CASE(a_moved_request_counts_for_its_new_rank, running_world) {
  move(1, 2);
  moved(1, 2, move_outcome::moved);
  const auto& ranks = machine.rollout->ranks;
  BOOST_TEST(ranks.at(rank_id{1}).requests == 0u);
  BOOST_TEST(ranks.at(rank_id{1}).finished());
  BOOST_TEST(ranks.at(rank_id{2}).requests == 2u);
  BOOST_TEST(sent<response>(rank(1, response{rollout_id{1}, request_id{1}})).empty()); // not owner
  BOOST_TEST(sent<response>(rank(2, response{rollout_id{1}, request_id{1}})).size() == 1u);
  const auto out = local(role_kind::recorder, response_kept{rollout_id{1}, request_id{1}});
  BOOST_TEST(receivers<response_kept>(out) == std::vector<std::uint32_t>{2},
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_request_that_stays_counts_where_it_was, running_world) {
  move(1, 2);
  moved(1, 2, move_outcome::given_up);
  BOOST_TEST(machine.rollout->ranks[rank_id{1}].requests == 1u);
  BOOST_TEST(machine.rollout->requests[request_id{1}].moves_failed == 1u);
  BOOST_TEST(sent<response>(rank(1, response{rollout_id{1}, request_id{1}})).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_response_may_overtake_the_news_of_the_move, running_world) {
  move(1, 2);
  BOOST_TEST(sent<response>(rank(3, response{rollout_id{1}, request_id{1}})).empty());
  BOOST_TEST(sent<response>(rank(2, response{rollout_id{1}, request_id{1}})).size() == 1u);
  BOOST_TEST(sent<response>(rank(2, response{rollout_id{1}, request_id{1}})).empty());
  local(role_kind::recorder, response_kept{rollout_id{1}, request_id{1}});
  moved(1, 2, move_outcome::moved);
  const auto& ranks = machine.rollout->ranks;
  BOOST_TEST(ranks.at(rank_id{1}).requests == 0u);
  BOOST_TEST(ranks.at(rank_id{1}).received == 0u);
  BOOST_TEST(ranks.at(rank_id{2}).requests == 2u);
  BOOST_TEST(ranks.at(rank_id{2}).received == 1u);
}

BOOST_FIXTURE_TEST_CASE(no_rank_of_an_open_move_leaves_the_group, running_world) {
  move(1, 2);
  finish(0);
  finish(2); // its own request; the moving one may arrive any time
  finish(3);
  BOOST_TEST(preparing());
  BOOST_TEST(machine.transition.plan.members == (std::vector<rank_id>{rank_id{1}, rank_id{2}}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(three_ranks_that_move_hold_a_contraction_back, running_world) {
  move(1, 2);
  move(0, 2);
  finish(3);
  BOOST_TEST(!preparing()); // ranks 0, 1 and 2 are needed
  rank(0, request_moved{{rollout_id{1}, request_id{0}, 2}, rank_id{2}, move_outcome::moved});
  BOOST_TEST(preparing());
}

BOOST_FIXTURE_TEST_CASE(books_are_closed_when_no_move_is_open, running_world) {
  move(1, 2);
  auto out = finish_all_but({1});
  for (const auto& part :
       {rank(2, response{rollout_id{1}, request_id{1}}),
        local(role_kind::recorder, response_kept{rollout_id{1}, request_id{1}}), wait(ms(100))})
    out.insert(out.end(), part.begin(), part.end());
  BOOST_TEST(sent<end_rollout>(out).empty());
  all_say(transition_aborted{machine.transition.plan.epoch});
  BOOST_TEST((machine.now_in == phase::running));
  rank(1, request_moved{{rollout_id{1}, request_id{1}, 1}, rank_id{2}, move_outcome::moved});
  BOOST_TEST((machine.now_in == phase::reporting));
}
