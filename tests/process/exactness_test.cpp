// The promise that no other system makes, on real rank processes: whatever leaves, moves and comes
// back, every response has the same tokens and the same log-probabilities, bit by bit.
#define BOOST_TEST_MODULE exactness
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <map>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

/// Eight prompts, their lines copied from those that ship: two are answered at great length and
/// differently by each seed, the others soon, so that every run has a tail to shrink in.
std::string write_prompts(const std::string& folder) {
  std::ifstream all(shipped_models() + "/collatz-moe/prompts_train.jsonl");
  std::map<std::string, std::string> lines;
  for (std::string line; std::getline(all, line);)
    lines[json::parse(line).at("prompt_id")] = line;
  const auto path = folder + "/prompts.jsonl";
  std::ofstream chosen(path);
  for (const std::string number : {"646", "84", "311", "52", "118", "680", "298", "794"})
    chosen << lines.at("collatz-" + number) << '\n';
  return path;
}

/// The arms of one run of 16 responses on the least certain version of the model.
json arms_of(const std::string& arms, const std::string& seed,
             const std::vector<std::string>& more) {
  const scratch_dir place;
  const auto models = shipped_models() + "/collatz-moe";
  std::vector<std::string> words{"run", "--arms", arms, "--seed", seed, "--json"};
  for (const auto& word :
       {std::string{"--model"}, models + "/v1-bf16", std::string{"--history"},
        models + "/history/v1.csv", std::string{"--prompts"}, write_prompts(place.path()),
        std::string{"--steps"}, std::string{"1"}, std::string{"--n"}, std::string{"2"},
        std::string{"--prompts-per-step"}, std::string{"8"}, std::string{"--max-response-length"},
        std::string{"500"}, std::string{"--sidecar-model"}, std::string{"none"},
        std::string{"--out"}, place.path() + "/out"})
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

/// Every migrate mode and three seeds; each mode must have shrunk, and moved requests if it may.
void compare_modes(const std::string& ranks, const std::string& floor) {
  for (const std::string migrate : {"off", "stragglers", "consolidate"}) {
    tally all;
    for (const std::string seed : {"1", "2", "3"}) {
      const auto seen = compare(ranks, floor, migrate, seed);
      all.contractions += seen.contractions;
      all.migrations += seen.migrations;
    }
    BOOST_TEST(all.contractions > 0U, migrate);
    BOOST_TEST((all.migrations > 0U) == (migrate != "off"), migrate);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(seeds_differ_so_that_equality_means_something) {
  BOOST_TEST(plain("1").tokens != plain("2").tokens);
  BOOST_TEST(plain("1").logprobs != plain("2").logprobs);
  BOOST_TEST(plain("2").tokens != plain("3").tokens);
}

BOOST_AUTO_TEST_CASE(four_ranks_give_the_same_bits_in_every_migrate_mode) {
  compare_modes("4", "2");
}

BOOST_AUTO_TEST_CASE(eight_ranks_give_the_same_bits_with_floor_2) {
  compare_modes("8", "2");
}

BOOST_AUTO_TEST_CASE(eight_ranks_give_the_same_bits_with_floor_4) {
  compare_modes("8", "4");
}

BOOST_AUTO_TEST_CASE(pages_of_bfloat16_give_the_same_bits_in_every_arm) {
  std::map<std::string, digests> expected;
  std::uint64_t contractions = 0, migrations = 0;
  for (const std::string seed : {"1", "2"}) {
    for (const auto& arm : arms_of("vanilla,natural,planned,adaptive", seed,
                                   {"--ranks", "4", "--floor", "2", "--migrate", "consolidate",
                                    "--max-num-seqs", "6", "--kv-dtype", "bfloat16"})) {
      const auto got = digests_of(arm);
      const auto& first = expected.emplace(seed, got).first->second;
      BOOST_TEST(got.tokens == first.tokens, "seed " << seed << ", arm " << arm["arm"]);
      BOOST_TEST(got.logprobs == first.logprobs, "seed " << seed << ", arm " << arm["arm"]);
      contractions += arm["transitions"].size();
      migrations += arm["migrations"]["count"].get<std::uint64_t>();
    }
    BOOST_TEST(expected[seed].logprobs != plain(seed).logprobs); // pages were rounded
  }
  BOOST_TEST(contractions > 0U);
  BOOST_TEST(migrations > 0U);
}

BOOST_AUTO_TEST_CASE(a_floor_of_all_ranks_changes_nothing) {
  for (const std::string seed : {"1", "2", "3"}) {
    const auto seen = compare("4", "4", "consolidate", seed);
    BOOST_TEST(seen.contractions == 0U);
  }
}

BOOST_AUTO_TEST_CASE(the_number_of_ranks_changes_nothing) {
  for (const std::string ranks : {"4", "8"})
    for (const std::string seed : {"1", "2", "3"}) {
      const auto got = digests_of(arms_of("vanilla", seed, {"--ranks", ranks, "--floor", "2"})[0]);
      BOOST_TEST(got.tokens == plain(seed).tokens, ranks << " ranks, seed " << seed);
      BOOST_TEST(got.logprobs == plain(seed).logprobs, ranks << " ranks, seed " << seed);
    }
}
