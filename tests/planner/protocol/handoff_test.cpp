// A live request moves: what the rank that gives it away and the rank that takes it obey, answer
// again and refuse.
#define BOOST_TEST_MODULE protocol_handoff
#include "tests/planner/protocol/rank_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

constexpr move_key key{rollout_id{1}, request_id{0}, 7};
constexpr std::uint32_t other = 2; ///< the rank at the other end

/// Rank 1 decodes two requests.
struct decoding : rank_bench {
  decoding() { run_rollout(2); }
  effects peer(any_message m, std::uint32_t from = other) {
    return tell(say(from, role_kind::rank, machine.who.self, std::move(m)));
  }
  bool owns_nothing_but_its_own() {
    finish_requests(machine.rollout->requests);
    const auto out = planner(plan(2, {2, 3}, {0, self}));
    return sent<refused>(out).empty();
  }
};

struct source : decoding {
  effects order() { return planner(move_request{key, rank_id{other}}); }
  /// The destination has room, the engine is asked for the first round.
  void accepted() {
    order();
    engine(engine_move_offer{key, 9});
    peer(move_accepted{key});
  }
  void hand_over() {
    accepted();
    engine(kv_ready{key, 0, 3, 300, true});
  }
  effects engine_ends(move_outcome how) {
    return engine(engine_move_ended{key, how, 5, 500, 2, 40});
  }
};

struct taker : decoding {
  effects offer() { return peer(move_offer{key, 9}); }
  void reserved() {
    offer();
    engine(move_accepted{key});
  }
  void committed() {
    reserved();
    peer(kv_ready{key, 0, 3, 300, true});
    engine(move_committed{key, 41});
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(giving_away, source)

BOOST_AUTO_TEST_CASE(a_move_goes_through_its_rounds) {
  BOOST_TEST(sent<engine_move_begin>(order()).size() == 1u);
  auto out = engine(engine_move_offer{key, 9});
  BOOST_REQUIRE_EQUAL(sent<move_offer>(out).size(), 1u);
  BOOST_TEST(out[0].to.rank == rank_id{other});
  BOOST_TEST(sent<move_offer>(out)[0].pages == 9u);
  out = peer(move_accepted{key});
  BOOST_REQUIRE_EQUAL(sent<engine_move_round>(out, role_kind::engine).size(), 1u);
  BOOST_TEST(sent<engine_move_round>(out)[0].round == 0u);
  out = engine(kv_ready{key, 0, 3, 300, false});
  BOOST_TEST(sent<kv_ready>(out, role_kind::rank).size() == 1u);
  out = peer(kv_taken{key, 0});
  BOOST_REQUIRE_EQUAL(sent<engine_move_round>(out).size(), 1u);
  BOOST_TEST(sent<engine_move_round>(out)[0].round == 1u);
  engine(kv_ready{key, 1, 2, 200, true});
  out = peer(move_committed{key, 43});
  BOOST_REQUIRE_EQUAL(sent<engine_move_end>(out).size(), 1u);
  BOOST_TEST((sent<engine_move_end>(out)[0].outcome == move_outcome::moved));
  out = engine_ends(move_outcome::moved);
  BOOST_REQUIRE_EQUAL(sent<request_moved>(out, role_kind::planner).size(), 1u);
  const auto told = sent<request_moved>(out)[0];
  BOOST_TEST((told.outcome == move_outcome::moved));
  BOOST_TEST(told.bytes == 500u);
  BOOST_TEST(told.rounds == 2u);
  BOOST_TEST(told.missed_steps == 3u); // stopped after step 40, there before step 44
  BOOST_TEST(machine.rollout->requests == 1u);
}

BOOST_AUTO_TEST_CASE(a_repeated_order_gets_the_stored_outcome) {
  BOOST_TEST(order().size() == 1u);
  BOOST_TEST(order().empty()); // it is under way
  engine_ends(move_outcome::finished);
  for (int i = 0; i < 2; ++i) {
    const auto out = order();
    BOOST_REQUIRE_EQUAL(sent<request_moved>(out).size(), 1u);
    BOOST_TEST((sent<request_moved>(out)[0].outcome == move_outcome::finished));
  }
}

BOOST_AUTO_TEST_CASE(what_the_destination_has_not_answered_is_repeated) {
  order();
  engine(engine_move_offer{key, 9});
  BOOST_TEST(sent<move_offer>(wait(ms(160))).size() == 3u);
  peer(move_accepted{key});
  BOOST_TEST(receivers<move_offer>(wait(ms(160))).empty()); // the engine is at it
  engine(kv_ready{key, 0, 3, 300, false});
  BOOST_TEST(sent<kv_ready>(wait(ms(160))).size() == 3u);
  peer(kv_taken{key, 0});
  BOOST_TEST(sent<kv_ready>(wait(ms(160))).empty());
  BOOST_TEST(sent<engine_move_round>(peer(kv_taken{key, 0})).empty()); // a double
}

BOOST_AUTO_TEST_CASE(a_refusal_ends_the_move) {
  order();
  engine(engine_move_offer{key, 9});
  auto out = peer(move_refused{key, "no pages"});
  BOOST_TEST((sent<engine_move_end>(out)[0].outcome == move_outcome::refused));
  out = engine_ends(move_outcome::refused);
  BOOST_TEST(sent<request_moved>(out)[0].text == "no pages");
  BOOST_TEST(machine.rollout->requests == 2u);
}

BOOST_AUTO_TEST_CASE(too_slow_a_move_is_cancelled_before_the_last_round) {
  accepted();
  auto out = wait(machine.config.handoff.copy_max + ms(20));
  BOOST_TEST(!sent<move_cancel>(out).empty());
  BOOST_TEST(sent<engine_move_end>(out).empty());             // first the destination must be free
  BOOST_TEST(engine(kv_ready{key, 0, 3, 300, true}).empty()); // too late: never shown to it
  BOOST_TEST(peer(move_committed{key, 43}).empty());
  out = peer(move_cancelled{key});
  BOOST_TEST((sent<engine_move_end>(out)[0].outcome == move_outcome::given_up));
  out = engine_ends(move_outcome::given_up);
  BOOST_TEST(sent<request_moved>(out)[0].text.find("rank 2 did not take the request within")
             != std::string::npos);
}

BOOST_AUTO_TEST_CASE(after_the_last_round_only_the_destination_decides) {
  hand_over();
  const auto out = wait(3 * machine.config.handoff.copy_max);
  BOOST_TEST(sent<kv_ready>(out).size() > 100u);
  BOOST_TEST(sent<move_cancel>(out).empty());
  BOOST_TEST(sent<engine_move_end>(out).empty());
  BOOST_TEST(peer(move_committed{key, 43}, 3).empty()); // not the destination
  BOOST_TEST((sent<engine_move_end>(peer(move_rejected{key, "damaged"}))[0].outcome
              == move_outcome::given_up));
}

BOOST_AUTO_TEST_CASE(a_request_that_ends_frees_the_destination_first) {
  accepted();
  engine(kv_ready{key, 0, 3, 300, false});
  auto out = engine_ends(move_outcome::finished);
  BOOST_TEST(sent<move_cancel>(out).size() == 1u);
  BOOST_TEST(sent<request_moved>(out).empty());
  BOOST_TEST(sent<move_cancel>(wait(ms(110))).size() == 2u);
  out = peer(move_cancelled{key});
  BOOST_TEST(sent<engine_move_end>(out).empty());
  BOOST_TEST((sent<request_moved>(out)[0].outcome == move_outcome::finished));
}

BOOST_AUTO_TEST_CASE(a_request_is_not_sent_to_a_rank_that_leaves) {
  const auto p = plan(2, {0, self}, {2, 3});
  planner(p);
  const auto out = order();
  BOOST_REQUIRE_EQUAL(sent<request_moved>(out).size(), 1u);
  BOOST_TEST((sent<request_moved>(out)[0].outcome == move_outcome::refused));
  BOOST_TEST(sent<engine_move_begin>(out).empty());
}

BOOST_AUTO_TEST_CASE(a_rank_that_gives_a_request_away_stays_until_that_is_known) {
  hand_over();
  finish_requests(2); // whatever the engine says
  const auto out = planner(plan(2, {2, 3}, {0, self}));
  BOOST_REQUIRE_EQUAL(sent<refused>(out).size(), 1u);
  BOOST_TEST((sent<refused>(out)[0].reason == refusal::owns_requests));
}

BOOST_AUTO_TEST_CASE(a_rank_that_gave_its_last_request_away_may_leave) {
  hand_over();
  peer(move_committed{key, 43});
  engine_ends(move_outcome::moved);
  BOOST_TEST(owns_nothing_but_its_own());
}

BOOST_AUTO_TEST_CASE(orders_of_another_rollout_are_dropped) {
  const auto old = machine.drops.stale_rollout;
  BOOST_TEST(planner(move_request{{rollout_id{2}, request_id{0}, 7}, rank_id{other}}).empty());
  BOOST_TEST(machine.drops.stale_rollout == old + 1);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(taking_over, taker)

BOOST_AUTO_TEST_CASE(a_request_arrives_in_rounds) {
  auto out = offer();
  BOOST_REQUIRE_EQUAL(sent<engine_receive_begin>(out, role_kind::engine).size(), 1u);
  BOOST_TEST(sent<engine_receive_begin>(out)[0].pages == 9u);
  BOOST_TEST(offer().empty()); // the engine is at it
  out = engine(move_accepted{key});
  BOOST_TEST(receivers<move_accepted>(out) == std::vector<std::uint32_t>{other},
             boost::test_tools::per_element());
  BOOST_TEST(sent<move_accepted>(offer()).size() == 1u); // asked again
  const kv_ready first{key, 0, 3, 300, false};
  out = peer(first);
  BOOST_REQUIRE_EQUAL(sent<engine_receive_round>(out, role_kind::engine).size(), 1u);
  BOOST_TEST(sent<engine_receive_round>(out)[0].from == rank_id{other});
  BOOST_TEST(peer(first).empty()); // it is being pulled
  BOOST_TEST(sent<kv_taken>(engine(kv_taken{key, 0}), role_kind::rank).size() == 1u);
  out = peer(first);
  BOOST_TEST(sent<kv_taken>(out).size() == 1u); // said again, not pulled again
  BOOST_TEST(sent<engine_receive_round>(out).empty());
  peer(kv_ready{key, 1, 1, 100, true});
  out = engine(move_committed{key, 41});
  BOOST_TEST(sent<move_committed>(out, role_kind::rank)[0].at_step == 41u);
  BOOST_TEST(machine.rollout->requests == 3u);
}

BOOST_AUTO_TEST_CASE(a_commit_is_told_as_often_as_it_is_asked_for_and_done_once) {
  committed();
  for (int i = 0; i < 3; ++i) {
    const auto out = peer(kv_ready{key, 0, 3, 300, true});
    BOOST_TEST(sent<move_committed>(out).size() == 1u);
    BOOST_TEST(sent<engine_receive_round>(out).empty());
    BOOST_TEST(sent<move_committed>(offer()).size() == 1u);
  }
  BOOST_TEST(peer(move_cancel{key}).empty()); // what is committed is never taken back
  BOOST_TEST(machine.rollout->requests == 3u);
}

BOOST_AUTO_TEST_CASE(lack_of_room_is_told_for_good) {
  offer();
  BOOST_TEST(sent<move_refused>(engine(move_refused{key, "full"}), role_kind::rank)[0].text
             == "full");
  const auto out = offer(); // there might be room by now, but the source was told
  BOOST_TEST(sent<move_refused>(out).size() == 1u);
  BOOST_TEST(sent<engine_receive_begin>(out).empty());
  BOOST_TEST(owns_nothing_but_its_own());
}

BOOST_AUTO_TEST_CASE(a_round_that_cannot_be_had_rejects_the_move) {
  reserved();
  peer(kv_ready{key, 0, 3, 300, true});
  BOOST_TEST(sent<move_rejected>(engine(move_rejected{key, "damaged"})).size() == 1u);
  BOOST_TEST(sent<move_rejected>(peer(kv_ready{key, 0, 3, 300, true})).size() == 1u);
  BOOST_TEST(machine.rollout->requests == 2u);
  BOOST_TEST(owns_nothing_but_its_own());
}

BOOST_AUTO_TEST_CASE(what_was_reserved_is_given_back) {
  reserved();
  auto out = peer(move_cancel{key});
  BOOST_TEST(sent<engine_receive_cancel>(out).size() == 1u);
  BOOST_TEST(sent<move_cancelled>(out).empty()); // not before the engine has done it
  BOOST_TEST(peer(move_cancel{key}).empty());
  BOOST_TEST(sent<move_cancelled>(engine(move_cancelled{key})).size() == 1u);
  BOOST_TEST(sent<move_cancelled>(peer(move_cancel{key})).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_cancel_may_come_before_its_offer) {
  BOOST_TEST(sent<move_cancelled>(peer(move_cancel{key})).size() == 1u);
  BOOST_TEST(sent<engine_receive_begin>(offer()).empty());
  BOOST_TEST(owns_nothing_but_its_own());
}

BOOST_AUTO_TEST_CASE(a_round_of_an_unknown_move_is_rejected_for_good) {
  BOOST_TEST(sent<move_rejected>(peer(kv_ready{key, 0, 3, 300, true})).size() == 1u);
  BOOST_TEST(sent<engine_receive_begin>(offer()).empty());
}

BOOST_AUTO_TEST_CASE(a_rank_with_something_reserved_does_not_leave) {
  reserved();
  finish_requests(2);
  const auto out = planner(plan(2, {2, 3}, {0, self}));
  BOOST_REQUIRE_EQUAL(sent<refused>(out).size(), 1u);
  BOOST_TEST((sent<refused>(out)[0].reason == refusal::owns_requests));
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_about_to_leave_refuses) {
  finish_requests(2);
  planner(plan(2, {2, 3}, {0, self}));
  const auto out = offer();
  BOOST_REQUIRE_EQUAL(sent<move_refused>(out).size(), 1u);
  BOOST_TEST(sent<move_refused>(out)[0].text.find("leaves the group") != std::string::npos);
  BOOST_TEST(sent<engine_receive_begin>(out).empty());
}

BOOST_AUTO_TEST_CASE(offers_of_another_rollout_or_policy_or_process_are_dropped) {
  BOOST_TEST(peer(move_offer{{rollout_id{2}, request_id{0}, 7}, 9}).empty());
  auto other_policy = first_fence;
  other_policy.weights = weights_id{2};
  BOOST_TEST(tell(say(other, role_kind::rank, machine.who.self, move_offer{key, 9}, other_policy))
                 .empty());
  BOOST_TEST(machine.drops.stale_weights == 1u);
  offer();
  auto reborn = say(other, role_kind::rank, machine.who.self, move_cancel{key});
  reborn.incarnation = incarnation_id{99};
  BOOST_TEST(tell(reborn).empty());
  BOOST_TEST(machine.drops.stale_incarnation == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
