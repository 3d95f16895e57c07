// Whole clusters from one seed: real machines over a bad network, first safety, then liveness.
// SEEDS=A..B chooses the seeds, LEASE_SEEDS=A..B those of the worlds that are about leases, TRACE=1
// prints every message of them.
#define BOOST_TEST_MODULE sim
#include "planner/sim/world.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {
using namespace adafloor;
using namespace adafloor::sim;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t seeds_by_default = 1000, lease_seeds_by_default = 300; // ten times slower
#else
constexpr std::uint64_t seeds_by_default = 5000, lease_seeds_by_default = 2000;
#endif

/// How often things happened, over all seeds: a simulation that never contracts proves nothing.
struct coverage {
  std::uint64_t rollouts = 0, contractions = 0, restorations = 0, aborted = 0, leases = 0,
                forced = 0, unclean = 0, unfinished = 0, cuts = 0, quarantined = 0, units = 0,
                failures = 0, stale = 0, events = 0;
  std::map<move_outcome, std::uint64_t> moves;
};

void add(coverage& c, const world& w) {
  c.rollouts += w.trainer.done.size();
  for (const auto& done : w.trainer.done) {
    c.aborted += done.aborted_transitions;
    for (const auto& t : done.transitions)
      ++(t.kind == transition_kind::restore ? c.restorations : c.contractions);
  }
  c.leases += w.trainer.leases.size();
  for (const auto& lease : w.trainer.leases) {
    c.forced += lease.forced;
    c.unclean += !lease.clean;
    c.unfinished += lease.units_done == 0;
  }
  c.cuts += w.broker.pace.cuts;
  c.quarantined += w.trainer.quarantined.size();
  c.units += w.recorder.answers.size();
  c.failures += w.trainer.failed.size();
  for (const auto& move : w.trainer.moves)
    ++c.moves[move.outcome];
  for (const auto& n : w.nodes)
    c.stale += n.rank.drops.stale_epoch + n.rank.drops.stale_lease + n.rank.drops.stale_rollout;
  c.events += w.events;
}

/// The text of what was violated, or empty.
std::string outcome_of(const scenario& s, std::ostream* trace, coverage* c, std::uint64_t* hash) {
  world w(s);
  w.trace = trace;
  std::string text;
  try {
    w.run();
  } catch (const violation& broken) {
    text = broken.what();
  }
  if (c) add(*c, w);
  if (hash) *hash = w.hash;
  return text;
}

/// Runs the seed again and shows its last messages.
void show(const scenario& s, const char* variable, const std::string& broken) {
  std::ostringstream all;
  outcome_of(s, &all, nullptr, nullptr);
  const auto text = all.str();
  std::size_t from = text.size();
  for (int lines = 0; lines < 120 && from != 0; ++lines)
    from = text.rfind('\n', from - 1) == std::string::npos ? 0 : text.rfind('\n', from - 1);
  std::cerr << "seed " << s.seed << ", " << s.world_size
            << " ranks, the last messages:" << text.substr(from) << "broken: " << broken << "\n"
            << "all of them: " << variable << "=" << s.seed << ".." << s.seed << " TRACE=1\n";
}

std::vector<std::uint64_t> regression_seeds() {
  std::ifstream file(std::string(ADAFLOOR_SOURCE_DIR) + "/tests/sim/seeds.txt");
  BOOST_REQUIRE(file);
  std::vector<std::uint64_t> seeds;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') seeds.push_back(std::stoull(line));
  return seeds;
}

/// From the range in the environment variable, or 1..`last` after `before`.
std::vector<std::uint64_t> chosen_seeds(const char* variable, std::uint64_t last,
                                        std::vector<std::uint64_t> seeds) {
  std::uint64_t first = 1;
  if (const char* text = std::getenv(variable)) {
    seeds.clear();
    const std::string range = text;
    const auto dots = range.find("..");
    first = std::stoull(range);
    last = dots == std::string::npos ? first : std::stoull(range.substr(dots + 2));
  }
  for (auto seed = first; seed <= last; ++seed)
    seeds.push_back(seed);
  return seeds;
}

/// Runs the worlds and counts what happened in them; the first violation ends the test.
std::uint64_t run_all(const char* variable, const std::vector<std::uint64_t>& seeds,
                      scenario make(std::uint64_t), coverage& c) {
  std::uint64_t runs = 0;
  std::ostream* trace = std::getenv("TRACE") ? &std::cerr : nullptr;
  for (auto seed : seeds) {
    const auto s = make(seed);
    std::uint64_t hash = 0;
    const auto broken = outcome_of(s, trace, &c, &hash);
    if (!broken.empty()) {
      if (!trace) show(s, variable, broken);
      BOOST_FAIL("seed " << seed << ": " << broken);
    }
    if (++runs % 100 == 0) {
      std::uint64_t again = 0;
      outcome_of(s, nullptr, nullptr, &again);
      BOOST_REQUIRE_MESSAGE(again == hash, "seed " << seed << " is not deterministic");
    }
  }
  return runs;
}

} // namespace

BOOST_AUTO_TEST_CASE(invariants_hold_whatever_the_network_does) {
  coverage c;
  const auto runs =
      run_all("SEEDS", chosen_seeds("SEEDS", seeds_by_default, regression_seeds()), scenario_of, c);
  std::cout << runs << " worlds, " << c.events << " events: " << c.rollouts << " rollouts, "
            << c.contractions << " contractions, " << c.restorations << " restorations, "
            << c.aborted << " aborted transitions, " << c.leases << " leases (" << c.forced
            << " forced), " << c.units << " units, " << c.failures << " clear failures, " << c.stale
            << " stale messages dropped; orders to move:";
  for (const auto& [how, count] : c.moves)
    std::cout << ' ' << count << ' ' << name_of(how);
  std::cout << '\n';
  if (runs < 1000) return; // a few chosen seeds need not show everything
  for (auto count : {c.rollouts, c.contractions, c.restorations, c.aborted, c.leases, c.forced,
                     c.units, c.failures, c.stale})
    BOOST_TEST(count > 0);
  for (auto how :
       {move_outcome::moved, move_outcome::refused, move_outcome::finished, move_outcome::given_up})
    BOOST_TEST(c.moves[how] > 0, name_of(how));
}

BOOST_AUTO_TEST_CASE(leases_end_before_their_rank_is_used_again) {
  coverage c;
  const auto runs = run_all("LEASE_SEEDS", chosen_seeds("LEASE_SEEDS", lease_seeds_by_default, {}),
                            lease_scenario_of, c);
  std::cout << runs << " worlds, " << c.events << " events: " << c.rollouts << " rollouts, "
            << c.contractions << " contractions, " << c.leases << " leases (" << c.forced
            << " forced, " << c.unclean << " unclean, " << c.unfinished << " without a result), "
            << c.units << " units, " << c.cuts << " cuts, " << c.quarantined
            << " ranks in quarantine, " << c.failures << " clear failures\n";
  if (runs < 300) return;
  for (auto count : {c.rollouts, c.leases, c.forced, c.unclean, c.unfinished, c.units, c.cuts,
                     c.quarantined, c.failures})
    BOOST_TEST(count > 0);
}

BOOST_AUTO_TEST_CASE(a_quiet_network_contracts_to_every_planned_size) {
  scenario s;
  s.seed = 2; // In a third of the worlds the last ranks end too close together for an exit to 2.
  s.pace.max_slowdown = 0; // Lends at once.
  s.requests = 64;
  s.max_tokens = 200;
  world w(s);
  w.run();
  BOOST_REQUIRE_EQUAL(w.trainer.done.size(), 2u);
  for (const auto& done : w.trainer.done) {
    BOOST_REQUIRE_EQUAL(done.transitions.size(), 3u);
    BOOST_TEST(done.transitions[0].to == 4u);
    BOOST_TEST(done.transitions[1].to == 2u);
    BOOST_TEST(done.transitions[2].to == 8u);
    BOOST_TEST(done.aborted_transitions == 0u);
  }
  BOOST_TEST(w.recorder.answers.size() == s.units);
  BOOST_TEST(!w.trainer.leases.empty());
}

BOOST_AUTO_TEST_CASE(a_quiet_network_packs_what_its_rules_let_move) {
  for (const auto residency : {residency_kind::natural, residency_kind::planned})
    for (const bool adaptive : {false, true}) {
      scenario s;
      s.seed = 7;
      s.requests = 64;
      s.max_tokens = 200;
      s.places = 12;
      s.rules.residency = residency;
      s.rules.migrate = migrate_kind::consolidate;
      s.rules.adaptive = adaptive;
      world w(s);
      w.run();
      BOOST_REQUIRE_EQUAL(w.trainer.done.size(), 2u);
      BOOST_TEST(!w.trainer.moves.empty());
      for (const auto& move : w.trainer.moves)
        BOOST_TEST((move.outcome == move_outcome::moved || move.outcome == move_outcome::finished));
      for (const auto& done : w.trainer.done) {
        BOOST_REQUIRE(!done.transitions.empty());
        BOOST_TEST(done.transitions.front().to < 8u);
        BOOST_TEST(done.transitions.back().to == 8u);
        if (residency == residency_kind::planned)
          BOOST_TEST(done.transitions.front().members.back() == rank_id{7});
      }
    }
}

BOOST_AUTO_TEST_CASE(planted_bugs_are_caught) {
  for (int number = 1; number <= static_cast<int>(mutant::unit_given_out_twice); ++number) {
    const auto bug = static_cast<mutant>(number);
    std::uint64_t seed = 1;
    std::string broken;
    for (; seed <= 2000 && broken.empty(); ++seed) {
      const bool about_leases =
          bug > mutant::held_requests_do_not_count || bug == mutant::gate_forgets_ended_leases;
      auto s = about_leases ? lease_scenario_of(seed) : scenario_of(seed);
      s.bug = bug;
      s.moves = about_leases || bug < mutant::source_frees_before_commit ? 0 : 0.3;
      s.rules = {}; // So that a bug shows without the luck of a decision.
      s.time_limit = microseconds{60'000'000};
      broken = outcome_of(s, nullptr, nullptr, nullptr);
    }
    std::cout << name_of(bug) << ": "
              << (broken.empty() ? "not caught"
                                 : "seed " + std::to_string(seed - 1) + ": " + broken)
              << '\n';
    BOOST_TEST(!broken.empty(), name_of(bug));
  }
}
