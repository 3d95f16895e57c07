// How a user's suite tests with <adafloor/testing.hpp>, and what a cut network may never do.
#define BOOST_TEST_MODULE testing
#include <adafloor/testing.hpp>
#include <boost/test/unit_test.hpp>

#include <map>
#include <set>
#include <sstream>

using namespace adafloor::testing;
using namespace std::chrono_literals;

namespace {

/// Every result is there, once, with the tokens of a run without faults.
void check_results(const world& w, std::uint32_t rollouts, std::uint32_t requests) {
  for (std::uint32_t rollout = 1; rollout <= rollouts; ++rollout)
    for (std::uint32_t request = 0; request < requests; ++request) {
      BOOST_TEST(w.times_ended(rollout, request) == 1U);
      BOOST_TEST(w.tokens(rollout, request) == w.true_tokens(rollout, request),
                 boost::test_tools::per_element());
    }
}

} // namespace

// --- an example

BOOST_FIXTURE_TEST_CASE(a_rank_that_freezes_while_the_group_shrinks_costs_time_only, eight_ranks) {
  BOOST_REQUIRE(play_to("contract.prepare", 5));
  freeze(5, 800ms);
  play_to_end();
  BOOST_TEST(failure() == "");
  BOOST_TEST(rollouts_done() == 1U);
  check_results(*this, 1, settings().requests);
}

BOOST_FIXTURE_TEST_CASE(no_rank_leaves_before_all_have_the_commit, eight_ranks) {
  close("late commit", "commit_transition", 6); // a barrier: rank 6 does not hear of the decision
  BOOST_REQUIRE(play_until([&] { return waiting("late commit") > 0; }));
  play(30ms);
  for (rank r = 0; r < 8; ++r)
    BOOST_TEST((epoch(r) == 1 && decodes(r))); // all go on in the old group
  open("late commit");
  BOOST_REQUIRE(play_until([&] { return epoch(6) > 1; }, 1s));
  play_to_end();
  BOOST_TEST(committed_groups().size() > 1U);
  check_results(*this, 1, settings().requests);
}

BOOST_FIXTURE_TEST_CASE(an_invariant_of_ones_own, eight_ranks) {
  after_event = [&] {
    for (rank r = 0; r < 8; ++r)
      if (lent(r) && decodes(r)) throw violation("lent and decoding");
  };
  bool lent_once = false;
  play_until([&] {
    for (rank r = 0; r < 8; ++r)
      lent_once |= lent(r);
    return stopped();
  });
  BOOST_TEST(lent_once);
  BOOST_TEST(stopped());
}

// --- the world itself

BOOST_AUTO_TEST_CASE(the_same_seed_is_the_same_world) {
  const auto story = [](std::uint64_t seed) {
    job j;
    j.seed = seed;
    j.loss = j.doubling = j.late = 0.1;
    world w(j);
    std::ostringstream lines;
    w.trace_to(&lines);
    w.play_to_end();
    return lines.str();
  };
  BOOST_TEST((story(3) == story(3)));
  BOOST_TEST((story(3) != story(4)));
}

BOOST_AUTO_TEST_CASE(time_passes_only_when_it_is_played) {
  world w;
  BOOST_TEST((w.now() == 0us));
  w.play(50ms);
  BOOST_TEST((w.now() == 50ms));
  BOOST_TEST(!w.play_until([] { return false; }, 100ms));
  BOOST_TEST((w.now() <= 150ms));
}

BOOST_AUTO_TEST_CASE(what_does_not_exist_is_named) {
  world w;
  const auto says = [](const std::string& part) {
    return [part](const std::invalid_argument& e) {
      return std::string(e.what()).find(part) != std::string::npos;
    };
  };
  BOOST_CHECK_EXCEPTION(w.play_to("contraction"), std::invalid_argument, says("'contraction'"));
  BOOST_CHECK_EXCEPTION(w.close("x", "commit"), std::invalid_argument, says("'commit'"));
  BOOST_CHECK_EXCEPTION(w.close("x", "engine_commit"), std::invalid_argument, says("between"));
  BOOST_CHECK_EXCEPTION(w.crash(0), std::invalid_argument, says("planner"));
  job alone;
  alone.ranks = 1;
  BOOST_CHECK_EXCEPTION(world{alone}, std::invalid_argument, says("job.ranks is 1"));
}

BOOST_AUTO_TEST_CASE(a_rank_that_crashes_at_any_step_of_a_rollout_is_survived) {
  for (const std::string step : {"decode", "contract.prepare", "contract.commit", "contract.settle",
                                 "restore.prepare", "restore.commit"}) {
    world w;
    BOOST_REQUIRE(w.play_to(step, 2));
    w.crash(2);
    w.play_to_end();
    BOOST_TEST(w.failure() == "", step);
    BOOST_TEST(w.declared_dead(2), step);
    check_results(w, 1, job{}.requests);
  }
}

BOOST_AUTO_TEST_CASE(a_failure_that_nothing_explains_is_a_violation) {
  world w;
  w.play(20ms);
  w.fill_disk();
  w.play_to_end(); // a full disk explains it
  BOOST_TEST(w.failure() == "no space left on device");
  BOOST_TEST(w.rollouts_done() == 0U);

  world hung;
  hung.play(20ms);
  hung.close("for ever", "response_kept");
  BOOST_CHECK_THROW(hung.play_to_end(), violation);
}

BOOST_AUTO_TEST_CASE(slow_ranks_slow_all_and_change_nothing) {
  world w, plain;
  w.slow(1, 400ms);
  w.play_to_end();
  plain.play_to_end();
  BOOST_TEST((w.now() > plain.now()));
  check_results(w, 1, job{}.requests);
}

// --- a network that is cut

BOOST_AUTO_TEST_CASE(a_short_cut_at_any_step_is_endured) {
  for (const auto& step : world::steps())
    for (const std::vector<rank>& away : {std::vector<rank>{3}, {2, 3}, {1, 2, 3}}) {
      job j;
      j.rollouts = 2;
      j.units = 20;
      j.moves = 0.3;
      world w(j);
      if (!w.play_to(step)) continue; // a world need not abort, or move and cancel
      w.cut_off(away);
      w.play(900ms);
      w.heal();
      w.play_to_end();
      BOOST_TEST(w.failure() == "", step);
      check_results(w, 2, j.requests);
    }
}

/// Ranks are cut off for longer than the others wait for them. From then on only one side commits
/// new groups, and every request ends at most once, also long
/// after the network has healed.
BOOST_AUTO_TEST_CASE(a_cut_that_heals_late_never_gives_two_groups_that_commit) {
  std::size_t cuts = 0, deaths = 0, committed = 0, apart = 0;
  for (const auto& step : world::steps())
    for (const std::vector<rank>& away : {std::vector<rank>{3}, {2, 3}, {1, 2, 3}})
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        job j;
        j.seed = seed;
        j.rollouts = 2;
        j.units = 20;
        j.moves = 0.3;
        world w(j);
        w.tolerate_failure();
        if (!w.play_to(step)) continue;
        const auto label = step + ", seed " + std::to_string(seed);
        w.cut_off(away);
        ++cuts;
        const auto is_away = [&](rank r) { return r + away.size() >= j.ranks; };
        std::vector<std::uint64_t> epochs(j.ranks);
        std::map<std::uint64_t, std::set<bool>> sides; ///< that committed this epoch since the cut
        w.after_event = [&] {
          for (rank r = 0; r < j.ranks; ++r) {
            if (w.epoch(r) != epochs[r] && epochs[r] != 0) sides[w.epoch(r)].insert(is_away(r));
            epochs[r] = w.epoch(r);
          }
          for (std::uint32_t rollout = 1; rollout <= j.rollouts; ++rollout)
            for (std::uint32_t request = 0; request < j.requests; ++request)
              if (w.times_ended(rollout, request) > 1) throw violation("a request ended twice");
        };
        w.play(6s);
        deaths += w.declared_dead(3);
        w.heal();
        w.play(10s);
        // Those who are cut off may still switch to what was committed before; it is older than
        // anything that the others commit without them.
        std::map<bool, std::set<std::uint64_t>> alone;
        for (const auto& [epoch, by] : sides)
          if (by.size() == 1) alone[*by.begin()].insert(epoch);
        if (alone.size() == 2) {
          BOOST_TEST(*alone[true].rbegin() < *alone[false].begin(), label);
          ++apart;
        }
        committed += sides.size();
        for (std::uint32_t rollout = 1; rollout <= j.rollouts; ++rollout)
          for (std::uint32_t request = 0; request < j.requests; ++request)
            if (w.times_ended(rollout, request) == 1)
              BOOST_TEST((w.tokens(rollout, request) == w.true_tokens(rollout, request)), label);
        if (!w.failure().empty())
          BOOST_TEST(w.failure().find("rank") != std::string::npos, w.failure());
      }
  BOOST_TEST(cuts > 100U);
  BOOST_TEST(deaths > cuts / 2);
  BOOST_TEST(committed > 0U);
  BOOST_TEST(apart > 0U);
}
