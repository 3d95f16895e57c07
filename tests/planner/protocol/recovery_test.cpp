// A rank dies: what the planner does about it, and what a survivor does.
#define BOOST_TEST_MODULE protocol_recovery
#include "tests/planner/protocol/planner_bench.hpp"
#include "tests/planner/protocol/rank_bench.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace adafloor;
using namespace adafloor::testing;
using phase = planner_machine::phase;

namespace {

struct planner_side : planner_bench {
  planner_side() : planner_bench(4) {}
  effects lose(std::uint32_t r) {
    return local(role_kind::membership,
                 member_lost{rank_id{r}, process_of(r), "it was silent", ms(2500)});
  }
  /// Ranks tell `count` tokens of their requests, with numbers that say where they belong.
  effects tell_tokens(std::uint32_t r, std::uint32_t first, std::uint32_t count,
                      std::uint64_t sequence) {
    token_run run{request_id{r}, first, {}, {}};
    for (std::uint32_t i = first; i < first + count; ++i) {
      run.tokens.push_back(static_cast<token_id>(100 * r + i));
      run.logprobs.push_back(-1.0f * static_cast<float>(i));
    }
    return rank(r, token_batch{rollout_id{1}, sequence, {run}});
  }
  const prepare_transition& plan() const { return machine.transition.plan; }
  /// Every part that was sent and not admitted yet is admitted now.
  effects admit_all(const effects& sent_out) {
    effects out;
    for (const auto& e : sent_out)
      if (const auto* part = std::get_if<admit_requests>(&e.body)) {
        const auto more = rank(e.to.rank.value, requests_admitted{part->rollout, part->part});
        out.insert(out.end(), more.begin(), more.end());
      }
    return out;
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(the_planner)

BOOST_FIXTURE_TEST_CASE(rebuilds_the_requests_of_the_dead_from_their_tokens, planner_side) {
  run({});
  tell_tokens(3, 0, 2, 1);
  tell_tokens(3, 2, 3, 2);
  auto out = lose(3);
  const auto named = sent<rank_lost>(out, role_kind::trainer);
  BOOST_REQUIRE_EQUAL(named.size(), 1u);
  BOOST_TEST(named[0].world_size == 3u);
  BOOST_TEST(named[0].text.find("rank 3 is lost") != std::string::npos);
  BOOST_TEST(sent<rollout_failed>(out).empty());
  BOOST_TEST(receivers<prepare_transition>(out) == (std::vector<std::uint32_t>{0, 1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST((plan().kind == transition_kind::recover));
  BOOST_TEST(plan().decode);
  BOOST_TEST(experts_of(plan().owners, rank_id{3}) == 0u);
  out = all_prepare();
  BOOST_TEST(sent<commit_transition>(out).empty()); // not before its requests have a home
  const auto parts = sent<admit_requests>(out);
  BOOST_REQUIRE_EQUAL(parts.size(), 1u);
  BOOST_REQUIRE_EQUAL(parts[0].requests.size(), 1u);
  BOOST_TEST(parts[0].requests[0].id == request_id{3});
  BOOST_TEST(parts[0].requests[0].prompt == (std::vector<token_id>{1}),
             boost::test_tools::per_element());
  BOOST_REQUIRE_EQUAL(parts[0].resumed.size(), 1u);
  BOOST_TEST(parts[0].resumed[0].tokens == (std::vector<token_id>{300, 301, 302, 303, 304}),
             boost::test_tools::per_element());
  BOOST_TEST(parts[0].resumed[0].logprobs.size() == 5u);
  out = admit_all(out);
  BOOST_TEST(sent<commit_transition>(out).size() == 3u);
  const auto epoch = plan().epoch;
  all_say(switched{epoch, 6, ms(1)});
  out = all_say(settled{epoch, false});
  const auto told = sent<recovery_record>(out, role_kind::trainer);
  BOOST_REQUIRE_EQUAL(told.size(), 1u);
  BOOST_TEST(told[0].requests == 1u);
  BOOST_TEST(told[0].tokens == 5u);
  BOOST_TEST(told[0].experts == 2u);
  BOOST_TEST((told[0].silence == ms(2500)));
  BOOST_TEST(machine.members.size() == 3u);
  // The response comes from wherever the request is now; the books close without the dead.
  for (std::uint32_t r = 0; r < 3; ++r)
    finish(r);
  const auto home = machine.rollout->requests.at(request_id{3}).home.value;
  rank(home, response{rollout_id{1}, request_id{3}, {1}, {0}, finish_reason::eos, 9});
  out = local(role_kind::recorder, response_kept{rollout_id{1}, request_id{3}});
  BOOST_TEST(sent<end_rollout>(out).size() == 3u);
}

BOOST_FIXTURE_TEST_CASE(hears_nothing_of_the_dead_any_more, planner_side) {
  run({});
  lose(3);
  const response late{rollout_id{1}, request_id{3}, {1}, {0}, finish_reason::eos, 5};
  BOOST_TEST(rank(3, late).empty());
  BOOST_TEST(rank(3, engine_failed{rank_id{3}, false, "late"}).empty());
  BOOST_TEST((machine.now_in == phase::running));
}

BOOST_FIXTURE_TEST_CASE(engines_that_wait_for_the_dead_are_no_failure, planner_side) {
  run({});
  rank(1, engine_failed{rank_id{1}, true, "connection lost to rank 3"});
  lose(3);
  rank(2, engine_failed{rank_id{2}, true, "connection lost to rank 3"});
  const auto out = admit_all(all_prepare());
  BOOST_TEST(sent<commit_transition>(out).size() == 3u);
  const auto epoch = plan().epoch;
  all_say(switched{epoch, 6, ms(1)});
  all_say(settled{epoch, false});
  rank(2, engine_failed{rank_id{2}, true, "repeated from the epoch before"});
  BOOST_TEST(sent<rollout_failed>(wait(machine.config.peer_lost_max + ms(100))).empty());
}

BOOST_FIXTURE_TEST_CASE(a_second_death_begins_anew_with_a_fresh_epoch, planner_side) {
  run({});
  lose(3);
  const auto first = plan().epoch;
  all_prepare(); // the request of rank 3 is on its way to one of the others
  const auto home = machine.rollout->requests.at(request_id{3}).home.value;
  const std::uint32_t second = home == 0 ? 1 : home;
  auto out = lose(second);
  BOOST_TEST((first < plan().epoch));
  BOOST_TEST(plan().members.size() == 2u);
  BOOST_TEST(plan().dead.size() == 2u);
  out = all_prepare();
  std::size_t rebuilt = 0;
  for (const auto& part : sent<admit_requests>(out))
    rebuilt += part.requests.size();
  BOOST_TEST(rebuilt >= 1u);
  for (const auto& [id, request] : machine.rollout->requests)
    BOOST_TEST(machine.lost.count(request.home) == 0u);
  for (int i = 0; i < 20 && machine.recovery; ++i) {
    admit_all(wait(ms(60))); // whatever is outstanding is repeated
    if (machine.transition.now_in == transition_coordinator::phase::committed)
      all_say(switched{plan().epoch, 6, ms(1)});
    if (machine.transition.now_in == transition_coordinator::phase::settling)
      all_say(settled{plan().epoch, false});
  }
  BOOST_TEST(!machine.recovery);
  BOOST_TEST(machine.members.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(a_request_on_its_way_to_the_dead_stays_where_it_was, planner_side) {
  run({});
  effects out;
  BOOST_REQUIRE(order_move(machine, request_id{1}, rank_id{3}, now, out));
  const auto key = sent<move_request>(out).at(0).key;
  lose(3);
  out = all_prepare();
  BOOST_TEST(sent<admit_requests>(out).empty()); // rank 1 has not said yet who has it
  out = rank(1, request_moved{key, rank_id{3}, move_outcome::given_up, 0, 0, 0, 0, "lost"});
  const auto parts = sent<admit_requests>(out);
  BOOST_REQUIRE_EQUAL(parts.size(), 1u);
  BOOST_TEST(parts[0].requests.size() == 1u);
  BOOST_TEST(parts[0].requests[0].id == request_id{3});
  BOOST_TEST(machine.rollout->requests.at(request_id{1}).home == rank_id{1});
}

BOOST_FIXTURE_TEST_CASE(a_request_that_had_reached_the_dead_is_rebuilt, planner_side) {
  run({});
  tell_tokens(1, 0, 4, 1);
  effects out;
  BOOST_REQUIRE(order_move(machine, request_id{1}, rank_id{3}, now, out));
  const auto key = sent<move_request>(out).at(0).key;
  lose(3);
  all_prepare();
  out = rank(1, request_moved{key, rank_id{3}, move_outcome::moved, 3, 9, 1, 0, ""});
  std::vector<std::uint64_t> rebuilt;
  for (const auto& part : sent<admit_requests>(out))
    for (const auto& r : part.requests)
      rebuilt.push_back(r.id.value);
  std::sort(rebuilt.begin(), rebuilt.end());
  BOOST_TEST(rebuilt == (std::vector<std::uint64_t>{1, 3}), boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(what_the_destination_took_from_the_dead_is_not_rebuilt, planner_side) {
  run({});
  effects out;
  BOOST_REQUIRE(order_move(machine, request_id{3}, rank_id{2}, now, out));
  lose(3);
  const auto p = plan();
  for (std::uint32_t r : {0u, 1u})
    rank(r, prepared{p.epoch, p.map_hash, experts_of(p.owners, rank_id{r}), 0, {}});
  out =
      rank(2, prepared{p.epoch, p.map_hash, experts_of(p.owners, rank_id{2}), 0, {request_id{3}}});
  BOOST_TEST(sent<admit_requests>(out).empty());
  BOOST_TEST(sent<commit_transition>(out).size() == 3u);
  BOOST_TEST(machine.rollout->requests.at(request_id{3}).home == rank_id{2});
}

BOOST_FIXTURE_TEST_CASE(takes_the_place_of_a_contraction_that_is_committed, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  all_prepare(); // committed, and nobody has switched
  const auto out = local(role_kind::membership,
                         member_lost{rank_id{5}, process_of(5), "it was silent", ms(2500)});
  const auto& p = machine.transition.plan;
  BOOST_TEST((p.kind == transition_kind::recover));
  BOOST_TEST(p.members.size() == 3u); // those of the contraction that live
  BOOST_TEST(p.leavers.size() == 4u); // they leave with the recovery
  BOOST_TEST(sent<prepare_transition>(out).size() == 7u);
}

BOOST_FIXTURE_TEST_CASE(a_rank_outside_of_the_group_is_missed_by_nobody, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  carry_through();
  auto out = local(role_kind::membership,
                   member_lost{rank_id{2}, process_of(2), "it was silent", ms(2500)});
  BOOST_TEST(sent<rank_lost>(out).size() == 1u);
  BOOST_TEST(sent<prepare_transition>(out).empty());
  finish_all_but({0, 1, 2, 3});
  out = local(role_kind::broker,
              leases_recalled{rollout_id{1}, {{rank_id{2}, {epoch_id{2}, 1}, "silent"}}});
  BOOST_TEST(sent<rank_quarantined>(out).empty()); // it was named already
  const auto plans = sent<prepare_transition>(out);
  BOOST_REQUIRE_EQUAL(plans.size(), 7u);
  BOOST_TEST(plans[0].members.size() == 7u);
  out = carry_through();
  BOOST_TEST(sent<end_rollout>(out).size() == 7u);
}

BOOST_FIXTURE_TEST_CASE(between_rollouts_the_next_one_waits_for_the_recovery, planner_side) {
  lose(2);
  BOOST_TEST((plan().kind == transition_kind::recover));
  BOOST_TEST(!plan().decode);
  BOOST_TEST(local(role_kind::trainer, order({})).empty());
  all_prepare();
  const auto epoch = plan().epoch;
  all_say(switched{epoch, 0, ms(0)});
  const auto out = all_say(settled{epoch, false});
  BOOST_TEST(sent<admit_requests>(out).size() == 3u);
  BOOST_TEST((machine.now_in == phase::admitting));
}

BOOST_FIXTURE_TEST_CASE(where_no_rank_of_the_group_is_left_it_says_so, planner_bench) {
  run_down_to({7}, {4, 2});
  for (int i = 0; i < 2; ++i)
    carry_through();
  const auto members = machine.members;
  BOOST_REQUIRE_EQUAL(members.size(), 2u);
  local(role_kind::membership, member_lost{members[1], process_of(members[1].value), "silent", {}});
  const auto out = local(role_kind::membership,
                         member_lost{members[0], process_of(members[0].value), "silent", {}});
  const auto failed = sent<rollout_failed>(out);
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].peer_lost);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(a_survivor)

namespace {

struct rank_side : rank_bench {
  static prepare_transition recovery(std::uint64_t epoch, std::vector<std::uint32_t> members,
                                     std::vector<std::uint32_t> dead) {
    auto p = plan(epoch, std::move(members), {}, transition_kind::recover);
    for (auto r : dead)
      p.dead.emplace_back(r);
    p.decode = true;
    return p;
  }
  effects peer(std::uint32_t r, any_message m) {
    return tell(say(r, role_kind::rank, machine.who.self, std::move(m)));
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(drops_an_open_transition_for_a_recovery, rank_side) {
  run_rollout(1);
  const auto contraction = plan(2, {0, 1}, {2, 3});
  planner(contraction);
  engine_ready(contraction);
  planner_stamp.epoch = contraction.epoch;
  planner(commit_transition{contraction.epoch}); // committed, not switched
  const auto p = recovery(3, {0, 1}, {3});
  auto out = planner(p);
  const auto told = sent<engine_prepare>(out, role_kind::engine);
  BOOST_REQUIRE_EQUAL(told.size(), 1u);
  BOOST_TEST(told[0].recover);
  BOOST_TEST(told[0].dead.size() == 1u);
  out = engine_ready(p);
  BOOST_TEST(sent<prepared>(out).size() == 1u);
  planner_stamp.epoch = p.epoch;
  out = planner(commit_transition{p.epoch});
  BOOST_REQUIRE_EQUAL(sent<engine_commit>(out).size(), 1u);
  BOOST_TEST(sent<engine_commit>(out)[0].decode);
  engine(switched{p.epoch, 7, ms(5)});
  BOOST_TEST(machine.who.stamp.epoch == epoch_id{3});
}

BOOST_FIXTURE_TEST_CASE(that_leaves_takes_part_while_its_engine_owes_an_answer, rank_side) {
  run_rollout(1);
  planner(move_request{{rollout_id{1}, request_id{0}, 1}, rank_id{2}}); // has just ended here
  auto p = plan(2, {0, 2}, {self}, transition_kind::recover);
  p.dead.emplace_back(3);
  BOOST_TEST(sent<refused>(planner(p)).size() == 1u); // it may own the request
  engine(rank_progress{rollout_id{1}, epoch_id{1}, 9, 0, 1, 9});
  p.epoch = epoch_id{3};
  BOOST_TEST(sent<engine_prepare>(planner(p)).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(is_not_taken_back_by_an_older_recovery_that_comes_late, rank_side) {
  run_rollout(1);
  planner(recovery(3, {0, 1}, {2, 3}));
  BOOST_TEST(planner(recovery(2, {0, 1, 2}, {3})).empty());
  BOOST_TEST(machine.transition->plan.epoch == epoch_id{3});
}

BOOST_FIXTURE_TEST_CASE(goes_on_with_a_request_that_was_on_its_way_to_the_dead, rank_side) {
  run_rollout(2);
  const move_key key{rollout_id{1}, request_id{0}, 1};
  planner(move_request{key, rank_id{3}});
  engine(engine_move_offer{key, 4});
  peer(3, move_accepted{key});
  engine(kv_ready{key, 0, 2, 99, true}); // the last round: only the destination knows
  auto out = planner(recovery(2, {0, 1, 2}, {3}));
  const auto ends = sent<engine_move_end>(out);
  BOOST_REQUIRE_EQUAL(ends.size(), 1u);
  BOOST_TEST((ends[0].outcome == move_outcome::given_up));
  out = engine(engine_move_ended{key, move_outcome::given_up, 2, 99, 1, 7});
  const auto moved = sent<request_moved>(out, role_kind::planner);
  BOOST_REQUIRE_EQUAL(moved.size(), 1u);
  BOOST_TEST((moved[0].outcome == move_outcome::given_up));
  BOOST_TEST(peer(3, move_committed{key, 8}).empty()); // the dead are not heard
}

BOOST_FIXTURE_TEST_CASE(frees_a_request_that_the_dead_had_finished, rank_side) {
  run_rollout(2);
  const move_key key{rollout_id{1}, request_id{0}, 1};
  planner(move_request{key, rank_id{3}});
  engine(engine_move_offer{key, 4});
  peer(3, move_accepted{key});
  engine(kv_ready{key, 0, 2, 99, true});
  auto p = recovery(2, {0, 1, 2}, {3});
  p.ended = {request_id{0}};
  const auto ends = sent<engine_move_end>(planner(p));
  BOOST_REQUIRE_EQUAL(ends.size(), 1u);
  BOOST_TEST((ends[0].outcome == move_outcome::moved));
}

BOOST_FIXTURE_TEST_CASE(says_what_it_took_from_the_dead_once_that_is_certain, rank_side) {
  run_rollout(1);
  const move_key taken{rollout_id{1}, request_id{7}, 1}, open{rollout_id{1}, request_id{8}, 2};
  for (const auto& key : {taken, open}) {
    peer(3, move_offer{key, 4});
    engine(move_accepted{key});
    peer(3, kv_ready{key, 0, 2, 99, true});
  }
  engine(move_committed{taken, 7});
  const auto p = recovery(2, {0, 1, 2}, {3});
  auto out = planner(p);
  BOOST_TEST(sent<engine_receive_cancel>(out).size() == 1u); // of the one that is being pulled
  BOOST_TEST(sent<prepared>(engine_ready(p)).empty());
  out = engine(move_cancelled{open});
  const auto answer = sent<prepared>(out, role_kind::planner);
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_TEST(answer[0].taken == (std::vector<request_id>{request_id{7}}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(does_not_claim_what_it_gave_back_to_the_dead, rank_side) {
  run_rollout(1);
  const move_key here{rollout_id{1}, request_id{7}, 1}, back{rollout_id{1}, request_id{7}, 2};
  peer(3, move_offer{here, 4});
  engine(move_accepted{here});
  peer(3, kv_ready{here, 0, 2, 99, true});
  engine(move_committed{here, 7});
  planner(move_request{back, rank_id{3}});
  engine(engine_move_offer{back, 4});
  peer(3, move_accepted{back});
  engine(kv_ready{back, 0, 2, 99, true});
  peer(3, move_committed{back, 9});
  engine(engine_move_ended{back, move_outcome::moved, 2, 99, 1, 8});
  const auto p = recovery(2, {0, 1, 2}, {3});
  planner(p);
  const auto answer = sent<prepared>(engine_ready(p), role_kind::planner);
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_TEST(answer[0].taken.empty());
}

BOOST_FIXTURE_TEST_CASE(keeps_what_a_recovery_brings_from_a_late_settling, rank_side) {
  run_rollout(1);
  const auto contraction = plan(2, {0, 1}, {2, 3});
  planner(contraction);
  engine_ready(contraction);
  planner_stamp.epoch = contraction.epoch;
  planner(commit_transition{contraction.epoch});
  engine(switched{contraction.epoch, 7, ms(1)});
  planner(recovery(3, {0, 1}, {3}));
  BOOST_TEST(sent<engine_settle>(planner(settle_transition{contraction.epoch})).empty());
}

BOOST_FIXTURE_TEST_CASE(that_was_declared_dead_itself_ends, rank_side) {
  run_rollout(1);
  const member_lost news{rank_id{self}, process_of(self), "rank 1 was silent for 3000 ms",
                         ms(3000)};
  const auto out = tell(say(0, role_kind::membership, machine.who.self, news, planner_stamp));
  BOOST_TEST(sent<member_lost>(out, role_kind::engine).size() == 1u);
  BOOST_TEST(sent<stop>(out, role_kind::sidecar).size() == 1u);
  BOOST_TEST(machine.stopping);
}

BOOST_AUTO_TEST_SUITE_END()
