// However a run ends, no process outlives it and what was finished is kept.
#define BOOST_TEST_MODULE stop
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor::testing;
using namespace std::chrono_literals;

namespace {

/// A run that is in the middle of generating.
struct running : scratch_dir {
  std::string out = path() + "/out";
  program main;

  explicit running(const std::string& restarts = "3")
    : main({"run", "--ranks", "4", "--floor", "2", "--steps", "8", "--n", "8", "--arms",
            "vanilla,natural", "--max-restarts", restarts, "--out", out},
           path()) {
    const bool begun = comes_true([&] { return has("step_begin"); }, 60s);
    BOOST_REQUIRE_MESSAGE(begun, read_file(path() + "/stderr") + read_file(out + "/rank-0.log"));
    BOOST_REQUIRE(ranks().size() == 4U);
  }

  bool has(const std::string& kind) const {
    for (const auto& event : events_of(out))
      if (event["event"] == kind) return true;
    return false;
  }
  /// The rank processes; the launcher has --out, they have --job.
  std::vector<pid_t> ranks() const { return processes_with(out + "/job.json"); }
  /// The process of one of them, or -1.
  pid_t rank(int number) const {
    const auto word = std::string{"--rank"} + '\0' + std::to_string(number) + '\0';
    for (const pid_t pid : ranks())
      if (read_file("/proc/" + std::to_string(pid) + "/cmdline").find(word) != std::string::npos)
        return pid;
    return -1;
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(sigterm_ends_everything_and_keeps_the_results) {
  running run;
  run.main.signal(SIGTERM);
  const auto ended = run.main.wait();
  BOOST_TEST(ended.exit_code == 1);
  BOOST_TEST(ended.err.find("interrupted") != std::string::npos, ended.err);
  BOOST_TEST(run.ranks().empty());
  const auto kept = nlohmann::json::parse(read_file(run.out + "/run.json"), nullptr, false);
  BOOST_REQUIRE(kept.is_object());
  BOOST_TEST(kept["interrupted"] == true);
  BOOST_TEST(read_file(run.out + "/report.html").find("Interrupted") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(sigint_counts_as_sigterm) {
  running run;
  run.main.signal(SIGINT);
  BOOST_TEST(run.main.wait().exit_code == 1);
  BOOST_TEST(run.ranks().empty());
}

BOOST_AUTO_TEST_CASE(sigkill_of_the_launcher_leaves_nothing_behind) {
  running run;
  run.main.signal(SIGKILL);
  BOOST_TEST(run.main.wait().exit_code == 128 + SIGKILL);
  BOOST_TEST(comes_true([&] { return run.ranks().empty(); }, 5s));
  BOOST_TEST(!std::filesystem::exists(run.out + "/run.json")); // never half of one
}

BOOST_AUTO_TEST_CASE(a_killed_rank_is_named_and_the_others_go_on) {
  running run;
  const auto victim = run.rank(2);
  BOOST_REQUIRE(victim > 0);
  BOOST_REQUIRE(comes_true([&] { return run.has("progress"); }, 60s));
  kill(victim, SIGKILL);
  const auto ended = run.main.wait();
  BOOST_TEST(ended.exit_code == 0, ended.err);
  BOOST_TEST(ended.err.find("rank 2 was killed by signal 9") != std::string::npos, ended.err);
  BOOST_TEST(ended.err.find("rank 2 is lost") != std::string::npos, ended.err);
  BOOST_TEST(run.ranks().empty());
  const auto arms = nlohmann::json::parse(read_file(run.out + "/run.json"))["arms"];
  BOOST_REQUIRE(arms.size() == 2U);
  BOOST_TEST(arms[0]["tokens_digest"] == arms[1]["tokens_digest"]);
  BOOST_TEST(arms[0]["logprobs_digest"] == arms[1]["logprobs_digest"]);
  BOOST_TEST(arms[1]["ranks_lost"].size() == 1U);
}

BOOST_AUTO_TEST_CASE(without_the_rank_of_the_planner_and_without_restarts_the_run_ends) {
  running run("0");
  const auto victim = run.rank(0);
  BOOST_REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  const auto ended = run.main.wait();
  BOOST_TEST(ended.exit_code == 3, ended.err);
  BOOST_TEST(ended.err.find("rank 0 was killed by signal 9") != std::string::npos, ended.err);
  BOOST_TEST(ended.err.find("rank-0.log") != std::string::npos, ended.err);
  BOOST_TEST(run.ranks().empty());
}
