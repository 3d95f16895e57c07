// Broker and sidecar: leases that end in time, work that is answered exactly once.
#define BOOST_TEST_MODULE protocol_leases
#include "planner/protocol/broker.hpp"
#include "planner/protocol/sidecar.hpp"
#include "tests/planner/protocol/lease_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

struct broker_bench : lease_bench {
  broker_bench() : lease_bench(config()) {}
  static broker_config config() {
    auto c = quick();
    c.duration = ms(400);
    c.renew = ms(100);
    return c;
  }
  effects free_rank(std::uint32_t r, std::uint64_t epoch = 2) {
    return local(role_kind::planner, rank_available{rank_id{r}, epoch_id{epoch}, ms(1000)});
  }
  effects queue(std::uint64_t first, std::uint64_t last) {
    queue_work work;
    for (auto unit = first; unit <= last; ++unit)
      work.units.push_back({unit, {1, 2}, 4});
    return local(role_kind::trainer, work);
  }
  /// Rank `r` holds a lease from here on.
  lease_id lend(std::uint32_t r, std::uint64_t epoch = 2) {
    const auto grants = sent<lease_grant>(free_rank(r, epoch));
    BOOST_REQUIRE_EQUAL(grants.size(), 1u);
    rank(r, lease_accepted{grants[0].lease});
    return grants[0].lease;
  }
  std::vector<std::uint64_t> take(std::uint32_t r, lease_id id, std::uint32_t batch,
                                  std::uint32_t count) {
    std::vector<std::uint64_t> numbers;
    for (const auto& answer : sent<work_units>(sidecar(r, take_work{id, batch, count})))
      for (const auto& unit : answer.units)
        numbers.push_back(unit.unit);
    return numbers;
  }
};

using numbers = std::vector<std::uint64_t>;

/// Rank 2 holds a lease whose worker dies.
struct deaths_bench : broker_bench {
  lease_id id;
  std::uint64_t epoch = 1;
  void lend_again() { id = lend(2, ++epoch); }
  numbers batch(std::uint32_t number, std::uint32_t count) { return take(2, id, number, count); }
  /// The next lease, if there is one, is granted at once.
  effects die_at(numbers units) {
    auto out = rank(2, lease_returned{id, true, true, 0, std::move(units)});
    for (const auto& grant : sent<lease_grant>(out)) {
      id = grant.lease;
      rank(2, lease_accepted{id});
    }
    return out;
  }
  void keep(std::uint64_t unit) {
    sidecar(2, work_result{id, unit, {7}});
    local(role_kind::recorder, work_kept{id, unit});
  }
};

struct sidecar_bench : bench<sidecar_machine> {
  lease_id id{epoch_id{2}, 1};
  sidecar_bench() : bench(sidecar_machine(config(), first_fence)) {}
  static sidecar_config config() {
    sidecar_config c;
    c.self = rank_id{3};
    c.together = 1;
    c.prefetch = 2;
    c.kill_max = ms(300);
    return c;
  }
  effects gate(any_message m) {
    return tell(say(3, role_kind::rank, machine.who.self, std::move(m)));
  }
  effects broker(any_message m) {
    return tell(say(0, role_kind::broker, machine.who.self, std::move(m)));
  }
  effects worker(any_message m) {
    return tell(say(3, role_kind::worker, machine.who.self, std::move(m)));
  }
  effects grant() { return gate(lease_grant{id, ms(400), ms(200), 0}); }
  /// The lease runs and so does unit 1; units 2 and 3 wait.
  void work() {
    grant();
    broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}, {3, {}, 4}}});
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(lending, broker_bench)

BOOST_AUTO_TEST_CASE(nothing_is_lent_without_work_and_nothing_in_short_windows) {
  BOOST_TEST(free_rank(2).empty());
  BOOST_TEST(sent<lease_grant>(queue(1, 3)).size() == 1u);
  const rank_available brief{rank_id{3}, epoch_id{2}, ms(10)};
  BOOST_TEST(sent<lease_grant>(local(role_kind::planner, brief)).empty());
}

BOOST_AUTO_TEST_CASE(a_grant_is_repeated_until_answered_and_then_renewed) {
  queue(1, 3);
  const auto id = sent<lease_grant>(free_rank(2))[0].lease;
  BOOST_TEST((id == lease_id{epoch_id{2}, 1}));
  BOOST_TEST(sent<lease_grant>(wait(ms(60))).size() == 1u);
  rank(2, lease_accepted{id});
  const auto out = wait(ms(250));
  BOOST_TEST(sent<lease_grant>(out).empty());
  BOOST_TEST(sent<lease_renew>(out).size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_denied_rank_is_not_asked_again_until_it_is_free_again) {
  queue(1, 3);
  const auto id = sent<lease_grant>(free_rank(2))[0].lease;
  rank(2, lease_denied{id, "no"});
  BOOST_TEST(sent<lease_grant>(wait(ms(300))).empty());
  const auto next = sent<lease_grant>(free_rank(2, 3));
  BOOST_REQUIRE_EQUAL(next.size(), 1u);
  BOOST_TEST((id < next[0].lease)); // lease numbers never come back
}

BOOST_AUTO_TEST_CASE(leases_granted_earlier_go_on_when_more_ranks_leave) {
  queue(1, 50);
  const auto first = lend(2, 2);
  const auto out = free_rank(3, 3);
  BOOST_TEST(sent<lease_revoke>(out).empty());
  BOOST_TEST(sent<lease_grant>(out)[0].lease.epoch == epoch_id{3});
  BOOST_TEST(take(2, first, 1, 2) == (numbers{1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_repeated_take_gets_the_same_units_again) {
  queue(1, 9);
  const auto id = lend(2);
  BOOST_TEST(take(2, id, 1, 3) == (numbers{1, 2, 3}), boost::test_tools::per_element());
  BOOST_TEST(take(2, id, 1, 3) == (numbers{1, 2, 3}), boost::test_tools::per_element());
  BOOST_TEST(take(2, id, 2, 2) == (numbers{4, 5}), boost::test_tools::per_element());
  BOOST_TEST(take(2, id, 1, 3).empty()); // late
}

BOOST_AUTO_TEST_CASE(a_result_is_recorded_once_and_acknowledged_when_durable) {
  queue(1, 9);
  const auto id = lend(2);
  take(2, id, 1, 1);
  const work_result done{id, 1, {7}};
  auto out = sidecar(2, done);
  BOOST_TEST(sent<work_result>(out, role_kind::recorder).size() == 1u);
  BOOST_TEST(sent<work_kept>(out).empty());
  BOOST_TEST(sidecar(2, done).empty());
  out = local(role_kind::recorder, work_kept{id, 1});
  BOOST_TEST(sent<work_kept>(out, role_kind::sidecar).size() == 1u);
  out = sidecar(2, done);
  BOOST_TEST(sent<work_result>(out).empty());
  BOOST_TEST(sent<work_kept>(out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(units_of_a_returned_lease_are_done_by_another) {
  queue(1, 2);
  const auto id = lend(2);
  take(2, id, 1, 2);
  rank(2, lease_returned{id, false, true, 0});
  BOOST_TEST(machine.units_waiting() == 2u);
  BOOST_TEST(sidecar(2, work_result{id, 1, {7}}).empty()); // fenced: the lease is over
  BOOST_TEST(machine.drops.stale_lease == 1u);
  const auto next = lend(3);
  BOOST_TEST(take(3, next, 1, 2) == (numbers{1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_lease_without_work_is_ended) {
  queue(1, 1);
  const auto id = lend(2);
  take(2, id, 1, 1);
  sidecar(2, work_result{id, 1, {7}});
  local(role_kind::recorder, work_kept{id, 1});
  BOOST_TEST(sent<lease_revoke>(sidecar(2, take_work{id, 2, 1})).size() == 1u);
}

BOOST_AUTO_TEST_CASE(recall_waits_for_every_lease_and_lends_nothing_meanwhile) {
  queue(1, 9);
  const auto a = lend(2), b = lend(3);
  auto out = local(role_kind::planner, recall_leases{rollout_id{1}});
  BOOST_TEST(sent<lease_revoke>(out).size() == 2u);
  BOOST_TEST(take(2, a, 1, 3).empty());
  BOOST_TEST(sent<lease_revoke>(wait(ms(60))).size() == 2u); // repeated until returned
  out = rank(2, lease_returned{a, false, true, 0});
  BOOST_TEST(sent<lease_closed>(out).size() == 1u);
  BOOST_TEST(sent<leases_recalled>(out).empty());
  BOOST_TEST(sent<lease_closed>(rank(2, lease_returned{a, false, true, 0})).size() == 1u);
  out = rank(3, lease_returned{b, true, true, 0});
  const auto answer = sent<leases_recalled>(out, role_kind::planner);
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_TEST(answer[0].unreturned.empty());
  const auto record = sent<lease_record>(out, role_kind::trainer);
  BOOST_REQUIRE_EQUAL(record.size(), 1u);
  BOOST_TEST(record[0].forced);
  BOOST_TEST(sent<lease_grant>(queue(10, 12)).empty());
}

BOOST_AUTO_TEST_CASE(recall_without_leases_is_answered_at_once) {
  const auto out = local(role_kind::planner, recall_leases{rollout_id{1}});
  BOOST_TEST(sent<leases_recalled>(out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_lease_that_does_not_return_is_reported_and_never_assumed_free) {
  queue(1, 9);
  const auto id = lend(2);
  local(role_kind::planner, recall_leases{rollout_id{1}});
  const auto answer = sent<leases_recalled>(wait(ms(560)));
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_REQUIRE_EQUAL(answer[0].unreturned.size(), 1u);
  BOOST_TEST((answer[0].unreturned[0].rank == rank_id{2} && answer[0].unreturned[0].lease == id));
  BOOST_TEST(sent<lease_grant>(free_rank(2, 9)).empty());
  const auto proof = rank(2, lease_returned{id, true, true, 0}); // though late
  BOOST_TEST(sent<lease_grant>(proof).size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_unclean_return_keeps_the_rank_out) {
  queue(1, 9);
  const auto id = lend(2);
  rank(2, lease_returned{id, true, false, 0});
  const auto answer =
      sent<leases_recalled>(local(role_kind::planner, recall_leases{rollout_id{1}}));
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_REQUIRE_EQUAL(answer[0].unreturned.size(), 1u);
  BOOST_TEST((answer[0].unreturned[0].rank == rank_id{2} && answer[0].unreturned[0].lease == id));
}

BOOST_AUTO_TEST_CASE(work_of_a_lost_rank_is_done_by_another) {
  queue(1, 2);
  const auto id = lend(2);
  take(2, id, 1, 2);
  local(role_kind::membership, member_lost{rank_id{2}, process_of(2), "silent"});
  const auto next = lend(3);
  BOOST_TEST(take(3, next, 1, 2) == (numbers{1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(leases_are_told_how_long_their_rank_is_expected_to_be_free) {
  queue(1, 9);
  const auto grants = sent<lease_grant>(free_rank(2));
  BOOST_TEST((grants.at(0).window == ms(1000)));
  rank(2, lease_accepted{grants[0].lease});
  auto renewals = sent<lease_renew>(wait(ms(250)));
  BOOST_TEST((renewals.at(1).window > ms(700) && renewals.at(1).window <= ms(800)));
  local(role_kind::planner, rank_available{rank_id{2}, epoch_id{2}, ms(5000)}); // Seen anew.
  renewals = sent<lease_renew>(wait(ms(150)));
  BOOST_TEST((renewals.at(0).window > ms(4800) && renewals.at(0).window <= ms(5000)));
}

BOOST_FIXTURE_TEST_CASE(a_unit_that_workers_die_at_comes_last_and_alone, deaths_bench) {
  queue(1, 5);
  lend_again();
  BOOST_TEST(batch(1, 3) == (numbers{1, 2, 3}), boost::test_tools::per_element());
  die_at({1, 2}); // 3 was not begun.
  BOOST_TEST(batch(1, 9) == (numbers{3, 4, 5}), boost::test_tools::per_element());
  BOOST_TEST(batch(2, 9).empty());
  for (const std::uint64_t unit : {3, 4, 5})
    keep(unit);
  BOOST_TEST(batch(3, 9) == (numbers{1}), boost::test_tools::per_element());
  queue(6, 6);
  BOOST_TEST(batch(4, 9).empty()); // 6 must not die with 1.
  keep(1);
  BOOST_TEST(batch(5, 9) == (numbers{6}), boost::test_tools::per_element());
  keep(6);
  BOOST_TEST(batch(6, 9) == (numbers{2}), boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_unit_that_workers_always_die_at_is_given_up, deaths_bench) {
  machine.config.unit_attempts_max = 3;
  queue(1, 2);
  lend_again();
  batch(1, 2);
  BOOST_TEST(sent<work_result>(die_at({1, 2})).empty());
  BOOST_TEST(batch(1, 2) == (numbers{1}), boost::test_tools::per_element());
  BOOST_TEST(sent<work_result>(die_at({1})).empty());
  BOOST_TEST(batch(1, 2) == (numbers{1}), boost::test_tools::per_element());
  const auto given_up = sent<work_result>(die_at({1}), role_kind::recorder);
  BOOST_REQUIRE_EQUAL(given_up.size(), 1u);
  BOOST_TEST(given_up[0].unit == 1u);
  BOOST_TEST(given_up[0].tokens.empty());
  BOOST_TEST(given_up[0].error.find("died 3 times at it, the last time on rank 2")
             != std::string::npos);
  local(role_kind::recorder, work_kept{given_up[0].lease, 1});
  BOOST_TEST(batch(1, 2) == (numbers{2}), boost::test_tools::per_element()); // It goes on.
  keep(2);
  BOOST_TEST(machine.units_waiting() == 0u);
  BOOST_TEST((machine.units.at(1).state == broker_machine::unit_state::kept));
}

BOOST_FIXTURE_TEST_CASE(ends_that_are_not_the_units_fault_do_not_count, deaths_bench) {
  machine.config.unit_attempts_max = 1;
  queue(1, 1);
  lend_again();
  batch(1, 1);
  rank(2, lease_returned{id, true, true, 0}); // Killed after grace.
  id = machine.ranks.at(rank_id{2}).lease->id;
  batch(1, 1);
  sidecar(2, work_result{id, 1, {7}}); // Answered before its worker died at others.
  BOOST_TEST(sent<work_result>(die_at({1, 99}), role_kind::recorder).empty());
  BOOST_TEST(machine.units.at(1).deaths == 0u);
  machine.config.unit_attempts_max = 0; // No bound.
  id = sent<lease_grant>(queue(2, 2)).at(0).lease;
  for (int death = 0; death < 20; ++death) {
    BOOST_TEST(batch(1, 1) == (numbers{2}), boost::test_tools::per_element());
    BOOST_TEST(sent<work_result>(die_at({2}), role_kind::recorder).empty());
  }
}

BOOST_FIXTURE_TEST_CASE(what_was_answered_so_far_goes_to_the_next_lease, deaths_bench) {
  queue(1, 1);
  lend_again();
  batch(1, 1);
  const partial_answer half{1, {5, 6}, {-0.5F, -0.25F}}, stranger{9, {5}, {-0.5F}};
  const auto out = rank(2, lease_returned{id, false, true, 0, {}, {half, stranger}});
  id = sent<lease_grant>(out).at(0).lease;
  const auto again = sent<work_units>(sidecar(2, take_work{id, 1, 1})).at(0).units;
  BOOST_REQUIRE_EQUAL(again.size(), 1u);
  BOOST_TEST((again[0].response == half.tokens && again[0].logprobs == half.logprobs));
  BOOST_TEST(machine.units.count(9) == 0u);
}

BOOST_AUTO_TEST_CASE(the_queue_is_bounded_and_knows_its_units) {
  machine.config.queue_max = 3;
  queue(1, 2);
  queue(2, 5);
  BOOST_TEST(machine.units.size() == 3u);
  BOOST_TEST(machine.units_refused == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_FIXTURE_TEST_SUITE(holding, sidecar_bench)

BOOST_AUTO_TEST_CASE(a_lease_is_accepted_again_and_asks_for_work_once) {
  auto out = grant();
  BOOST_TEST(sent<lease_accepted>(out, role_kind::rank).size() == 1u);
  BOOST_TEST(sent<take_work>(out, role_kind::broker).size() == 1u);
  out = grant();
  BOOST_TEST(sent<lease_accepted>(out).size() == 1u);
  BOOST_TEST(sent<take_work>(out).empty());
  BOOST_TEST(sent<take_work>(wait(ms(60))).size() == 1u); // the same, repeated
}

BOOST_AUTO_TEST_CASE(one_unit_runs_at_a_time_and_the_next_are_fetched_ahead) {
  grant();
  auto out = broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}}});
  BOOST_TEST(sent<run_unit>(out, role_kind::worker).size() == 1u);
  BOOST_TEST(sent<take_work>(out).size() == 1u);
  BOOST_TEST(broker(work_units{id, 1, {{9, {}, 4}}}).empty()); // doubled answer
  out = worker(work_result{id, 1, {5}});
  BOOST_TEST(sent<work_result>(out, role_kind::broker).size() == 1u);
  BOOST_TEST(sent<run_unit>(out)[0].work.unit == 2u);
  BOOST_TEST(sent<work_result>(wait(ms(60))).size() == 1u);
  broker(work_kept{id, 1});
  BOOST_TEST(sent<work_result>(wait(ms(60))).empty());
}

BOOST_AUTO_TEST_CASE(a_model_runs_units_together_and_other_work_runs_alone) {
  machine.config.together = 2;
  grant();
  auto out = broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}, {3, {}, 4}}});
  BOOST_TEST(sent<run_unit>(out).size() == 2u);
  const auto command = [](std::uint64_t unit) {
    return work_unit{unit, {}, 0, 2, work_kind::exec};
  };
  out = worker(work_result{id, 2, {5}});
  BOOST_TEST(sent<run_unit>(out)[0].work.unit == 3u);
  out = broker(work_units{id, 2, {command(4), command(5)}});
  BOOST_TEST(sent<run_unit>(out).empty());
  BOOST_TEST(sent<run_unit>(worker(work_result{id, 1, {5}})).empty());
  out = worker(work_result{id, 3, {5}});
  BOOST_REQUIRE_EQUAL(sent<run_unit>(out).size(), 1u);
  BOOST_TEST(sent<run_unit>(out)[0].work.unit == 4u);
  BOOST_TEST(worker(work_result{id, 3, {5}}).empty()); // doubled
  const work_unit callback{6, {}, 0, 3, work_kind::callback};
  out = broker(work_units{id, machine.asked.value_or(take_work{}).batch, {callback, callback}});
  BOOST_TEST(sent<run_unit>(out).empty());
}

BOOST_AUTO_TEST_CASE(short_units_are_fetched_further_ahead) {
  machine.config.ahead = ms(50);
  grant();
  broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}, {3, {}, 4}}});
  worker(work_result{id, 1, {5}});
  wait(ms(10));
  worker(work_result{id, 2, {5}});
  BOOST_REQUIRE(machine.asked.has_value());
  broker(work_units{id, machine.asked->batch, {}}); // so that it asks anew
  const auto again = sent<take_work>(wait(ms(300)));
  BOOST_REQUIRE(!again.empty());
  BOOST_TEST(again.front().count == 5u); // of 10 ms each
}

BOOST_AUTO_TEST_CASE(an_empty_queue_is_asked_again_after_a_pause) {
  grant();
  BOOST_TEST(broker(work_units{id, 1, {}}).empty());
  BOOST_TEST(sent<take_work>(wait(ms(150))).empty());
  const auto again = sent<take_work>(wait(ms(60)));
  BOOST_REQUIRE_EQUAL(again.size(), 1u);
  BOOST_TEST(again[0].batch == 2u);
}

BOOST_AUTO_TEST_CASE(too_many_results_on_the_way_hold_the_worker) {
  machine.config.results_max = 1;
  work();
  BOOST_TEST(sent<run_unit>(worker(work_result{id, 1, {5}})).empty());
  BOOST_TEST(sent<run_unit>(broker(work_kept{id, 1})).size() == 1u);
}

BOOST_AUTO_TEST_CASE(the_sidecar_does_not_survive_its_lease) {
  work();
  auto out = wait(ms(410)); // no renewal came
  BOOST_REQUIRE_EQUAL(sent<stop_worker>(out).size(), 1u);
  BOOST_TEST(!sent<stop_worker>(out)[0].kill);
  out = worker(worker_stopped{id, false, true});
  const auto back = sent<lease_returned>(out, role_kind::rank);
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].clean);
  BOOST_TEST(!back[0].forced);
  BOOST_TEST(wait(ms(500)).empty());
}

BOOST_AUTO_TEST_CASE(renewals_keep_it_and_a_late_one_shortens_nothing) {
  work();
  wait(ms(300));
  gate(lease_renew{id, ms(400)});
  gate(lease_renew{id, ms(10)});
  gate(lease_renew{{epoch_id{2}, 9}, ms(10)}); // of another lease
  BOOST_TEST(sent<stop_worker>(wait(ms(350))).empty());
}

BOOST_AUTO_TEST_CASE(work_is_told_what_is_left_of_the_predicted_window) {
  gate(lease_grant{id, ms(400), ms(200), 0, ms(900)});
  wait(ms(100));
  auto out = broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}, {3, {}, 4}}});
  BOOST_TEST((sent<run_unit>(out).at(0).window == ms(800)));
  gate(lease_renew{id, ms(400), ms(300)});
  wait(ms(100));
  BOOST_TEST((sent<run_unit>(worker(work_result{id, 1, {5}})).at(0).window == ms(200)));
  wait(ms(250)); // Longer than predicted.
  BOOST_TEST((sent<run_unit>(worker(work_result{id, 2, {5}})).at(0).window == ms(0)));
}

BOOST_AUTO_TEST_CASE(the_units_that_a_worker_died_at_are_named_when_the_lease_returns) {
  machine.config.together = 2;
  grant();
  broker(work_units{id, 1, {{1, {}, 4}, {2, {}, 4}, {3, {}, 4}}});
  worker(work_result{id, 1, {5}}); // 2 and 3 are under way.
  broker(work_kept{id, 1});
  worker(worker_stopped{id, true, true});
  const auto back = sent<lease_returned>(worker(worker_stopped{id, false, true}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].died_at == (numbers{2, 3}), boost::test_tools::per_element());
  id.counter = 2;
  work();
  gate(lease_revoke{id, ms(200)});
  worker(worker_stopped{id, true, true}); // As it was told to stop.
  BOOST_TEST(sent<lease_returned>(worker(worker_stopped{id, false, true})).at(0).died_at.empty());
}

BOOST_AUTO_TEST_CASE(interrupted_answers_are_handed_back) {
  work();
  gate(lease_revoke{id, ms(200)});
  const partial_answer half{1, {5, 6}, {-0.5F, -0.25F}};
  const auto back = sent<lease_returned>(worker(worker_stopped{id, false, true, {half}}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST((back[0].partial == std::vector<partial_answer>{half}));
  id.counter = 2;
  work();
  gate(lease_revoke{id, ms(200)});
  BOOST_TEST(sent<lease_returned>(worker(worker_stopped{id, false, true})).at(0).partial.empty());
}

BOOST_AUTO_TEST_CASE(revoked_results_are_made_durable_before_the_return) {
  work();
  gate(lease_revoke{id, ms(200)});
  auto out = worker(work_result{id, 1, {5}}); // finished within grace
  BOOST_TEST(sent<work_result>(out, role_kind::broker).size() == 1u);
  BOOST_TEST(sent<run_unit>(out).empty());
  BOOST_TEST(sent<lease_returned>(worker(worker_stopped{id, false, true})).empty());
  out = broker(work_kept{id, 1});
  BOOST_REQUIRE_EQUAL(sent<lease_returned>(out).size(), 1u);
  BOOST_TEST(sent<lease_returned>(out)[0].units_done == 1u);
}

BOOST_AUTO_TEST_CASE(after_grace_a_stubborn_worker_is_killed_and_the_return_says_so) {
  work();
  gate(lease_revoke{id, ms(200)});
  const auto kills = sent<stop_worker>(wait(ms(210)));
  BOOST_REQUIRE_EQUAL(kills.size(), 1u);
  BOOST_TEST(kills[0].kill);
  const auto back = sent<lease_returned>(worker(worker_stopped{id, true, true}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].forced);
  BOOST_TEST(back[0].clean);
}

BOOST_AUTO_TEST_CASE(killed_in_a_kernel_without_proof_is_not_a_clean_return) {
  work();
  gate(lease_revoke{id, ms(200)});
  const auto back = sent<lease_returned>(wait(ms(600)));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(!back[0].clean);
  id.counter = 2;
  BOOST_TEST(sent<lease_denied>(grant()).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_process_that_was_stopped_itself_does_not_blame_its_worker) {
  work();
  gate(lease_revoke{id, ms(200)});
  wait(ms(210));
  now += ms(2'000);
  effects out;
  tick(machine, now, out);
  BOOST_TEST(sent<lease_returned>(out).empty());
  BOOST_TEST(sent<lease_returned>(worker(worker_stopped{id, true, true}))[0].clean);
}

BOOST_AUTO_TEST_CASE(a_worker_that_dies_by_itself_ends_the_lease_once_nothing_runs_in_its_place) {
  work();
  const auto out = worker(worker_stopped{id, true, true});
  BOOST_TEST(sent<lease_returned>(out).empty()); // Unit 1 may have been on its way to a new one.
  BOOST_REQUIRE_EQUAL(sent<stop_worker>(out).size(), 1u);
  BOOST_TEST(!sent<stop_worker>(out)[0].kill);
  const auto back = sent<lease_returned>(worker(worker_stopped{id, false, true}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].forced);
  BOOST_TEST(back[0].clean);
}

BOOST_AUTO_TEST_CASE(the_death_of_a_worker_that_is_told_to_stop_is_not_its_answer) {
  work();
  gate(lease_revoke{id, ms(200)});
  BOOST_TEST(sent<lease_returned>(worker(worker_stopped{id, true, false})).empty());
  const auto back = sent<lease_returned>(worker(worker_stopped{id, false, true}));
  BOOST_REQUIRE_EQUAL(back.size(), 1u);
  BOOST_TEST(back[0].forced);
  BOOST_TEST(!back[0].clean); // What was not proven once stays so.
}

BOOST_AUTO_TEST_CASE(the_end_of_the_job_ends_the_lease_and_all_later_ones) {
  work();
  BOOST_TEST(sent<stop_worker>(gate(stop{"end"})).size() == 1u);
  worker(worker_stopped{id, false, true});
  id.counter = 2;
  BOOST_TEST(sent<lease_denied>(grant()).size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
