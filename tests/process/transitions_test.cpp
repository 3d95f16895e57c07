// Transitions of the real program that are refused, come too late or are aborted: the run goes on
// as it was and generates the same.
#define BOOST_TEST_MODULE transitions
#include "gpu/engine.hpp"
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// Two prompts that are answered at once and two with long answers, so a group of four ranks is
/// half done early. The history knows which, and believes the long ones shorter than they are.
struct uneven : scratch_dir {
  std::string prompts = path() + "/prompts.jsonl", history = path() + "/history.csv";

  uneven() {
    std::ofstream asked(prompts), past(history);
    past << "prompt_id,sample,epoch,response_tokens\n";
    for (const int n : {4, 871, 8, 703}) {
      const auto name = std::to_string(n);
      asked << json{{"prompt_id", name},
                    {"prompt_token_ids", {11, n % 10, n / 10 % 10, n / 100, 0, 0, 0}}}
                   .dump()
            << '\n';
      past << name << ",0,1," << (n < 10 ? 10 : 40) << '\n';
    }
  }
  std::vector<std::string> words(const std::string& out, std::vector<std::string> more) const {
    std::vector<std::string> all{"run", "--ranks", "4", "--floor", "2", "--steps", "1"};
    for (const char* word : {"--prompts-per-step", "4", "--prompts", prompts.c_str(), "--history",
                             history.c_str(), "--sidecar-model", "none", "--out"})
      all.push_back(word);
    all.push_back(path() + "/" + out);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Long enough that somebody who watches can act before it is over.
  std::vector<std::string> slow(const std::string& out, std::vector<std::string> more) const {
    for (const char* word : {"--n", "16", "--max-response-length", "1400"})
      more.emplace_back(word);
    return words(out, std::move(more));
  }
  std::vector<json> events(const std::string& out, const std::string& kind) const {
    std::vector<json> found;
    for (auto& event : events_of(path() + "/" + out))
      if (event["event"] == kind) found.push_back(std::move(event));
    return found;
  }
  json arms(const std::string& out) const {
    return json::parse(read_file(path() + "/" + out + "/run.json"))["arms"];
  }
};

pid_t process_of_rank(const std::string& job, int rank) {
  for (const pid_t pid : processes_with(job)) {
    const auto line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (line.find(std::string{"--rank"} + '\0' + std::to_string(rank) + '\0') != std::string::npos)
      return pid;
  }
  return -1;
}

} // namespace

/// In a group of two each rank would hold twice the experts; the budget has room for one request
/// beside them, not for the two that run.
BOOST_FIXTURE_TEST_CASE(a_contraction_without_memory_is_refused_and_the_group_goes_on, uneven) {
  engine_options plain;
  plain.world_size = 4;
  const auto model = engine::load(shipped_models() + "/collatz-moe/v3-bf16", plain);
  BOOST_REQUIRE(model.has_value());
  const auto facts = (*model)->facts();
  const auto pages = (7 + 500) / kv_page_tokens + 23; // one request, and two thirds of another
  const auto budget = facts.dense_bytes + facts.experts / 2 * facts.expert_resident_bytes
                      + pages * facts.kv_page_resident_bytes;
  const auto ended =
      run_program(words("out", {"--n", "4", "--max-response-length", "500", "--arms",
                                "vanilla,natural", "--rank-memory-bytes", std::to_string(budget)}),
                  path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto both = arms("out");
  BOOST_TEST(both[0]["tokens_digest"] == both[1]["tokens_digest"]);
  BOOST_TEST(both[0]["logprobs_digest"] == both[1]["logprobs_digest"]);
  const auto ends = events("out", "step_end");
  BOOST_REQUIRE(ends.size() == 2U);
  BOOST_TEST(ends[1]["aborted_transitions"].get<int>() > 0);
}

/// A rank that left is frozen when the full world is formed again: the first try passes its
/// deadline and is aborted, a later one succeeds.
BOOST_FIXTURE_TEST_CASE(a_restoration_past_its_deadline_is_aborted_and_tried_again, uneven) {
  program main(slow("out", {"--arms", "natural", "--deadline-ms", "400", "--failure-ms", "60000"}),
               path());
  const auto contracted = [&] { return !events("out", "transition").empty(); };
  BOOST_REQUIRE(comes_true(contracted, 60s));
  const auto members = events("out", "transition")[0]["members"].get<std::vector<int>>();
  int leaver = 1; // rank 0 has the planner
  while (std::find(members.begin(), members.end(), leaver) != members.end())
    ++leaver;
  const auto pid = process_of_rank(path() + "/out/job.json", leaver);
  BOOST_REQUIRE(pid > 0);
  kill(pid, SIGSTOP);
  const bool generated = comes_true(
      [&] {
        for (const auto& p : events("out", "progress"))
          if (p["finished"] == p["total"]) return true;
        return false;
      },
      60s);
  std::this_thread::sleep_for(1500ms); // longer than the deadline, shorter than the failure time
  kill(pid, SIGCONT);
  BOOST_TEST(generated);
  const auto ended = main.wait();
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto ends = events("out", "step_end");
  BOOST_REQUIRE(ends.size() == 1U);
  BOOST_TEST(ends[0]["aborted_transitions"].get<int>() > 0);
  const auto transitions = events("out", "transition");
  BOOST_TEST(transitions.back()["kind"] == "restore");
  BOOST_TEST(transitions.back()["to"] == 4);
  const auto plain = run_program(slow("plain", {"--arms", "vanilla"}), path());
  BOOST_REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  BOOST_TEST(arms("plain")[0]["tokens_digest"] == arms("out")[0]["tokens_digest"]);
}

/// A rank that stays frozen cannot confirm the abort either: the others form their world without
/// it.
BOOST_FIXTURE_TEST_CASE(a_rank_that_stays_frozen_is_named_and_left_behind, uneven) {
  program main(slow("out", {"--arms", "natural", "--deadline-ms", "400", "--failure-ms", "3000"}),
               path());
  BOOST_REQUIRE(comes_true([&] { return !events("out", "transition").empty(); }, 60s));
  const auto members = events("out", "transition")[0]["members"].get<std::vector<int>>();
  int leaver = 1;
  while (std::find(members.begin(), members.end(), leaver) != members.end())
    ++leaver;
  const auto pid = process_of_rank(path() + "/out/job.json", leaver);
  BOOST_REQUIRE(pid > 0);
  kill(pid, SIGSTOP);
  const auto ended = main.wait();
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  BOOST_TEST(ended.err.find("rank " + std::to_string(leaver) + " is lost") != std::string::npos,
             ended.err);
  BOOST_TEST(processes_with(path() + "/out/job.json").empty());
  BOOST_TEST(events("out", "transition").back()["to"] == 3);
  const auto plain = run_program(slow("plain", {"--arms", "vanilla"}), path());
  BOOST_REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  BOOST_TEST(arms("plain")[0]["tokens_digest"] == arms("out")[0]["tokens_digest"]);
}

BOOST_FIXTURE_TEST_CASE(a_budget_that_holds_no_request_is_refused_at_the_start, uneven) {
  engine_options plain;
  plain.world_size = 4;
  const auto model = engine::load(shipped_models() + "/collatz-moe/v3-bf16", plain);
  BOOST_REQUIRE(model.has_value());
  const auto facts = (*model)->facts();
  const auto budget = facts.dense_bytes + facts.experts / 2 * facts.expert_resident_bytes
                      + facts.kv_page_resident_bytes;
  const auto ended =
      run_program(slow("out", {"--rank-memory-bytes", std::to_string(budget)}), path());
  BOOST_TEST(ended.exit_code == 2);
  BOOST_TEST(ended.err.find("--rank-memory-bytes " + std::to_string(budget)) != std::string::npos,
             ended.err);
}
