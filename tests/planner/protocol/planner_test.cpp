// The planner: a rollout from admission to the full world being back, with ranks played by the
// test.
#define BOOST_TEST_MODULE protocol_planner
#include "tests/planner/protocol/planner_bench.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace adafloor;
using namespace adafloor::testing;
using phase = planner_machine::phase;

namespace {

struct small_world : planner_bench {
  small_world() : planner_bench(4) {}
};
struct large_world : planner_bench {
  large_world() : planner_bench(16) {}
};

} // namespace

BOOST_AUTO_TEST_SUITE(rollout)

BOOST_FIXTURE_TEST_CASE(without_contraction_nothing_is_restored, small_world) {
  auto out = local(role_kind::trainer, order({}));
  BOOST_TEST(receivers<admit_requests>(out) == (std::vector<std::uint32_t>{0, 1, 2, 3}),
             boost::test_tools::per_element());
  for (std::uint32_t r = 0; r < 4; ++r)
    out = rank(r, requests_admitted{rollout_id{1}, 0});
  BOOST_TEST(sent<start_rollout>(out).size() == 4u);
  for (std::uint32_t r = 0; r < 4; ++r)
    rank(r, rollout_started{rollout_id{1}});
  out = finish_all_but({});
  BOOST_TEST(sent<recall_leases>(out).empty());
  BOOST_TEST(sent<end_rollout>(out).size() == 4u);
  for (std::uint32_t r = 0; r < 4; ++r)
    out = rank(r, rollout_report{rollout_id{1}, {}, 5, 1});
  BOOST_TEST(sent<rollout_done>(out).size() == 1u);
  BOOST_REQUIRE_EQUAL(sent<rollout_report>(out, role_kind::trainer).size(), 1u);
  BOOST_TEST(out[0].from.rank == rank_id{3}); // the trainer learns whose report it is
  BOOST_TEST((machine.now_in == phase::idle));
}

BOOST_FIXTURE_TEST_CASE(orders_are_repeated_until_acknowledged_and_no_longer, small_world) {
  local(role_kind::trainer, order({}));
  rank(0, requests_admitted{rollout_id{1}, 0});
  const auto out = wait(ms(60));
  BOOST_TEST(receivers<admit_requests>(out) == (std::vector<std::uint32_t>{1, 2, 3}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_response_is_acknowledged_only_when_durable_and_again_after, small_world) {
  run({});
  const response done{rollout_id{1}, request_id{2}, {1}, {0}, finish_reason::eos, 5};
  auto out = rank(2, done);
  BOOST_TEST(sent<response>(out, role_kind::recorder).size() == 1u);
  BOOST_TEST(sent<response_kept>(out).empty());
  BOOST_TEST(rank(2, done).empty()); // doubled while it is being stored
  out = local(role_kind::recorder, response_kept{rollout_id{1}, request_id{2}});
  BOOST_TEST(sent<response_kept>(out, role_kind::rank).size() == 1u);
  out = rank(2, done);
  BOOST_TEST(sent<response_kept>(out, role_kind::rank).size() == 1u);
  BOOST_TEST(sent<response>(out).empty());
  BOOST_TEST(rank(3, done).empty()); // not its request
}

BOOST_FIXTURE_TEST_CASE(late_progress_rewinds_nothing, small_world) {
  run({2});
  rank(0, rank_progress{rollout_id{1}, epoch_id{1}, 9, 0, 1, 9});
  rank(0, rank_progress{rollout_id{1}, epoch_id{1}, 3, 1, 0, 3});
  BOOST_TEST(machine.rollout->ranks[rank_id{0}].finished());
}

BOOST_FIXTURE_TEST_CASE(impossible_orders_are_refused_with_a_reason, small_world) {
  auto bad = order({});
  bad.homes[1] = rank_id{9};
  BOOST_REQUIRE_EQUAL(sent<rollout_failed>(local(role_kind::trainer, bad)).size(), 1u);
  auto twice = order({});
  twice.requests[1].id = twice.requests[0].id;
  BOOST_REQUIRE_EQUAL(sent<rollout_failed>(local(role_kind::trainer, twice)).size(), 1u);
  BOOST_REQUIRE_EQUAL(sent<rollout_failed>(local(role_kind::trainer, order({4}))).size(), 1u);
  auto resumed = order({});
  for (const auto& run : {token_run{request_id{77}, 0, {1}, {-1}}, // not in the order
                          token_run{request_id{1}, 1, {1}, {-1}},  // not from the beginning
                          token_run{request_id{1}, 0, {1, 2}, {-1}}}) {
    resumed.resumed = {run};
    BOOST_REQUIRE_EQUAL(sent<rollout_failed>(local(role_kind::trainer, resumed)).size(), 1u);
  }
  run({});
  const auto busy = sent<rollout_failed>(local(role_kind::trainer, order({}, 2)));
  BOOST_REQUIRE_EQUAL(busy.size(), 1u);
  BOOST_TEST(busy[0].rollout == rollout_id{2});
  BOOST_TEST((machine.now_in == phase::running)); // and the running one goes on
}

BOOST_FIXTURE_TEST_CASE(what_an_earlier_try_generated_goes_along_in_parts_that_fit, small_world) {
  machine.config.part_tokens_max = 3;
  auto begun = order({});
  begun.requests.push_back(begun.requests[2]);
  begun.requests.back().id = request_id{9};
  begun.homes.push_back(begun.homes[2]);
  begun.resumed = {{begun.requests[2].id, 0, {1, 2}, {-1, -2}}, {request_id{9}, 0, {3, 4}, {0, 0}}};
  const auto parts = sent<admit_requests>(local(role_kind::trainer, begun), role_kind::rank);
  BOOST_REQUIRE_EQUAL(parts.size(), 5u);
  std::vector<token_run> along;
  for (const auto& part : parts) {
    BOOST_TEST(part.resumed.size() <= 1u); // four tokens do not fit
    for (const auto& run : part.resumed) {
      BOOST_REQUIRE_EQUAL(part.requests.size(), 1u);
      BOOST_TEST(part.requests[0].id == run.request);
      along.push_back(run);
    }
  }
  BOOST_TEST((along == begun.resumed));
}

BOOST_FIXTURE_TEST_CASE(a_rank_that_never_admits_is_named, small_world) {
  local(role_kind::trainer, order({}));
  for (std::uint32_t r = 0; r < 3; ++r)
    rank(r, requests_admitted{rollout_id{1}, 0});
  const auto failed = sent<rollout_failed>(wait(machine.config.admit_max + ms(50)));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].text.find("rank 3") != std::string::npos);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}, 2))).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(dead_engine_is_not_reported_as_success, small_world) {
  run({});
  const auto failed = sent<rollout_failed>(rank(2, engine_failed{rank_id{2}, false, "no memory"}));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(!failed[0].peer_lost);
  BOOST_TEST(sent<rollout_failed>(finish_all_but({})).empty()); // told once
}

BOOST_FIXTURE_TEST_CASE(an_engine_that_waits_for_ever_ends_the_rollout_where_all_ranks_live,
                        small_world) {
  run({});
  BOOST_TEST(rank(2, engine_failed{rank_id{1}, true, "frozen"}).empty());
  const auto failed = sent<rollout_failed>(wait(machine.config.peer_lost_max + ms(50)));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].peer_lost);
  BOOST_TEST(failed[0].text.find("rank 2 failed waiting for rank 1") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_lost_rank_without_recovery_ends_the_rollout, small_world) {
  machine.config.recover = false;
  run({});
  const auto failed = sent<rollout_failed>(
      local(role_kind::membership, member_lost{rank_id{3}, process_of(3), "silent"}));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].peer_lost);
  auto out = local(role_kind::trainer, stop{"end"});
  BOOST_TEST(sent<stop>(out).size() == 3u);
  for (std::uint32_t r = 0; r < 3; ++r)
    out = rank(r, stopped{process_of(r)});
  BOOST_TEST(sent<stopped>(out, role_kind::trainer).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_stop_that_nobody_answers_ends_anyway, small_world) {
  local(role_kind::trainer, stop{"end"});
  const auto out = wait(machine.config.stop_max + ms(100));
  BOOST_TEST(sent<stopped>(out, role_kind::trainer).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(another_incarnation_or_term_is_not_heard, small_world) {
  run({});
  auto e = say(2, role_kind::rank, machine.who.self,
               response{rollout_id{1}, request_id{2}, {1}, {0}, finish_reason::eos, 5});
  e.incarnation = incarnation_id{5};
  BOOST_TEST(tell(e).empty());
  BOOST_TEST(machine.drops.stale_incarnation == 1u);
  e.incarnation = process_of(2);
  e.stamp.term = term_id{0};
  BOOST_TEST(tell(e).empty());
  BOOST_TEST(machine.drops.stale_term == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(contraction)

BOOST_FIXTURE_TEST_CASE(nine_unfinished_ranks_do_not_fit_eight, large_world) {
  run_down_to({0, 2, 4, 6, 8, 10, 12, 14, 15}, {8, 4, 2});
  BOOST_TEST(!preparing());
}

BOOST_FIXTURE_TEST_CASE(completions_that_skip_a_stage_size_still_shrink, large_world) {
  run_down_to({0, 2, 4, 6, 8, 10, 12}, {8, 4, 2}); // seven: padded to eight
  BOOST_REQUIRE(preparing());
  BOOST_TEST(machine.transition.plan.members.size() == 8u);
  carry_through();
  BOOST_TEST(!preparing());
}

BOOST_FIXTURE_TEST_CASE(five_to_one_visits_four_and_then_two, planner_bench) {
  run_down_to({7}, {4, 2});
  for (std::size_t size : {4u, 2u}) {
    BOOST_REQUIRE(preparing());
    const auto& members = machine.transition.plan.members;
    BOOST_TEST(members.size() == size);
    BOOST_TEST(std::count(members.begin(), members.end(), rank_id{7}) == 1);
    carry_through();
  }
  BOOST_TEST(!preparing());
  BOOST_TEST(machine.members.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(only_observed_ends_count_never_predicted_ones, planner_bench) {
  run({4});
  for (std::uint32_t r = 0; r < world; ++r) // far beyond the predicted tail
    rank(r, rank_progress{rollout_id{1}, epoch_id{1}, 5'000, 1, 0, 5'000});
  BOOST_TEST(!preparing());
}

BOOST_FIXTURE_TEST_CASE(plan_and_execution_choose_the_same_survivors, planner_bench) {
  run_down_to({2, 5, 7}, {4});
  BOOST_REQUIRE(preparing());
  const auto planned =
      survivors_for({rank_id{2}, rank_id{5}, rank_id{7}}, machine.world, 4).value();
  BOOST_TEST((machine.transition.plan.members == planned));
}

BOOST_FIXTURE_TEST_CASE(the_sender_takes_part_in_its_own_broadcast, planner_bench) {
  run({4});
  auto out = finish_all_but({4, 5, 6, 7});
  BOOST_TEST(receivers<prepare_transition>(out).size() == 8u);
  BOOST_TEST(receivers<prepare_transition>(out)[0] == 0u);
  out = all_prepare();
  BOOST_TEST(receivers<commit_transition>(out).size() == 8u);
  BOOST_TEST(receivers<commit_transition>(out)[0] == 0u);
}

BOOST_FIXTURE_TEST_CASE(leavers_are_lent_only_when_all_confirmed, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  const auto epoch = machine.transition.plan.epoch;
  BOOST_TEST(sent<rank_available>(all_prepare()).empty());
  effects out;
  for (std::uint32_t r = 0; r < 7; ++r)
    out = rank(r, switched{epoch, 6, ms(1)});
  BOOST_TEST(sent<settle_transition>(out).empty()); // rank 7 may still need the leavers
  out = rank(7, switched{epoch, 6, ms(1)});
  BOOST_TEST(sent<settle_transition>(out).size() == 8u);
  out = rank(2, settled{epoch, true});
  BOOST_TEST(sent<rank_available>(out, role_kind::broker).size() == 1u);
  BOOST_TEST(rank(2, settled{epoch, true}).empty()); // doubled
  BOOST_TEST(sent<rank_available>(rank(5, settled{epoch, false})).empty());
}

BOOST_FIXTURE_TEST_CASE(failed_scale_is_undone_and_tried_again_with_a_fresh_epoch, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  std::vector<epoch_id> epochs;
  for (std::uint32_t attempt = 0; attempt < machine.config.attempts_max; ++attempt) {
    BOOST_REQUIRE(preparing());
    epochs.push_back(machine.transition.plan.epoch);
    const auto out = rank(5, refused{epochs.back(), refusal::no_memory, "full"});
    BOOST_TEST(sent<abort_transition>(out).size() == 8u);
    all_say(transition_aborted{epochs.back()});
    BOOST_TEST(!preparing());
    wait(machine.config.retry_pause + ms(20));
  }
  BOOST_TEST(!preparing()); // restart loops have a cap
  BOOST_TEST(std::is_sorted(epochs.begin(), epochs.end()));
  BOOST_TEST((std::adjacent_find(epochs.begin(), epochs.end()) == epochs.end()));
  finish_all_but({}); // and the rollout goes on at the old epoch
  BOOST_TEST((machine.now_in == phase::reporting));
  BOOST_TEST(machine.members.size() == 8u);
}

BOOST_FIXTURE_TEST_CASE(a_rank_that_does_not_prepare_in_time_aborts_it, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  const auto out = wait(machine.config.transition.prepare_max + ms(50));
  BOOST_TEST(sent<abort_transition>(out).size() >= 8u);
}

BOOST_FIXTURE_TEST_CASE(wrong_coverage_or_another_map_is_never_committed, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  const auto& plan = machine.transition.plan;
  const auto out = rank(4, prepared{plan.epoch, plan.map_hash, 1, 0}); // four are due
  BOOST_TEST(sent<abort_transition>(out).size() == 8u);
}

BOOST_FIXTURE_TEST_CASE(a_commit_is_repeated_and_never_taken_back, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  const auto epoch = machine.transition.plan.epoch;
  all_prepare();
  BOOST_TEST(rank(5, refused{epoch, refusal::no_memory, "late"}).empty());
  for (std::uint32_t r = 0; r < 7; ++r)
    rank(r, switched{epoch, 6, ms(1)});
  const auto out = wait(ms(60));
  BOOST_TEST(sent<abort_transition>(out).empty());
  BOOST_TEST(receivers<commit_transition>(out) == (std::vector<std::uint32_t>{7}),
             boost::test_tools::per_element());
  const auto failed = sent<rollout_failed>(wait(machine.config.transition.switch_max + ms(50)));
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].text.find("rank 7") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(restoration)

BOOST_FIXTURE_TEST_CASE(leases_come_back_before_the_full_world_does, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  carry_through();
  auto out = finish_all_but({0, 1, 2, 3});
  BOOST_TEST(sent<recall_leases>(out, role_kind::broker).size() == 1u);
  BOOST_TEST(sent<prepare_transition>(out).empty());
  out = local(role_kind::broker, leases_recalled{rollout_id{1}, {}});
  const auto plans = sent<prepare_transition>(out);
  BOOST_REQUIRE_EQUAL(plans.size(), 8u);
  BOOST_TEST((plans[0].kind == transition_kind::restore));
  BOOST_TEST((plans[0].owners == home_owners(16, 8)));
  BOOST_TEST(plans[0].leavers.empty());
  out = carry_through();
  BOOST_TEST(sent<end_rollout>(out).size() == 8u);
  BOOST_TEST(sent<rank_available>(out).empty());
  for (std::uint32_t r = 0; r < 8; ++r)
    out = rank(r, rollout_report{rollout_id{1}, {}, 5, 1});
  const auto done = sent<rollout_done>(out);
  BOOST_REQUIRE_EQUAL(done.size(), 1u);
  BOOST_REQUIRE_EQUAL(done[0].transitions.size(), 2u);
  BOOST_TEST(done[0].transitions[0].to == 4u);
  BOOST_TEST(done[0].transitions[1].to == 8u);
  BOOST_TEST((done[0].ended_at >= done[0].began_at));
  run({4}, 2); // the next rollout begins at the new epoch
  BOOST_TEST((machine.now_in == phase::running));
}

/// A rollout with a contraction to ranks 0 to 3 in which all is generated.
struct quarantine_bench : planner_bench {
  quarantine_bench() {
    run({4});
    finish_all_but({4, 5, 6, 7});
    carry_through();
    for (auto r : machine.world)
      if (!holds(r)) away = r;
    finish_all_but({0, 1, 2, 3});
  }
  bool holds(rank_id r) const {
    return std::count(machine.members.begin(), machine.members.end(), r) > 0;
  }
  /// The broker has everything back but what `away` had.
  effects recalled() {
    return local(role_kind::broker,
                 leases_recalled{rollout_id{1}, {{away, {epoch_id{2}, 7}, "not gone"}}});
  }
  effects report_all(std::uint64_t id) {
    effects out;
    for (const auto& [r, part] : std::map(machine.rollout->ranks)) {
      const auto more = rank(r.value, rollout_report{rollout_id{id}, {}});
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
  rank_id away;
};

BOOST_FIXTURE_TEST_CASE(an_unreturned_rank_is_named_and_the_others_go_on, quarantine_bench) {
  const auto out = recalled();
  BOOST_TEST(sent<rollout_failed>(out).empty());
  const auto named = sent<rank_quarantined>(out, role_kind::trainer);
  BOOST_REQUIRE_EQUAL(named.size(), 1u);
  BOOST_TEST((named[0].rank == away && named[0].world_size == 7));
  BOOST_TEST(named[0].text.find("rank " + std::to_string(away.value) + ": the end of lease 2.7")
             != std::string::npos);
  const auto plans = sent<prepare_transition>(out);
  BOOST_REQUIRE_EQUAL(plans.size(), 7u); // it is not asked to take part
  BOOST_TEST(plans[0].members.size() == 7u);
  BOOST_TEST(std::count(plans[0].members.begin(), plans[0].members.end(), away) == 0);
  BOOST_TEST(experts_of(plans[0].owners, away) == 0u);
  carry_through();
  const auto done = sent<rollout_done>(report_all(1)); // its books count, too
  BOOST_REQUIRE_EQUAL(done.size(), 1u);
  BOOST_TEST(done[0].transitions.back().to == 7u);
}

BOOST_FIXTURE_TEST_CASE(books_are_not_waited_for_when_their_rank_in_quarantine_dies,
                        quarantine_bench) {
  recalled();
  carry_through();
  for (const auto& [r, part] : std::map(machine.rollout->ranks))
    if (r != away) rank(r.value, rollout_report{rollout_id{1}, {}});
  BOOST_REQUIRE((machine.now_in == phase::reporting));
  const auto out =
      local(role_kind::membership, member_lost{away, process_of(away.value), "killed at last"});
  BOOST_TEST(sent<rollout_done>(out).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(later_rollouts_do_without_the_rank_in_quarantine, quarantine_bench) {
  recalled();
  carry_through();
  report_all(1);
  const auto admitted = sent<admit_requests>(local(role_kind::trainer, order({7, 4}, 2)));
  BOOST_REQUIRE_EQUAL(admitted.size(), 7u);
  std::size_t requests = 0;
  for (const auto& part : admitted)
    requests += part.requests.size();
  BOOST_TEST(requests == 8u); // those of its own went to another rank
  BOOST_TEST(machine.rollout->decision.plan.exits.size() == 1u);
  BOOST_TEST(rank(away.value, engine_failed{away, false, "late"}).empty());
  local(role_kind::membership, member_lost{away, process_of(away.value), "killed at last"});
  BOOST_TEST((machine.now_in != phase::failed));
  const auto stops = sent<stop>(local(role_kind::trainer, stop{"done"}), role_kind::rank);
  BOOST_TEST(stops.size() == 7u); // the lost one is not waited for
}

BOOST_FIXTURE_TEST_CASE(a_rank_in_quarantine_loads_no_weights_but_is_stopped, quarantine_bench) {
  recalled();
  carry_through();
  report_all(1);
  const update_weights order{weights_id{2}, "v2", 0, 0};
  BOOST_TEST(sent<update_weights>(local(role_kind::trainer, order)).size() == 7u);
  BOOST_TEST(sent<stop>(local(role_kind::trainer, stop{"done"}), role_kind::rank).size() == 8u);
}

BOOST_FIXTURE_TEST_CASE(a_contraction_under_way_at_the_end_is_undone, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  BOOST_REQUIRE(preparing());
  const auto epoch = machine.transition.plan.epoch;
  auto out = finish_all_but({0, 1, 2, 3});
  BOOST_TEST(sent<abort_transition>(out).size() == 8u);
  BOOST_TEST(sent<end_rollout>(out).empty());
  out = all_say(transition_aborted{epoch});
  BOOST_TEST(sent<end_rollout>(out).size() == 8u); // nothing to restore
}

BOOST_FIXTURE_TEST_CASE(a_committed_contraction_is_finished_before_the_restoration, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  const auto epoch = machine.transition.plan.epoch;
  all_prepare();
  auto out = finish_all_but({0, 1, 2, 3});
  BOOST_TEST(sent<abort_transition>(out).empty());
  BOOST_TEST(sent<recall_leases>(out).empty());
  all_say(switched{epoch, 6, ms(1)});
  out = all_say(settled{epoch, false});
  BOOST_TEST(sent<rank_available>(out).empty()); // needed again at once
  BOOST_TEST(sent<recall_leases>(out).size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_restoration_that_keeps_failing_ends_in_an_error, planner_bench) {
  run({4});
  finish_all_but({4, 5, 6, 7});
  carry_through();
  finish_all_but({0, 1, 2, 3});
  local(role_kind::broker, leases_recalled{rollout_id{1}, {}});
  effects out;
  for (std::uint32_t attempt = 0; attempt < machine.config.attempts_max; ++attempt) {
    BOOST_REQUIRE(preparing());
    const auto epoch = machine.transition.plan.epoch;
    rank(6, refused{epoch, refusal::lease_active, "lent"});
    out = all_say(transition_aborted{epoch});
    wait(machine.config.retry_pause + ms(20));
  }
  const auto failed = sent<rollout_failed>(out);
  BOOST_REQUIRE_EQUAL(failed.size(), 1u);
  BOOST_TEST(failed[0].text.find("rank 6") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(weights)

BOOST_FIXTURE_TEST_CASE(doubled_answers_are_not_counted_as_other_ranks, small_world) {
  BOOST_TEST(
      sent<update_weights>(local(role_kind::trainer, update_weights{weights_id{2}, "x"})).size()
      == 4u);
  effects out;
  for (int i = 0; i < 4; ++i)
    out = rank(1, weights_updated{weights_id{2}, 7, 42});
  BOOST_TEST(sent<weights_updated>(out).empty());
  for (auto r : {0u, 2u, 3u})
    out = rank(r, weights_updated{weights_id{2}, 7, 42});
  BOOST_TEST(sent<weights_updated>(out, role_kind::trainer).size() == 1u);
  BOOST_TEST(machine.who.stamp.weights == weights_id{2});
}

BOOST_FIXTURE_TEST_CASE(half_loaded_weights_are_never_served, small_world) {
  local(role_kind::trainer, update_weights{weights_id{2}, "x"});
  effects out;
  for (std::uint32_t r = 0; r < 4; ++r)
    out = rank(r, weights_updated{weights_id{2}, 7, r == 2 ? 43u : 42u});
  BOOST_REQUIRE_EQUAL(sent<weights_refused>(out, role_kind::trainer).size(), 1u);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}))).size() == 1u);
  local(role_kind::trainer, update_weights{weights_id{3}, "y"});
  for (std::uint32_t r = 0; r < 4; ++r)
    out = rank(r, weights_updated{weights_id{3}, 7, 50});
  BOOST_TEST(sent<weights_updated>(out, role_kind::trainer).size() == 1u);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}))).empty());
}

/// Experts differ from rank to rank, so they are counted and added up over all ranks.
BOOST_FIXTURE_TEST_CASE(a_lost_doubled_or_damaged_expert_is_noticed, small_world) {
  std::uint64_t version = 1;
  const auto update = [&](std::vector<std::pair<std::uint32_t, std::uint64_t>> experts) {
    const weights_id id{++version};
    local(role_kind::trainer, update_weights{id, "x", 7 + 8, 42 + 10 + 20 + 30 + 40});
    effects out;
    for (std::uint32_t r = 0; r < 4; ++r)
      out = rank(r, weights_updated{id, 7, 42, experts[r].first, experts[r].second});
    return out;
  };
  const auto text = [&](const effects& out) {
    const auto no = sent<weights_refused>(out, role_kind::trainer);
    return no.size() == 1 ? no[0].text : std::string{};
  };
  BOOST_TEST(text(update({{2, 10}, {2, 20}, {2, 30}, {1, 40}})).find("loaded 14 tensors")
             != std::string::npos);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}))).size() == 1u);
  BOOST_TEST(text(update({{2, 10}, {2, 10}, {2, 30}, {2, 40}})).find("other bytes than x")
             != std::string::npos);
  const auto out = update({{2, 10}, {2, 20}, {2, 30}, {2, 40}});
  const auto done = sent<weights_updated>(out, role_kind::trainer);
  BOOST_REQUIRE_EQUAL(done.size(), 1u);
  BOOST_TEST(done[0].expert_tensors == 8u);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}))).empty());
}

BOOST_FIXTURE_TEST_CASE(all_refusals_leave_the_old_policy_usable, small_world) {
  local(role_kind::trainer, update_weights{weights_id{2}, "x"});
  effects out;
  for (std::uint32_t r = 0; r < 4; ++r)
    out = rank(r, weights_refused{weights_id{2}, "no such file"});
  BOOST_REQUIRE_EQUAL(sent<weights_refused>(out, role_kind::trainer).size(), 1u);
  BOOST_TEST(sent<rollout_failed>(local(role_kind::trainer, order({}))).empty());
}

BOOST_FIXTURE_TEST_CASE(a_second_update_or_one_during_a_rollout_is_refused, small_world) {
  local(role_kind::trainer, update_weights{weights_id{2}, "x"});
  BOOST_TEST(
      sent<weights_refused>(local(role_kind::trainer, update_weights{weights_id{3}, "y"})).size()
      == 1u);
  for (std::uint32_t r = 0; r < 4; ++r)
    rank(r, weights_updated{weights_id{2}, 7, 42});
  run({});
  BOOST_TEST(
      sent<weights_refused>(local(role_kind::trainer, update_weights{weights_id{3}, "y"})).size()
      == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
