// The rank's machine: what it obeys, what it answers again, what it refuses.
#define BOOST_TEST_MODULE protocol_rank
#include "tests/planner/protocol/rank_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

response answer(std::uint32_t request) {
  return {rollout_id{1}, request_id{request}, {4, 5}, {-1, -2}, finish_reason::eos, 3};
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(rollout, rank_bench)

BOOST_AUTO_TEST_CASE(a_doubled_part_is_admitted_once_and_answered_twice) {
  auto out = planner(admission(3));
  BOOST_TEST(sent<engine_admit>(out).size() == 1u);
  BOOST_TEST(sent<requests_admitted>(out).size() == 1u);
  out = planner(admission(3));
  BOOST_TEST(sent<engine_admit>(out).empty());
  BOOST_TEST(sent<requests_admitted>(out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(start_waits_for_every_part_and_reaches_the_engine_once) {
  auto a = admission(1);
  a.parts = 2;
  planner(a);
  BOOST_TEST(planner(start_rollout{rollout_id{1}, ms(1)}).empty());
  a.part = 1;
  planner(a);
  BOOST_TEST(sent<engine_start>(planner(start_rollout{rollout_id{1}, ms(1)})).size() == 1u);
  const auto again = planner(start_rollout{rollout_id{1}, ms(1)});
  BOOST_TEST(sent<engine_start>(again).empty());
  BOOST_TEST(sent<rollout_started>(again).size() == 1u);
}

BOOST_AUTO_TEST_CASE(stale_first_request_message_rewinds_nothing) {
  run_rollout(1);
  finish_requests(1);
  planner(end_rollout{rollout_id{1}, ms(2000)});
  run_rollout(1, 2);
  const auto late = planner(admission(1, 1));
  BOOST_TEST(late.empty());
  BOOST_TEST(machine.rollout->id == rollout_id{2});
  BOOST_TEST(machine.drops.stale_rollout == 1u);
}

BOOST_AUTO_TEST_CASE(late_wake_message_does_not_start_a_finished_rollout_again) {
  run_rollout(1);
  finish_requests(1);
  planner(end_rollout{rollout_id{1}, ms(2000)});
  BOOST_TEST(sent<engine_start>(planner(start_rollout{rollout_id{1}, ms(900)})).empty());
}

BOOST_AUTO_TEST_CASE(responses_are_repeated_until_durable_within_a_window) {
  run_rollout(3);
  BOOST_TEST(sent<response>(engine(answer(0))).size() == 1u);
  BOOST_TEST(sent<response>(engine(answer(1))).size() == 1u);
  BOOST_TEST(sent<response>(engine(answer(2))).empty()); // the window is full
  BOOST_TEST(sent<response>(wait(ms(60))).size() == 2u);
  const auto next = sent<response>(planner(response_kept{rollout_id{1}, request_id{1}}));
  BOOST_REQUIRE_EQUAL(next.size(), 1u);
  BOOST_TEST(next[0].request == request_id{2});
  planner(response_kept{rollout_id{1}, request_id{0}});
  planner(response_kept{rollout_id{1}, request_id{0}});
  planner(response_kept{rollout_id{1}, request_id{2}});
  BOOST_TEST(sent<response>(wait(ms(500))).empty());
}

BOOST_AUTO_TEST_CASE(the_report_waits_for_the_engine_and_covers_the_rollout) {
  run_rollout(1);
  now += ms(100);
  BOOST_TEST(planner(end_rollout{rollout_id{1}, ms(1200)}).empty());
  engine(rank_progress{rollout_id{1}, epoch_id{1}, 9, 0, 1, 9});
  const auto report =
      sent<rollout_report>(engine(engine_state{rollout_id{1}, rank_state::idle, ms(1100), 9}));
  BOOST_REQUIRE_EQUAL(report.size(), 1u);
  BOOST_TEST((report[0].intervals.front().begin == ms(900)));
  BOOST_TEST((report[0].intervals.back().end == ms(1200)));
  const auto again = sent<rollout_report>(planner(end_rollout{rollout_id{1}, ms(1200)}));
  BOOST_REQUIRE_EQUAL(again.size(), 1u);
  BOOST_TEST((again[0] == report[0]));
}

BOOST_AUTO_TEST_CASE(a_replaced_planner_is_not_obeyed) {
  planner_stamp.term = term_id{2};
  planner(admission(1));
  planner_stamp.term = term_id{1};
  BOOST_TEST(planner(start_rollout{rollout_id{1}, ms(1)}).empty());
  BOOST_TEST(machine.drops.stale_term == 1u);
}

BOOST_AUTO_TEST_CASE(a_rollout_of_another_policy_is_not_served) {
  planner_stamp.weights = weights_id{2};
  BOOST_TEST(planner(admission(1)).empty());
  BOOST_TEST(machine.drops.stale_weights == 1u);
}

BOOST_AUTO_TEST_CASE(only_the_own_engine_speaks_for_the_engine) {
  run_rollout(1);
  BOOST_TEST(tell(say(2, role_kind::engine, machine.who.self, answer(0))).empty());
  BOOST_TEST(machine.drops.unexpected == 1u);
}

BOOST_AUTO_TEST_CASE(dead_engine_is_told_until_the_job_stops) {
  BOOST_TEST(sent<engine_failed>(engine(engine_failed{rank_id{3}, true, "x"})).size() == 1u);
  BOOST_TEST(sent<engine_failed>(wait(ms(200))).size() >= 3u);
  planner(stop{"end"});
  BOOST_TEST(sent<engine_failed>(wait(ms(200))).empty());
}

BOOST_AUTO_TEST_CASE(a_planner_that_was_never_heard_may_still_start) {
  machine.config.planner_first_max = ms(30'000);
  wait(ms(29'000));
  BOOST_TEST(!machine.orphaned);
  wait(ms(2'000));
  BOOST_TEST(machine.orphaned);
}

BOOST_AUTO_TEST_CASE(a_planner_that_answers_heartbeats_lives_however_little_it_says) {
  machine.config.planner_first_max = ms(30'000);
  for (int i = 0; i < 3; ++i) {
    const auto at = now.time_since_epoch();
    tell(say(0, role_kind::membership, machine.who.self, heartbeat_seen{0, at - ms(1), at},
             planner_stamp));
    wait(ms(9'000));
    BOOST_TEST(!machine.orphaned);
  }
  const auto out = wait(ms(2'000));
  BOOST_TEST(machine.orphaned); // No longer may it still start.
  const auto lost = sent<member_lost>(out, role_kind::engine);
  BOOST_REQUIRE_EQUAL(lost.size(), 1u);
  BOOST_TEST((lost[0].silence > ms(10'000) && lost[0].silence < ms(11'000)));
}

BOOST_AUTO_TEST_CASE(a_silent_planner_ends_engine_and_sidecar) {
  const auto out = wait(ms(11'000));
  BOOST_TEST(machine.orphaned);
  const auto lost = sent<member_lost>(out, role_kind::engine);
  BOOST_REQUIRE_EQUAL(lost.size(), 1u);
  BOOST_TEST(lost[0].rank == rank_id{0});
  BOOST_TEST(sent<stop>(out, role_kind::sidecar).size() == 1u);
}

BOOST_AUTO_TEST_CASE(stop_reaches_engine_and_sidecar_once_and_is_answered_each_time) {
  auto out = planner(stop{"end"});
  BOOST_TEST(sent<stop>(out).size() == 2u);
  BOOST_TEST(sent<stopped>(out).size() == 1u);
  out = planner(stop{"end"});
  BOOST_TEST(sent<stop>(out).empty());
  BOOST_TEST(sent<stopped>(out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(weight_update_never_races_a_forward) {
  run_rollout(1);
  BOOST_TEST(sent<weights_refused>(planner(update_weights{weights_id{2}, "x"})).size() == 1u);
}

BOOST_AUTO_TEST_CASE(weights_are_loaded_once_and_confirmed_again) {
  auto out = planner(update_weights{weights_id{2}, "x"});
  BOOST_TEST(sent<update_weights>(out, role_kind::engine).size() == 1u);
  BOOST_TEST(planner(update_weights{weights_id{2}, "x"}).empty());
  BOOST_TEST(sent<weights_refused>(planner(update_weights{weights_id{3}, "y"})).size() == 1u);
  BOOST_TEST(sent<weights_updated>(engine(weights_updated{weights_id{2}, 5, 9})).size() == 1u);
  BOOST_TEST(machine.who.stamp.weights == weights_id{2});
  BOOST_TEST(sent<weights_updated>(planner(update_weights{weights_id{2}, "x"})).size() == 1u);
  BOOST_TEST(sent<weights_refused>(planner(update_weights{weights_id{1}, "x"})).size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_FIXTURE_TEST_SUITE(transition, rank_bench)

BOOST_AUTO_TEST_CASE(every_order_is_answered_again_and_reaches_the_engine_once) {
  const auto p = plan(2, {0, self}, {2, 3});
  BOOST_TEST(sent<engine_prepare>(planner(p)).size() == 1u);
  BOOST_TEST(planner(p).empty());
  BOOST_TEST(sent<prepared>(engine_ready(p)).size() == 1u);
  auto out = planner(p);
  BOOST_TEST(sent<prepared>(out).size() == 1u);
  BOOST_TEST(sent<engine_prepare>(out).empty());
  planner_stamp.epoch = p.epoch;
  BOOST_TEST(sent<engine_commit>(planner(commit_transition{p.epoch})).size() == 1u);
  BOOST_TEST(planner(commit_transition{p.epoch}).empty());
  BOOST_TEST(planner(settle_transition{p.epoch}).empty()); // not switched yet
  BOOST_TEST(sent<switched>(engine(switched{p.epoch, 7, ms(1)})).size() == 1u);
  BOOST_TEST(machine.who.stamp.epoch == p.epoch);
  // Ownership is never unknown after a lost answer to a commit.
  BOOST_TEST(sent<switched>(planner(commit_transition{p.epoch})).size() == 1u);
  out = planner(settle_transition{p.epoch});
  BOOST_TEST(sent<engine_settle>(out).size() == 1u);
  BOOST_REQUIRE_EQUAL(sent<settled>(out).size(), 1u);
  BOOST_TEST(!sent<settled>(out)[0].detached);
  out = planner(settle_transition{p.epoch});
  BOOST_TEST(sent<engine_settle>(out).empty());
  BOOST_TEST(sent<settled>(out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(late_wake_message_does_not_rearm_an_aborted_epoch) {
  const auto p = plan(2, {0, self}, {2, 3});
  planner(p);
  auto out = planner(abort_transition{p.epoch, "x"});
  BOOST_TEST(sent<engine_abort>(out).size() == 1u); // nothing stays reserved
  BOOST_TEST(sent<transition_aborted>(out).size() == 1u);
  BOOST_TEST(planner(p).empty());
  BOOST_TEST(machine.drops.stale_epoch == 1u);
  BOOST_TEST(sent<transition_aborted>(planner(abort_transition{p.epoch, "x"})).size() == 1u);
  BOOST_TEST(engine_ready(p).empty()); // the engine's late answer
}

BOOST_AUTO_TEST_CASE(an_abort_that_overtakes_its_prepare_wins) {
  const auto p = plan(2, {0, self}, {2, 3});
  BOOST_TEST(sent<transition_aborted>(planner(abort_transition{p.epoch, "x"})).size() == 1u);
  BOOST_TEST(planner(p).empty());
}

BOOST_AUTO_TEST_CASE(failed_scale_leaves_nothing_in_progress) {
  const auto p = plan(2, {0, self}, {2, 3});
  planner(p);
  const auto no = sent<refused>(engine(engine_refused{p.epoch, refusal::no_memory, "full"}));
  BOOST_REQUIRE_EQUAL(no.size(), 1u);
  BOOST_TEST((no[0].reason == refusal::no_memory));
  BOOST_TEST(sent<refused>(planner(p)).size() == 1u); // answered again, not tried again
  BOOST_TEST(!machine.transition);
  BOOST_TEST(sent<engine_prepare>(planner(plan(3, {0, self}, {2, 3}))).size() == 1u);
}

BOOST_AUTO_TEST_CASE(requests_on_a_removed_rank_are_not_dropped) {
  run_rollout(2);
  const auto no = sent<refused>(planner(plan(2, {2, 3}, {0, self})));
  BOOST_REQUIRE_EQUAL(no.size(), 1u);
  BOOST_TEST((no[0].reason == refusal::owns_requests));
  finish_requests(2);
  BOOST_TEST(sent<engine_prepare>(planner(plan(3, {2, 3}, {0, self}))).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_map_built_from_the_plan_instead_of_the_slots_is_refused) {
  const auto p = plan(2, {0, self}, {2, 3});
  planner(p);
  const auto out = engine(engine_prepared{p.epoch, p.map_hash, 3, 0}); // 4 are due
  BOOST_TEST(sent<engine_abort>(out).size() == 1u);
  BOOST_REQUIRE_EQUAL(sent<refused>(out).size(), 1u);
  BOOST_TEST((sent<refused>(out)[0].reason == refusal::bad_map));
}

BOOST_AUTO_TEST_CASE(an_expert_on_no_rank_is_refused) {
  auto p = plan(2, {0, self}, {2, 3});
  p.owners[5] = rank_id{3};
  p.map_hash = expert_map_hash(p.owners);
  BOOST_REQUIRE_EQUAL(sent<refused>(planner(p)).size(), 1u);
  auto q = plan(3, {0, self}, {2, 3});
  q.map_hash ^= 1;
  BOOST_REQUIRE_EQUAL(sent<refused>(planner(q)).size(), 1u);
}

BOOST_AUTO_TEST_CASE(a_committed_transition_is_not_taken_back) {
  const auto p = plan(2, {0, self}, {2, 3});
  planner(p);
  engine_ready(p);
  planner(commit_transition{p.epoch});
  BOOST_TEST(planner(abort_transition{p.epoch, "x"}).empty());
  BOOST_TEST(machine.drops.stale_epoch == 1u);
}

BOOST_AUTO_TEST_CASE(an_unprepared_commit_is_dropped) {
  planner(plan(2, {0, self}, {2, 3}));
  BOOST_TEST(planner(commit_transition{epoch_id{2}}).empty());
}

BOOST_AUTO_TEST_CASE(orders_of_a_group_that_is_gone_are_dropped) {
  leave();
  planner_stamp.epoch = epoch_id{1};
  BOOST_TEST(planner(plan(5, {0, self}, {2, 3})).empty());
  BOOST_TEST(machine.drops.stale_epoch == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_FIXTURE_TEST_SUITE(lease_gate, rank_bench)

BOOST_AUTO_TEST_CASE(a_member_is_never_lent) {
  const auto no = broker(lease_grant{{epoch_id{1}, 1}, ms(1000), ms(100), 0});
  BOOST_TEST(sent<lease_denied>(no).size() == 1u);
  BOOST_TEST(sent<lease_grant>(no).empty());
}

BOOST_AUTO_TEST_CASE(a_leaver_is_lent_only_after_it_settled_and_under_its_epoch) {
  const auto p = plan(2, {2, 3}, {0, self});
  planner(p);
  engine_ready(p);
  planner_stamp.epoch = p.epoch;
  planner(commit_transition{p.epoch});
  engine(switched{p.epoch, 7, ms(1)});
  BOOST_TEST(sent<lease_denied>(broker(lease_grant{{p.epoch, 1}, ms(1000), ms(100), 0})).size()
             == 1u);
  BOOST_TEST(sent<settled>(planner(settle_transition{p.epoch}))[0].detached);
  BOOST_TEST(sent<lease_denied>(broker(lease_grant{{epoch_id{1}, 2}, ms(1000), ms(100), 0})).size()
             == 1u);
  BOOST_TEST(
      sent<lease_grant>(broker(lease_grant{{p.epoch, 3}, ms(1000), ms(100), 0}), role_kind::sidecar)
          .size()
      == 1u);
}

BOOST_AUTO_TEST_CASE(a_lent_rank_refuses_to_join_until_the_lease_is_back) {
  leave();
  const lease_id id{epoch_id{2}, 1};
  broker(lease_grant{id, ms(1000), ms(100), 0});
  sidecar(lease_accepted{id});
  auto p = plan(3, {0, 1, 2, 3}, {}, transition_kind::restore);
  p.from_epoch = epoch_id{2};
  const auto no = sent<refused>(planner(p));
  BOOST_REQUIRE_EQUAL(no.size(), 1u);
  BOOST_TEST((no[0].reason == refusal::lease_active));
  BOOST_TEST(sent<lease_returned>(sidecar(lease_returned{id, false, true, 4})).size() == 1u);
  p.epoch = epoch_id{4};
  BOOST_TEST(sent<engine_prepare>(planner(p)).size() == 1u);
  BOOST_TEST(sent<lease_denied>(broker(lease_grant{{epoch_id{2}, 2}, ms(1000), ms(100), 0})).size()
             == 1u);
}

BOOST_AUTO_TEST_CASE(a_grant_that_arrives_after_its_revocation_is_dead) {
  leave();
  const lease_id id{epoch_id{2}, 1};
  const auto back = sent<lease_returned>(broker(lease_revoke{id, ms(10)}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].units_done == 0u);
  const auto late = broker(lease_grant{id, ms(1000), ms(100), 0});
  BOOST_TEST(sent<lease_denied>(late).size() == 1u);
  BOOST_TEST(sent<lease_grant>(late).empty());
}

BOOST_AUTO_TEST_CASE(a_return_is_told_until_it_is_closed) {
  leave();
  const lease_id id{epoch_id{2}, 1};
  broker(lease_grant{id, ms(1000), ms(100), 0});
  BOOST_TEST(sent<lease_accepted>(sidecar(lease_accepted{id})).size() == 1u);
  BOOST_TEST(sent<lease_accepted>(broker(lease_grant{id, ms(1000), ms(100), 0})).size() == 1u);
  sidecar(lease_returned{id, false, true, 4});
  BOOST_TEST(sent<lease_returned>(wait(ms(120))).size() == 2u);
  BOOST_TEST(sent<lease_returned>(broker(lease_grant{id, ms(1000), ms(100), 0})).size() == 1u);
  broker(lease_closed{id});
  BOOST_TEST(sent<lease_returned>(wait(ms(200))).empty());
}

BOOST_AUTO_TEST_CASE(an_unproven_end_keeps_the_rank_out_for_good) {
  leave();
  const lease_id id{epoch_id{2}, 1};
  broker(lease_grant{id, ms(1000), ms(100), 0});
  sidecar(lease_accepted{id});
  sidecar(lease_returned{id, true, false, 0});
  auto p = plan(3, {0, 1, 2, 3}, {}, transition_kind::restore);
  p.from_epoch = epoch_id{2};
  BOOST_REQUIRE_EQUAL(sent<refused>(planner(p)).size(), 1u);
  BOOST_TEST(sent<lease_denied>(broker(lease_grant{{epoch_id{2}, 2}, ms(1000), ms(100), 0})).size()
             == 1u);
}

BOOST_AUTO_TEST_CASE(leased_time_is_in_the_report) {
  run_rollout(0);
  engine(engine_state{rollout_id{1}, rank_state::idle, now.time_since_epoch(), 3});
  leave();
  const lease_id id{epoch_id{2}, 1};
  now += ms(100);
  broker(lease_grant{id, ms(1000), ms(100), 0});
  sidecar(lease_accepted{id});
  now += ms(200);
  sidecar(lease_returned{id, false, true, 4});
  now += ms(100);
  const auto report =
      sent<rollout_report>(planner(end_rollout{rollout_id{1}, now.time_since_epoch()}));
  BOOST_REQUIRE_EQUAL(report.size(), 1u);
  microseconds leased{0};
  for (const auto& i : report[0].intervals)
    if (i.state == rank_state::leased) leased += i.end - i.begin;
  BOOST_TEST((leased == ms(200)));
}

BOOST_AUTO_TEST_SUITE_END()
