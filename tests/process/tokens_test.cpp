// The token log of the real program, whole and after a crash.
#define BOOST_TEST_MODULE tokens
#include "actors/token_log.hpp"
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>

using namespace adafloor;
using namespace adafloor::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

std::vector<std::string> words(const std::string& out) {
  return {"run", "--ranks", "4",      "--floor", "2",       "--steps", "2",
          "--n", "8",       "--arms", "natural", "--fsync", "batch",   "--token-log-lag-ms",
          "50",  "--out",   out};
}

using tokens = std::vector<token_id>;

/// By what names a sample's random stream, whatever run it is in.
std::map<std::uint64_t, logged_response> log_of(const std::string& out) {
  auto log = read_token_log(out + "/tokens.log");
  BOOST_REQUIRE_MESSAGE(log.has_value(), (log ? "" : log.error().text));
  std::map<std::uint64_t, logged_response> all;
  for (auto& [rollout, responses] : *log)
    for (auto& [id, r] : responses)
      all[r.spec.random_key] = std::move(r);
  return all;
}

/// Whole lines, by prompt and sample.
std::map<std::string, json> responses_of(const std::string& out) {
  std::map<std::string, json> all;
  std::ifstream file{out + "/responses.jsonl"};
  for (std::string line; std::getline(file, line);)
    if (auto r = json::parse(line, nullptr, false); r.is_object())
      all[r["prompt_id"].dump() + "/" + r["sample"].dump()] = r;
  return all;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_log_is_what_was_generated_and_a_crash_leaves_its_beginning) {
  const scratch_dir place;
  const auto whole = place.path() + "/whole", cut = place.path() + "/cut";
  const auto ended = run_program(words(whole), place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto reference = log_of(whole);
  const auto responses = responses_of(whole);
  BOOST_REQUIRE(reference.size() == 2U * 8U * 8U);
  BOOST_REQUIRE(responses.size() == reference.size());
  std::multiset<tokens> logged, kept;
  for (const auto& [key, r] : reference) {
    logged.insert(r.tokens);
    BOOST_TEST(r.logprobs.size() == r.tokens.size());
  }
  for (const auto& [name, r] : responses)
    kept.insert(r["tokens"].get<tokens>());
  BOOST_TEST((logged == kept));

  program main(words(cut), place.path());
  const bool begun = comes_true(
      [&] {
        std::error_code none;
        const auto size = std::filesystem::file_size(cut + "/tokens.log", none);
        return !none && size > 60'000 && !responses_of(cut).empty();
      },
      120s);
  BOOST_REQUIRE(begun);
  main.signal(SIGKILL); // the ranks end with their launcher, the planner's among them
  main.wait();
  BOOST_REQUIRE(comes_true([&] { return processes_with(cut + "/job.json").empty(); }, 10s));
  int told = 0;
  for (const auto& event : events_of(cut))
    if (event["event"] == "progress") told = event["finished"].get<int>();
  const auto finished = responses_of(cut);
  BOOST_TEST(finished.size() >= static_cast<std::size_t>(told));
  for (const auto& [name, r] : finished) {
    BOOST_REQUIRE(responses.count(name) == 1U);
    BOOST_TEST((r["tokens"] == responses.at(name)["tokens"]), name);
  }
  std::size_t partial = 0;
  for (const auto& [key, r] : log_of(cut)) {
    const auto& all = reference.at(key);
    BOOST_REQUIRE(r.tokens.size() <= all.tokens.size());
    BOOST_TEST(std::equal(r.tokens.begin(), r.tokens.end(), all.tokens.begin()));
    BOOST_TEST(std::equal(r.logprobs.begin(), r.logprobs.end(), all.logprobs.begin()));
    partial += !r.tokens.empty() && r.tokens.size() < all.tokens.size() ? 1 : 0;
  }
  BOOST_TEST(partial > 0U);
}

BOOST_AUTO_TEST_CASE(without_a_log_there_is_no_file) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  const auto ended = run_program({"run", "--ranks", "2", "--steps", "1", "--n", "1", "--arms",
                                  "vanilla", "--no-token-log", "--fsync", "never", "--out", out},
                                 place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  BOOST_TEST(!std::filesystem::exists(out + "/tokens.log"));
}
