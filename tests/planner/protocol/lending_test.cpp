// The broker's choices: which queue gets which rank, when work is not begun, and what follows when
// leases slow the rollout down.
#define BOOST_TEST_MODULE protocol_lending
#include "planner/protocol/broker.hpp"
#include "tests/planner/protocol/lease_bench.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

struct lending_bench : lease_bench {
  std::map<std::uint32_t, std::uint32_t> batches;
  lending_bench() : lease_bench(quick()) {}
  effects free_rank(std::uint32_t r, microseconds window = ms(1000), std::uint64_t epoch = 2) {
    return local(role_kind::planner, rank_available{rank_id{r}, epoch_id{epoch}, window, 4});
  }
  void policy(std::uint32_t queue, std::uint32_t priority, std::uint32_t weight,
              microseconds start_up = ms(0), microseconds unit = ms(0)) {
    local(role_kind::trainer, queue_policy{queue, priority, weight, start_up, unit});
  }
  effects work(std::uint32_t queue, std::uint64_t first, std::uint64_t last) {
    queue_work more;
    for (auto unit = first; unit <= last; ++unit)
      more.units.push_back({unit, {1, 2}, 4, queue});
    return local(role_kind::trainer, more);
  }
  lease_id held(std::uint32_t r) { return machine.ranks.at(rank_id{r}).lease->id; }
  /// The queue that rank `r` is lent to.
  std::uint32_t queue_of(std::uint32_t r) {
    const auto& lease = machine.ranks.at(rank_id{r}).lease;
    BOOST_REQUIRE(lease.has_value());
    return lease->queue;
  }
  bool lent(std::uint32_t r) { return machine.ranks.at(rank_id{r}).lease.has_value(); }
  std::vector<std::uint64_t> take(std::uint32_t r, std::uint32_t count) {
    std::vector<std::uint64_t> numbers;
    const auto out = sidecar(r, take_work{held(r), ++batches[r], count});
    for (const auto& answer : sent<work_units>(out))
      for (const auto& unit : answer.units)
        numbers.push_back(unit.unit);
    revokes = sent<lease_revoke>(out);
    return numbers;
  }
  effects give_back(std::uint32_t r, bool clean = true) {
    batches[r] = 0;
    return rank(r, lease_returned{held(r), false, clean, 0});
  }
  std::vector<lease_revoke> revokes; ///< that came with the last take
};

using numbers = std::vector<std::uint64_t>;

} // namespace

BOOST_FIXTURE_TEST_SUITE(queues, lending_bench)

BOOST_AUTO_TEST_CASE(a_higher_priority_goes_first_whatever_the_weights) {
  policy(1, 0, 100);
  policy(2, 5, 1);
  work(1, 1, 9);
  work(2, 11, 12);
  free_rank(3);
  BOOST_TEST(queue_of(3) == 2u);
  BOOST_TEST(take(3, 4) == (numbers{11, 12}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_lease_gives_way_to_a_higher_priority_that_nobody_works_for) {
  policy(1, 0, 1);
  policy(2, 5, 1);
  work(1, 1, 9);
  free_rank(3);
  BOOST_TEST(take(3, 1) == (numbers{1}), boost::test_tools::per_element());
  work(2, 11, 12);
  BOOST_TEST(take(3, 1).empty());
  BOOST_TEST(revokes.empty()); // its unit is finished first
  sidecar(3, work_result{held(3), 1, {7}});
  BOOST_TEST(take(3, 1).empty());
  BOOST_TEST(revokes.size() == 1u);
  give_back(3);
  BOOST_TEST(queue_of(3) == 2u);
}

BOOST_AUTO_TEST_CASE(lease_time_is_shared_by_weight) {
  policy(1, 0, 1);
  policy(2, 0, 3);
  work(1, 1, 50);
  work(2, 101, 150);
  std::map<std::uint32_t, int> leases;
  for (int i = 0; i < 40; ++i) {
    free_rank(3, ms(1000), 2 + i);
    rank(3, lease_accepted{held(3)});
    ++leases[queue_of(3)];
    wait(ms(100));
    local(role_kind::planner, recall_leases{rollout_id{1}});
    give_back(3);
  }
  BOOST_TEST(leases[1] == 10);
  BOOST_TEST(leases[2] == 30);
}

BOOST_AUTO_TEST_CASE(ranks_that_are_free_at_once_are_shared_too) {
  work(1, 1, 50);
  work(2, 101, 150);
  for (std::uint32_t r = 2; r < 6; ++r)
    free_rank(r);
  std::map<std::uint32_t, int> leases;
  for (std::uint32_t r = 2; r < 6; ++r)
    ++leases[queue_of(r)];
  BOOST_TEST(leases[1] == 2);
  BOOST_TEST(leases[2] == 2);
}

BOOST_AUTO_TEST_CASE(a_queue_that_was_empty_does_not_claim_that_time) {
  work(1, 1, 50);
  free_rank(3, ms(5000));
  rank(3, lease_accepted{held(3)});
  wait(ms(1000));
  work(2, 101, 150);
  free_rank(4, ms(1000), 3);
  BOOST_TEST((machine.queues[2].served >= ms(1000))); // as if it had had its share
}

BOOST_AUTO_TEST_CASE(long_start_up_gives_way_in_short_windows_and_gets_the_long_ones) {
  policy(1, 0, 1, ms(400), ms(10));
  policy(2, 0, 1, ms(5), ms(10));
  work(1, 1, 50);
  work(2, 101, 150);
  free_rank(3, ms(600));
  BOOST_TEST(queue_of(3) == 2u);
  free_rank(4, ms(5000));
  BOOST_TEST(queue_of(4) == 1u);
  free_rank(5, ms(5000));
  BOOST_TEST(queue_of(5) == 2u); // which is owed now
}

BOOST_AUTO_TEST_CASE(alone_it_gets_a_short_window_too_if_a_unit_can_be_done) {
  policy(1, 0, 1, ms(400), ms(10));
  work(1, 1, 50);
  free_rank(3, ms(400));
  BOOST_TEST(!lent(3));
  free_rank(4, ms(600));
  BOOST_TEST(lent(4));
}

BOOST_AUTO_TEST_CASE(the_rank_with_the_longest_window_is_lent_first) {
  free_rank(2, ms(100));
  free_rank(3, ms(5000));
  free_rank(4, ms(800));
  const auto out = work(1, 1, 50);
  BOOST_TEST(receivers<lease_grant>(out) == (std::vector<std::uint32_t>{3, 4, 2}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_newest_prediction_of_a_window_counts) {
  policy(1, 0, 1, ms(300), ms(10));
  work(1, 1, 50);
  free_rank(3, ms(200));
  BOOST_TEST(!lent(3));
  free_rank(3, ms(400));
  BOOST_TEST(lent(3));
}

BOOST_AUTO_TEST_CASE(start_up_and_units_are_measured) {
  policy(1, 0, 1, ms(1), ms(1));
  work(1, 1, 50);
  free_rank(3, ms(9000));
  rank(3, lease_accepted{held(3)});
  take(3, 4);
  wait(ms(300));
  sidecar(3, work_result{held(3), 1, {7, 8}});
  wait(ms(100));
  sidecar(3, work_result{held(3), 2, {7}});
  const auto& q = machine.queues[1];
  BOOST_TEST((q.first_result.value == ms(300)));
  BOOST_TEST((q.unit.value == ms(100)));
  local(role_kind::planner, recall_leases{rollout_id{1}});
  wait(ms(50));
  const auto told = sent<lease_record>(give_back(3), role_kind::trainer);
  BOOST_REQUIRE_EQUAL(told.size(), 1u);
  BOOST_TEST((told[0].window == ms(9000)));
  BOOST_TEST((told[0].working_at - told[0].granted_at == ms(299))); // less the guessed unit
  BOOST_TEST(told[0].units_done == 2u);
  BOOST_TEST(told[0].tokens == 3u);
  BOOST_TEST((q.stop.value == ms(50)));
  free_rank(3, ms(250), 3); // no longer enough for a first result
  BOOST_TEST(!lent(3));
}

BOOST_AUTO_TEST_CASE(a_start_that_never_ended_was_at_least_so_long_and_is_tried_again_later) {
  work(1, 1, 50);
  free_rank(3, ms(500));
  rank(3, lease_accepted{held(3)});
  take(3, 1);
  wait(ms(500));
  local(role_kind::planner, recall_leases{rollout_id{1}});
  give_back(3);
  free_rank(3, ms(400), 3);
  BOOST_TEST(!lent(3));
  for (int i = 0; i < 20 && !lent(3); ++i)
    free_rank(3, ms(400), 4 + i);
  BOOST_TEST(lent(3));
}

BOOST_AUTO_TEST_CASE(no_unit_is_begun_that_the_window_is_too_short_for) {
  policy(1, 0, 1, ms(0), ms(100));
  work(1, 1, 50);
  free_rank(3, ms(1000));
  rank(3, lease_accepted{held(3)});
  BOOST_TEST(take(3, 1) == (numbers{1}), boost::test_tools::per_element());
  wait(ms(920));
  sidecar(3, work_result{held(3), 1, {7}});
  BOOST_TEST(take(3, 9).empty());
  BOOST_TEST(revokes.size() == 1u);
}

BOOST_AUTO_TEST_CASE(no_more_units_are_given_out_than_the_window_has_room_for) {
  policy(1, 0, 1, ms(50), ms(100));
  work(1, 1, 50);
  free_rank(3, ms(420));
  BOOST_TEST(take(3, 9) == (numbers{1, 2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_slowest_stop_is_told_first) {
  work(1, 1, 50);
  work(2, 101, 150);
  for (std::uint32_t r = 2; r < 4; ++r) {
    free_rank(r);
    rank(r, lease_accepted{held(r)});
  }
  machine.queues[queue_of(2)].stop.add(ms(10));
  machine.queues[queue_of(3)].stop.add(ms(90));
  const auto out = local(role_kind::planner, recall_leases{rollout_id{1}});
  BOOST_TEST(receivers<lease_revoke>(out) == (std::vector<std::uint32_t>{3, 2}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_unclean_return_is_recorded_and_the_lease_named) {
  work(1, 1, 50);
  free_rank(3);
  const auto id = held(3);
  rank(3, lease_accepted{id});
  const auto told = sent<lease_record>(give_back(3, false), role_kind::trainer);
  BOOST_REQUIRE_EQUAL(told.size(), 1u);
  BOOST_TEST(!told[0].clean);
  const auto out = local(role_kind::planner, recall_leases{rollout_id{1}});
  const auto answer = sent<leases_recalled>(out);
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_REQUIRE_EQUAL(answer[0].unreturned.size(), 1u);
  BOOST_TEST((answer[0].unreturned[0].lease == id));
  BOOST_TEST(!answer[0].unreturned[0].text.empty());
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

struct pace_bench : lending_bench {
  pace_bench() {
    machine.pace.config = {};
    machine.pace.config.rest = ms(2000);
    machine.pace.lent_for = ms(60'000);
    work(1, 1, 5000);
  }
  /// `count` times four steps of `step` each.
  effects decode(int count, microseconds step) {
    effects out;
    for (int i = 0; i < count; ++i) {
      for (const auto& e : wait(4 * step))
        out.push_back(e);
      for (const auto& e : local(role_kind::planner, decode_pace{epoch_id{2}, 4, 100, 4, 4 * step}))
        out.push_back(e);
    }
    return out;
  }
  void lend(std::uint32_t first, std::uint32_t last) {
    for (auto r = first; r <= last; ++r) {
      free_rank(r, ms(4000));
      if (lent(r)) rank(r, lease_accepted{held(r)});
    }
  }
  std::uint32_t leases() {
    std::uint32_t count = 0;
    for (const auto& [r, state] : machine.ranks)
      count += state.lease.has_value();
    return count;
  }
  void accept_all() {
    for (const auto& [r, state] : machine.ranks)
      if (state.lease) rank(r.value, lease_accepted{state.lease->id});
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(slowdown_of_the_rollout, pace_bench)

BOOST_AUTO_TEST_CASE(steps_without_leases_are_measured_before_the_first_grant_of_a_new_size) {
  lend(4, 7);
  BOOST_TEST(leases() == 0u);
  wait(ms(220));
  BOOST_TEST(leases() == 4u);
}

BOOST_AUTO_TEST_CASE(measuring_waits_until_enough_was_lent_to_pay_for_it) {
  machine.pace.lent_for = ms(0);
  lend(4, 5);
  BOOST_TEST(leases() == 2u); // at once
  wait(ms(2000));
  local(role_kind::planner, recall_leases{rollout_id{1}});
  give_back(4);
  give_back(5);
  free_rank(4, ms(200), 3); // too short for a pause
  BOOST_TEST(leases() == 1u);
  local(role_kind::planner, recall_leases{rollout_id{2}});
  give_back(4);
  free_rank(4, ms(4000), 4);
  BOOST_TEST(leases() == 0u);
  wait(ms(110)); // a twentieth of two seconds
  BOOST_TEST(leases() == 1u);
  local(role_kind::planner, recall_leases{rollout_id{3}});
  give_back(4);
  free_rank(4, ms(4000), 5); // all is spent
  BOOST_TEST(leases() == 1u);
}

BOOST_AUTO_TEST_CASE(equal_steps_change_nothing) {
  lend(4, 7);
  decode(20, ms(10));
  BOOST_TEST(leases() == 4u);
  accept_all();
  const auto out = decode(100, ms(10));
  BOOST_TEST(sent<lease_revoke>(out).empty());
  BOOST_TEST(machine.pace.steps_lent > 0u);
  BOOST_REQUIRE(slowdown(machine.pace).has_value());
  BOOST_TEST(*slowdown(machine.pace) == 0.0);
}

BOOST_AUTO_TEST_CASE(slower_steps_halve_what_is_lent_and_the_trainer_is_told) {
  machine.pace.config.measure_max = ms(600);
  machine.pace.config.measure_share = 1;
  lend(4, 7);
  decode(15, ms(10));
  BOOST_TEST(leases() == 4u);
  accept_all();
  const auto out = decode(60, ms(11));                    // 10 % slower
  BOOST_TEST(receivers<lease_revoke>(out).front() == 6u); // the newest two
  give_back(6);
  give_back(7);
  BOOST_TEST(leases() == 2u);
  const auto told = local(role_kind::planner, recall_leases{rollout_id{1}});
  give_back(4);
  const auto state = sent<lending_state>(give_back(5), role_kind::trainer);
  BOOST_TEST(told.size() >= 2u);
  BOOST_REQUIRE_EQUAL(state.size(), 1u);
  BOOST_TEST(state[0].limited);
  BOOST_TEST(state[0].ranks_max == 2u);
  BOOST_TEST(state[0].cuts == 1u);
}

BOOST_AUTO_TEST_CASE(lending_stops_and_is_tried_again_after_a_rest) {
  machine.pace.ranks_max = 0;
  machine.pace.cut_at = now;
  machine.pace.config.measure_max = ms(0);
  lend(4, 7);
  wait(ms(100));
  BOOST_TEST(leases() == 0u);
  wait(ms(2000));
  BOOST_TEST(leases() == 1u);
  wait(ms(2000));
  BOOST_TEST(leases() == 2u);
}

BOOST_AUTO_TEST_CASE(samples_across_a_grant_or_of_another_load_are_not_compared) {
  machine.pace.config.measure_max = ms(0);
  lend(4, 4);
  accept_all();
  local(role_kind::planner, decode_pace{epoch_id{2}, 4, 100, 4, ms(500)}); // began before it
  BOOST_TEST(machine.pace.steps_lent == 0u);
  decode(40, ms(10));
  BOOST_TEST(!slowdown(machine.pace).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
