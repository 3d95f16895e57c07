// `adafloor faults run`: its words, and what it says of worlds that break.
#define BOOST_TEST_MODULE faults_run
#include "apps/faults_run.hpp"

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <sstream>

using namespace adafloor;

namespace {

/// What `run_worlds` writes to stdout, and whether it was content.
std::pair<bool, std::string> said(const faults_run_options& o) {
  std::ostringstream text;
  auto* before = std::cout.rdbuf(text.rdbuf());
  const bool content = run_worlds(o);
  std::cout.rdbuf(before);
  return {content, text.str()};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_CASE(ranges_of_seeds_are_read) {
  faults_run_options o;
  BOOST_REQUIRE(read_seeds("3..70", &o).has_value());
  BOOST_TEST((o.first == 3 && o.last == 70));
  BOOST_REQUIRE(read_seeds("41", &o).has_value());
  BOOST_TEST((o.first == 41 && o.last == 41));
  for (const auto* wrong : {"", "..", "5..", "..5", "7..3", "a..b", "1...3", "-1..3"})
    BOOST_TEST(!read_seeds(wrong, &o).has_value(), wrong);
}

BOOST_AUTO_TEST_CASE(kinds_are_read_and_wrong_ones_named) {
  BOOST_TEST((read_kinds("drop,freeze").value()
              == std::set<fault_kind>{fault_kind::drop, fault_kind::freeze}));
  BOOST_TEST(read_kinds("none").value().empty());
  BOOST_TEST((read_kinds("all").value() == sim::world_choice::all_kinds()));
  const auto wrong = read_kinds("drop,flood");
  BOOST_REQUIRE(!wrong.has_value());
  BOOST_TEST(has(wrong.error().text, "'flood' must be one of all, none, drop"), wrong.error().text);
}

BOOST_AUTO_TEST_CASE(clean_worlds_are_counted_by_step_and_kind) {
  faults_run_options o;
  o.last = 40;
  o.jobs = 2;
  const auto [content, text] = said(o);
  BOOST_TEST(content, text);
  BOOST_TEST(has(text, "40 worlds, "), text);
  BOOST_TEST(has(text, "contract.prepare"), text);
  BOOST_TEST(has(text, "0 failed"), text);
}

BOOST_AUTO_TEST_CASE(worlds_without_kinds_have_no_faults) {
  faults_run_options o;
  o.last = 20;
  o.choice.kinds.clear();
  sim::world_figures figures;
  for (auto seed = o.first; seed <= o.last; ++seed)
    BOOST_TEST(play(sim::scenario_of(seed, o.choice), nullptr, &figures).broken == "");
  const auto struck = [&](protocol_step s, fault_kind k) { return figures.struck.count(s, k); };
  for (std::size_t s = 1; s <= fault_coverage::steps; ++s)
    for (const auto kind : sim::world_choice::all_kinds())
      if (kind != fault_kind::refuse) // the gate refuses late grants, faults or not
        BOOST_TEST(struck(static_cast<protocol_step>(s), kind) == 0U, name_of(kind));
}

BOOST_AUTO_TEST_CASE(a_caught_bug_is_shown_with_the_smallest_world_and_its_command) {
  faults_run_options o;
  o.choice.bug = sim::mutant::commit_without_all_prepared;
  const auto [content, text] = said(o);
  BOOST_TEST(content, text);
  BOOST_TEST(has(text, "1 of 1 planted bugs caught"), text);
  BOOST_TEST(has(text, "broken: I"), text);
  BOOST_TEST(has(text, "--rollouts 1 --units 0"), text); // no more than the bug needs
  BOOST_TEST(!has(text, "disk_full"), text);
  BOOST_TEST(has(text, "--mutant commit_without_all_prepared --trace"), text);
}

BOOST_AUTO_TEST_CASE(a_bug_that_no_world_shows_is_a_failure) {
  faults_run_options o;
  o.last = 3;
  o.choice.bug = sim::mutant::response_recorded_twice;
  o.choice.kinds.clear(); // nothing comes twice
  const auto [content, text] = said(o);
  BOOST_TEST(!content);
  BOOST_TEST(has(text, "not caught"), text);
}

BOOST_AUTO_TEST_CASE(every_smallest_world_still_breaks_the_same_invariant) {
  for (const auto bug : {sim::mutant::leaver_leaves_on_commit, sim::mutant::timeline_loses_time,
                         sim::mutant::unclean_return_called_clean}) {
    const auto choice = sim::choice_for(bug);
    std::uint64_t seed = 1;
    while (play(scenario_of(seed, choice)).clean())
      ++seed;
    const auto broken = play(scenario_of(seed, choice)).broken;
    const auto less = smallest(seed, choice, broken);
    BOOST_TEST(less.kinds.size() < choice.kinds.size());
    const auto again = play(scenario_of(seed, less)).broken;
    BOOST_TEST(again.substr(0, again.find(':')) == broken.substr(0, broken.find(':')));
  }
}
