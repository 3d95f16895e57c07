// When the planner lets the group shrink: residency, migration and weighing, decided by the same
// functions as in the simulator.
#define BOOST_TEST_MODULE protocol_exits
#include "tests/planner/protocol/planner_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;
using phase = planner_machine::phase;

namespace {

using ranks = std::vector<std::uint32_t>;

/// A rollout under given rules: `per_rank` requests on each rank, request k * world + r at home on
/// rank r; every prompt is forecast to give responses of 10 to 100 tokens.
struct ruled_world : planner_bench {
  std::uint32_t per_rank;
  explicit ruled_world(std::uint32_t size = 4, std::uint32_t per = 1, int places = 4)
    : planner_bench(size), per_rank(per) {
    machine.config.weighing.max_num_seqs = places;
    machine.config.weighing.kv.max_response_length = 200;
  }
  begin_rollout ruled(exit_rules rules, std::vector<group_exit> exits) const {
    begin_rollout b{rollout_id{1}, {}, {}, std::move(exits), 100, std::move(rules)};
    for (std::uint32_t i = 0; i < world * per_rank; ++i) {
      b.requests.push_back({request_id{i}, i, {1}, 200, {}});
      b.homes.emplace_back(i % world);
      b.rules.prompts.push_back(i);
      b.rules.forecasts.push_back({1, true, {100, 40, 20, 10}, {100, 40, 20, 10}});
    }
    return b;
  }
  void start(exit_rules rules, std::vector<group_exit> exits) {
    local(role_kind::trainer, ruled(std::move(rules), std::move(exits)));
    for (std::uint32_t r = 0; r < world; ++r)
      rank(r, requests_admitted{rollout_id{1}, 0});
    for (std::uint32_t r = 0; r < world; ++r)
      rank(r, rollout_started{rollout_id{1}});
  }
  /// Request `i` ends on `at` at decode step `step`.
  effects end(std::uint32_t i, std::uint32_t at, std::uint64_t step) {
    auto out = rank(at, response{rollout_id{1}, request_id{i}, {1}, {0}, finish_reason::eos, step});
    const auto more = local(role_kind::recorder, response_kept{rollout_id{1}, request_id{i}});
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  effects moved(const move_request& order, std::uint32_t from, move_outcome how) {
    return rank(from, request_moved{order.key, order.to, how});
  }
  void answer_moves(move_outcome how) {
    for (const auto& [id, move] : std::map(machine.rollout->moves))
      rank(move.from.value, request_moved{move.key, move.to, how});
  }
  ranks next_members() const {
    ranks out;
    for (auto r : machine.transition.plan.members)
      out.push_back(r.value);
    return out;
  }
};

exit_rules rules_of(residency_kind residency, migrate_kind migrate, bool adaptive = false) {
  exit_rules r;
  r.residency = residency;
  r.migrate = migrate;
  r.adaptive = adaptive;
  return r;
}

constexpr auto natural = residency_kind::natural, planned = residency_kind::planned;
constexpr auto off = migrate_kind::off, stragglers = migrate_kind::stragglers,
               consolidate = migrate_kind::consolidate;

} // namespace

BOOST_FIXTURE_TEST_CASE(natural_residency_keeps_whoever_is_unfinished, ruled_world) {
  start(rules_of(natural, off), {{50, 2}});
  end(2, 2, 10);
  BOOST_TEST(!preparing());
  end(1, 1, 20);
  BOOST_TEST(preparing());
  BOOST_TEST(next_members() == (ranks{0, 3}), boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(planned_residency_waits_for_its_donors, ruled_world) {
  start(rules_of(planned, off), {{50, 2}});
  end(3, 3, 10);
  end(1, 1, 60); // two are unfinished, but rank 0 is a donor
  BOOST_TEST(!preparing());
  end(0, 0, 70);
  BOOST_TEST(preparing());
  BOOST_TEST(next_members() == (ranks{2, 3}), boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_straggler_moves_only_when_the_exit_is_due, ruled_world) {
  start(rules_of(planned, stragglers), {{50, 2}});
  BOOST_TEST(sent<move_request>(end(3, 3, 10)).empty());
  const auto out = end(1, 1, 60);
  const auto orders = sent<move_request>(out);
  BOOST_REQUIRE_EQUAL(orders.size(), 1u);
  BOOST_TEST(receivers<move_request>(out) == ranks{0}, boost::test_tools::per_element());
  BOOST_TEST((orders[0].to == rank_id{2} || orders[0].to == rank_id{3}));
  BOOST_TEST(!preparing()); // the move comes first
  moved(orders[0], 0, move_outcome::moved);
  BOOST_TEST(preparing());
  BOOST_TEST(next_members() == (ranks{2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(in_lockstep_an_exit_is_decided_on_what_all_members_told_of_the_step) {
  ruled_world w(4, 2);
  w.machine.config.lockstep = true;
  w.start(rules_of(natural, off), {{50, 2}});
  const auto told = [&](std::uint32_t rank, std::uint64_t step, std::uint32_t finished) {
    return w.rank(rank, rank_progress{rollout_id{1}, epoch_id{1}, step, 2 - finished, finished, 0});
  };
  // Ranks 1, 2 and 3 end at step 10, rank 0 goes on.
  for (std::uint32_t i : {1u, 5u, 2u, 6u, 3u})
    w.end(i, i % 4, 10);
  for (std::uint32_t r : {0u, 1u, 2u})
    told(r, 10, r == 0 ? 0 : 2);
  BOOST_TEST(!w.preparing()); // with what is known rank 3 would stay
  told(3, 10, 2);
  BOOST_TEST(!w.preparing()); // its second response is still on the way
  const auto out = w.end(7, 3, 10);
  BOOST_TEST(w.preparing());
  // All but the last response are acknowledged: no time passes before the decision is through.
  BOOST_TEST(sent<response_kept>(out, role_kind::rank).size() == 1u);
  BOOST_TEST(w.machine.rollout->held.has_value());
  BOOST_TEST(sent<response_kept>(w.carry_through(), role_kind::rank).size() == 1u);
  // Where nothing is to be decided it is acknowledged at once.
  told(0, 20, 1);
  BOOST_TEST(sent<response_kept>(w.end(0, 0, 20), role_kind::rank).empty());
  const auto other = w.machine.members.back().value;
  BOOST_TEST(sent<response_kept>(told(other, 20, 2), role_kind::rank).size() == 1u);
}

BOOST_AUTO_TEST_CASE(in_lockstep_a_silent_member_does_not_stop_time_for_ever) {
  ruled_world w(4, 2);
  w.machine.config.lockstep = true;
  w.start(rules_of(natural, off), {{50, 2}});
  BOOST_TEST(sent<response_kept>(w.end(1, 1, 10), role_kind::rank).empty());
  BOOST_TEST(
      sent<response_kept>(w.wait(w.machine.config.lockstep_max + ms(20)), role_kind::rank).size()
      == 1u);
}

BOOST_AUTO_TEST_CASE(consolidation_packs_as_soon_as_the_rest_fits_fewer_ranks) {
  ruled_world w(4, 2, 3);
  w.start(rules_of(natural, consolidate), {{50, 3}, {60, 2}});
  BOOST_TEST(moves_open(w.machine)); // eight requests fit three ranks of three places
  w.answer_moves(move_outcome::moved);
  BOOST_TEST(w.preparing());
  BOOST_TEST(w.next_members().size() == 3u);
  w.carry_through();
  w.end(0, w.machine.rollout->requests[request_id{0}].home.value, 5);
  BOOST_TEST(!moves_open(w.machine));
  w.end(1, w.machine.rollout->requests[request_id{1}].home.value, 6);
  BOOST_TEST(moves_open(w.machine)); // and six fit two
  w.answer_moves(move_outcome::moved);
  BOOST_TEST(w.preparing());
  for (const auto& [id, request] : w.machine.rollout->requests)
    if (id.value > 1)
      BOOST_TEST(std::count(w.machine.transition.plan.members.begin(),
                            w.machine.transition.plan.members.end(), request.home)
                 == 1);
}

BOOST_AUTO_TEST_CASE(no_more_requests_are_packed_than_a_rank_has_places) {
  ruled_world w(4, 2, 2);
  w.start(rules_of(natural, consolidate), {{50, 2}});
  for (std::uint32_t i : {0u, 1u, 2u})
    BOOST_TEST(sent<move_request>(w.end(i, i, 5)).empty()); // five on two ranks of two places
  BOOST_TEST(!sent<move_request>(w.end(3, 3, 6)).empty());
}

BOOST_AUTO_TEST_CASE(the_pool_limits_what_is_packed) {
  ruled_world w;
  auto rules = rules_of(natural, consolidate);
  rules.capacity_tokens = 150; // one response of 100 * 1.16 tokens, not two
  w.start(rules, {{50, 2}});
  BOOST_TEST(sent<move_request>(w.end(0, 0, 1)).empty());
  w.end(1, 1, 2);
  BOOST_TEST(w.preparing());
}

BOOST_AUTO_TEST_CASE(a_refused_move_is_not_ordered_again_before_a_response) {
  ruled_world w(4, 2, 3);
  w.start(rules_of(planned, consolidate), {{50, 2}});
  w.end(3, 3, 10);
  BOOST_TEST(sent<move_request>(w.end(7, 3, 11)).size() == 4u); // of ranks 0 and 1, the donors
  w.answer_moves(move_outcome::refused);
  BOOST_TEST(!moves_open(w.machine));
  BOOST_TEST(!w.preparing());
  BOOST_TEST(sent<move_request>(w.wait(ms(500))).empty());
  BOOST_TEST(sent<move_request>(w.end(0, 0, 20)).size() == 3u);
  w.answer_moves(move_outcome::given_up);
  // Whatever becomes of the moves, the rollout goes its way.
  for (auto [request, at] : {std::pair{4u, 0u}, {1u, 1u}}) {
    w.end(request, at, 30);
    w.answer_moves(move_outcome::refused);
    BOOST_TEST(!w.preparing());
  }
  w.end(5, 1, 40);
  BOOST_TEST(w.preparing());
  w.end(2, 2, 50);
  w.end(6, 2, 60);
  BOOST_TEST((w.machine.transition.now_in == transition_coordinator::phase::aborting));
  w.all_say(transition_aborted{w.machine.transition.plan.epoch});
  BOOST_TEST((w.machine.now_in == phase::reporting));
}

BOOST_FIXTURE_TEST_CASE(a_request_that_ends_on_its_way_holds_nothing_up, ruled_world) {
  start(rules_of(planned, stragglers), {{50, 2}});
  end(3, 3, 10);
  const auto orders = sent<move_request>(end(1, 1, 60));
  BOOST_REQUIRE_EQUAL(orders.size(), 1u);
  end(0, 0, 61);
  BOOST_TEST(!preparing()); // its source has not answered yet
  moved(orders[0], 0, move_outcome::finished);
  BOOST_TEST(preparing());
  BOOST_TEST(next_members() == (ranks{2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(survivors_that_are_not_right_any_more_are_chosen_anew) {
  ruled_world w(4, 2, 3);
  w.start(rules_of(natural, consolidate), {{50, 2}});
  w.end(3, 3, 1);
  w.end(7, 3, 1);
  BOOST_TEST(w.machine.rollout->moves.size() == 2u); // rank 2 is to be emptied
  w.end(0, 0, 20);
  BOOST_TEST(!w.preparing());
  w.answer_moves(move_outcome::given_up);
  BOOST_TEST(!w.preparing());
  BOOST_TEST(!moves_open(w.machine)); // not again before something has changed
  w.end(1, 1, 21);
  BOOST_TEST(moves_open(w.machine));
  w.answer_moves(move_outcome::moved);
  BOOST_TEST(w.preparing());
  const auto members = w.next_members();
  BOOST_TEST(std::count(members.begin(), members.end(), 2u) == 1);
}

BOOST_AUTO_TEST_CASE(weighing_leaves_where_it_pays_and_stays_where_it_does_not) {
  for (const bool dear : {false, true}) {
    ruled_world w;
    if (dear) w.machine.config.weighing.costs.default_exit_seconds = 3600;
    w.start(rules_of(natural, consolidate, true), {{50, 2}});
    w.end(2, 2, 1);
    BOOST_TEST((moves_open(w.machine) || w.preparing()) == !dear);
  }
}

BOOST_AUTO_TEST_CASE(packing_without_an_exit_empties_a_rank_where_decoding_gets_cheaper) {
  ruled_world w;
  w.machine.config.weighing.costs.laws = {{4, 10, 50, 0, 0, true}};
  w.machine.config.weighing.costs.default_exit_seconds = 3600; // so dear that nobody leaves
  w.start(rules_of(natural, consolidate, true), {{50, 2}});
  const auto out = w.rank(3, rank_progress{rollout_id{1}, epoch_id{1}, 2, 1, 0, 2});
  const auto orders = sent<move_request>(out);
  BOOST_REQUIRE_EQUAL(orders.size(), 0u); // all four were weighed when the rollout started
  BOOST_TEST(moves_open(w.machine));
  BOOST_TEST(!w.preparing());
  w.answer_moves(move_outcome::moved);
  BOOST_TEST(w.machine.members.size() == 4u);
  BOOST_TEST(!w.preparing());
}

BOOST_AUTO_TEST_CASE(packing_does_not_have_exits_weighed_again) {
  ruled_world w;
  w.machine.config.weighing.costs.laws = {{4, 10, 50, 0, 0, true}};
  w.machine.config.weighing.costs.default_exit_seconds = 3600;
  w.start(rules_of(natural, consolidate, true), {{50, 2}});
  BOOST_REQUIRE(moves_open(w.machine));
  w.machine.rollout->decision.options.costs.default_exit_seconds = 0; // Whoever weighs now leaves.
  w.answer_moves(move_outcome::moved);
  BOOST_TEST(!moves_open(w.machine));
  BOOST_TEST(!w.preparing());
  w.end(0, w.machine.rollout->requests[request_id{0}].home.value, 2); // A response is news.
  BOOST_TEST((moves_open(w.machine) || w.preparing()));
}

BOOST_AUTO_TEST_CASE(tokens_are_steps_since_a_request_got_its_place) {
  ruled_world w(2, 3, 2); // requests 4 and 5 wait
  w.start(rules_of(natural, off), {});
  const auto& requests = w.machine.rollout->requests;
  BOOST_TEST(!requests.at(request_id{2}).waits);
  BOOST_TEST(requests.at(request_id{4}).waits);
  w.end(0, 0, 17);
  BOOST_TEST(!requests.at(request_id{4}).waits);
  BOOST_TEST(requests.at(request_id{4}).started_at == 17u);
  BOOST_TEST(requests.at(request_id{5}).waits);
}

BOOST_AUTO_TEST_CASE(sizes_that_divide_nothing_are_formed_with_uneven_experts) {
  ruled_world w(16);
  w.machine.config.experts = 16;
  w.machine.owners = home_owners(16, 16);
  w.start(rules_of(natural, off), {{10, 12}, {20, 6}, {30, 3}});
  std::uint32_t next = 0;
  for (std::uint32_t size : {12u, 6u, 3u}) {
    for (; next < 16 - size; ++next)
      w.end(next, next, 10 + next);
    BOOST_REQUIRE(w.preparing());
    BOOST_TEST(w.machine.transition.plan.members.size() == size);
    const auto& owners = w.machine.transition.plan.owners;
    BOOST_TEST(check_map(owners, w.machine.transition.plan.members).has_value());
    for (auto r : w.machine.transition.plan.members)
      BOOST_TEST(experts_of(owners, r) <= (16 + size - 1) / size);
    w.carry_through();
    BOOST_TEST(w.machine.members.size() == size);
  }
}

BOOST_FIXTURE_TEST_CASE(rules_without_forecasts_are_refused, ruled_world) {
  auto order = ruled(rules_of(natural, stragglers), {{50, 2}});
  order.rules.prompts.pop_back();
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order)).size() == 1u);
  order.rules.prompts.push_back(77);
  const auto failed = sent<rollout_failed>(local(role_kind::trainer, order));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].text.find("prompt 77") != std::string::npos, failed[0].text);
}

BOOST_FIXTURE_TEST_CASE(the_next_step_is_not_admitted_before_the_full_world_is_back, ruled_world) {
  start(rules_of(natural, off), {{50, 2}});
  const auto early = [&] {
    auto next = order({}, 2);
    const auto out = local(role_kind::trainer, next);
    BOOST_TEST(sent<admit_requests>(out).empty());
    return sent<rollout_failed>(out).size();
  };
  end(0, 0, 5);
  end(1, 1, 6);
  carry_through();
  BOOST_TEST(machine.members.size() == 2u);
  end(2, 2, 7);
  end(3, 3, 8);
  BOOST_TEST((machine.now_in == phase::recalling));
  BOOST_TEST(early() == 1u);
  local(role_kind::broker, leases_recalled{rollout_id{1}, {}});
  BOOST_TEST((machine.now_in == phase::restoring));
  BOOST_TEST(early() == 1u);
  carry_through();
  BOOST_TEST((machine.now_in == phase::reporting));
  BOOST_TEST(early() == 1u);
  for (std::uint32_t r = 0; r < 4; ++r)
    rank(r, rollout_report{rollout_id{1}, {}, 5, 1});
  BOOST_TEST(machine.members == machine.world, boost::test_tools::per_element());
  BOOST_TEST(sent<admit_requests>(local(role_kind::trainer, order({}, 2))).size() == 4u);
}
