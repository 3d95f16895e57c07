// What plans do to a real run: caps that cut, and lengths of one epoch that plan the next.
#define BOOST_TEST_MODULE planning
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <map>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

/// A small run without leases; `more` wins over what stands here.
json run_of(const scratch_dir& place, const std::vector<std::string>& more) {
  std::vector<std::string> words{"run",   "--ranks",
                                 "4",     "--floor",
                                 "2",     "--n",
                                 "2",     "--steps",
                                 "1",     "--sidecar-model",
                                 "none",  "--json",
                                 "--out", place.path() + "/out"};
  words.insert(words.end(), more.begin(), more.end());
  const auto ended = run_program(words, place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  return json::parse(ended.out);
}

/// Says of every prompt that ships that its responses had 60 tokens.
std::string short_history(const scratch_dir& place) {
  const auto path = place.path() + "/short.csv";
  std::ofstream csv{path};
  csv << "epoch,prompt_id,sample,response_tokens\n";
  std::ifstream prompts{shipped_models() + "/collatz-moe/prompts_train.jsonl"};
  for (std::string line; std::getline(prompts, line);)
    csv << "1," << json::parse(line)["prompt_id"].get<std::string>() << ",0,60\n";
  return path;
}

using response_lines = std::map<std::pair<std::string, int>, json>;

response_lines responses_of(const scratch_dir& place, const std::string& arm) {
  response_lines out;
  std::ifstream file{place.path() + "/out/responses.jsonl"};
  for (std::string line; std::getline(file, line);) {
    auto parsed = json::parse(line);
    if (parsed["arm"] == arm)
      out[{parsed["prompt_id"].get<std::string>(), parsed["sample"].get<int>()}] = parsed;
  }
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_guarded_arm_says_what_it_cut_and_what_the_whole_would_have_taken) {
  const scratch_dir place;
  const auto arms = run_of(place, {"--arms", "vanilla,natural", "--history", short_history(place),
                                   "--guard", "--guard-ratio", "1.2", "--guard-least-cap", "64",
                                   "--guard-step-tokens", "64"})["arms"];
  const auto whole = responses_of(place, "vanilla"), cut = responses_of(place, "natural");
  BOOST_REQUIRE_EQUAL(cut.size(), whole.size());
  std::uint64_t guarded = 0, tokens = 0;
  for (const auto& [key, r] : cut) {
    const auto mine = r["tokens"].get<std::vector<int>>();
    const auto full = whole.at(key)["tokens"].get<std::vector<int>>();
    tokens += full.size();
    BOOST_TEST(whole.at(key)["stop"] != "guard");
    BOOST_REQUIRE(mine.size() <= full.size());
    BOOST_TEST(std::equal(mine.begin(), mine.end(), full.begin()));
    BOOST_TEST((r["stop"] == "guard") == (mine.size() < full.size()), key.first);
    if (r["stop"] != "guard") continue;
    ++guarded;
    BOOST_TEST(mine.size() == 128U); // 60 * 1.2, rounded up to a multiple of 64
  }
  BOOST_TEST(guarded > 0U);
  BOOST_TEST(arms[0]["truncated_by_guard"] == 0);
  BOOST_TEST(arms[1]["truncated_by_guard"] == guarded);
  BOOST_TEST(!arms[0].contains("equal_work"));
  const auto& equal = arms[1]["equal_work"];
  BOOST_TEST(equal["lengths_of"] == "vanilla");
  BOOST_TEST(equal["generated_tokens"] == tokens);
  BOOST_TEST(equal["generated_tokens"] == arms[0]["generated_tokens"]);
  BOOST_TEST(equal["time_ratio"] > 1.0);
  BOOST_TEST(equal["rollout_seconds"] > arms[1]["rollout_seconds"]);
}

BOOST_AUTO_TEST_CASE(without_being_asked_the_guard_cuts_nothing) {
  const scratch_dir place;
  const auto arms = run_of(place, {"--arms", "natural", "--history", short_history(place),
                                   "--guard-least-cap", "64", "--guard-step-tokens", "64"})["arms"];
  BOOST_TEST(arms[0]["truncated_by_guard"] == 0);
  for (const auto& [key, r] : responses_of(place, "natural"))
    BOOST_TEST(r["stop"] != "guard");
}

BOOST_AUTO_TEST_CASE(the_lengths_of_an_epoch_plan_the_next) {
  const scratch_dir place;
  const auto collatz = shipped_models() + "/collatz-moe";
  run_of(place, {"--arms", "vanilla,planned", "--history", "none", "--model", collatz + "/v1-bf16",
                 "--model", collatz + "/v2-bf16", "--model", collatz + "/v3-bf16",
                 "--max-response-length", "800"});
  std::map<std::string, std::vector<json>> steps;
  for (const auto& event : events_of(place.path() + "/out"))
    if (event["event"] == "step_begin") steps[event["arm"].get<std::string>()].push_back(event);
  const auto& planned = steps["planned"];
  BOOST_REQUIRE_EQUAL(planned.size(), 3U);
  BOOST_TEST(planned[0]["tail"] == 800); // nothing was known, not even from the arm before
  BOOST_TEST(planned[0]["exits"].empty());
  for (const std::size_t epoch : {1U, 2U}) {
    BOOST_TEST(planned[epoch]["tail"] < 800);
    BOOST_TEST(!planned[epoch]["exits"].empty());
  }
  for (const auto& step : steps["vanilla"])
    BOOST_TEST(step["exits"].empty());
}

BOOST_AUTO_TEST_CASE(planned_survivors_are_the_last_ranks_in_uneven_groups_too) {
  const scratch_dir place;
  const auto arms = run_of(place, {"--arms", "vanilla,planned", "--ranks", "8", "--group-sizes",
                                   "8,6,3", "--floor", "3", "--prompts-per-step", "16"})["arms"];
  BOOST_TEST(arms[0]["tokens_digest"] == arms[1]["tokens_digest"]);
  BOOST_TEST(arms[1]["residency"] == "planned");
  std::vector<std::size_t> sizes;
  for (const auto& t : arms[1]["transitions"]) {
    const auto members = t["members"].get<std::vector<int>>();
    for (std::size_t i = 0; i < members.size(); ++i)
      BOOST_TEST(members[i] == static_cast<int>(8 - members.size() + i));
    sizes.push_back(members.size());
  }
  BOOST_TEST(sizes == (std::vector<std::size_t>{6, 3, 8}), boost::test_tools::per_element());
}
