// The promise that no other system makes, on real rank processes: whatever leaves, moves and comes
// back, every response has the same tokens and the same log-probabilities, bit by bit.
#define BOOST_TEST_MODULE exactness
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <map>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

/// The arms of one run of 16 responses on the least certain version of the model.
json arms_of(const std::string& arms, const std::string& seed,
             const std::vector<std::string>& more) {
  const scratch_dir place;
  const auto models = shipped_models() + "/collatz-moe";
  std::vector<std::string> words{"run", "--arms", arms, "--seed", seed, "--json"};
  for (const auto& word :
       {std::string{"--model"}, models + "/v1-bf16", std::string{"--history"},
        models + "/history/v1.csv", std::string{"--steps"}, std::string{"1"}, std::string{"--n"},
        std::string{"2"}, std::string{"--prompts-per-step"}, std::string{"8"},
        std::string{"--max-response-length"}, std::string{"400"}, std::string{"--sidecar-model"},
        std::string{"none"}, std::string{"--out"}, place.path() + "/out"})
    words.push_back(word);
  words.insert(words.end(), more.begin(), more.end());
  const auto ended = run_program(words, place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  return json::parse(ended.out)["arms"];
}

struct digests {
  std::string tokens, logprobs;
};
digests digests_of(const json& arm) {
  return {arm.at("tokens_digest"), arm.at("logprobs_digest")};
}

/// What the model says with this seed, without any of it.
const digests& plain(const std::string& seed) {
  static std::map<std::string, digests> known;
  const auto found = known.find(seed);
  if (found != known.end()) return found->second;
  return known[seed] = digests_of(arms_of("vanilla", seed, {"--ranks", "2", "--floor", "2"})[0]);
}

struct tally {
  std::uint64_t contractions = 0, migrations = 0;
};

/// All arms that shrink, under one setting, against the plain run.
tally compare(const std::string& ranks, const std::string& floor, const std::string& migrate,
              const std::string& seed) {
  tally seen;
  const auto label = ranks + " ranks, floor " + floor + ", migrate " + migrate + ", seed " + seed;
  // Six places per rank: the tail packs while it is still long.
  for (const auto& arm : arms_of("natural,planned,adaptive", seed,
                                 {"--ranks", ranks, "--floor", floor, "--migrate", migrate,
                                  "--max-num-seqs", ranks == "4" ? "6" : "3"})) {
    const auto& expected = plain(seed);
    const auto got = digests_of(arm);
    BOOST_TEST(got.tokens == expected.tokens, label << ", arm " << arm["arm"]);
    BOOST_TEST(got.logprobs == expected.logprobs, label << ", arm " << arm["arm"]);
    for (const auto& t : arm["transitions"])
      seen.contractions += t["kind"] == "contract" ? 1 : 0;
    seen.migrations += arm["migrations"]["count"].get<std::uint64_t>();
  }
  return seen;
}

} // namespace

BOOST_AUTO_TEST_CASE(seeds_differ_so_that_equality_means_something) {
  BOOST_TEST(plain("1").tokens != plain("2").tokens);
  BOOST_TEST(plain("1").logprobs != plain("2").logprobs);
  BOOST_TEST(plain("2").tokens != plain("3").tokens);
}

BOOST_AUTO_TEST_CASE(four_ranks_give_the_same_bits_in_every_migrate_mode) {
  for (const std::string migrate : {"off", "stragglers", "consolidate"}) {
    tally all;
    for (const std::string seed : {"1", "2", "3"}) {
      const auto seen = compare("4", "2", migrate, seed);
      all.contractions += seen.contractions;
      all.migrations += seen.migrations;
    }
    BOOST_TEST(all.contractions > 0U, migrate);
    BOOST_TEST((all.migrations > 0U) == (migrate != "off"), migrate);
  }
}

BOOST_AUTO_TEST_CASE(eight_ranks_give_the_same_bits_for_both_floors) {
  int run = 0;
  for (const std::string migrate : {"off", "stragglers", "consolidate"})
    for (const std::string floor : {"2", "4"}) {
      const auto seen = compare("8", floor, migrate, std::to_string(1 + run++ % 3));
      BOOST_TEST(seen.contractions > 0U, migrate << ", floor " << floor);
    }
}

BOOST_AUTO_TEST_CASE(a_floor_of_all_ranks_changes_nothing) {
  const auto seen = compare("4", "4", "consolidate", "1");
  BOOST_TEST(seen.contractions == 0U);
}
