// Auxiliary work of every kind on leased ranks: exactly once, whatever is killed.
#define BOOST_TEST_MODULE leases
#include "tests/process/lease_runs.hpp"

#include <boost/test/data/test_case.hpp>

#include <cstdlib>
#include <utility>

using namespace adafloor::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// A run whose tails leave ranks to auxiliary work; `more` comes last.
std::vector<std::string> words(const std::string& out, const char* steps,
                               const std::vector<std::string>& more) {
  std::vector<std::string> all{"run", "--arms", "natural", "--out", out, "--steps", steps};
  for (const char* word : {"--ranks", "4", "--floor", "2", "--n", "4", "--lease-max-slowdown", "0",
                           "--lease-min-window-seconds", "0.05"})
    all.push_back(word);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

} // namespace

BOOST_DATA_TEST_CASE(scores_of_the_same_model_are_the_bits_that_it_gave_while_generating,
                     boost::unit_test::data::make({"float32", "bfloat16"}), kv_type) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  const auto ended = run_program(words(out, "3",
                                       {"--sidecar-model", "none", "--lease-score-with", "self",
                                        "--temperature", "0.9", "--kv-dtype", kv_type}),
                                 place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  std::map<std::string, json> given;
  const auto key = [](const json& line) {
    return line["arm"].dump() + line["epoch"].dump() + line["prompt_id"].dump()
           + line["sample"].dump();
  };
  for (const auto& line : lines_of(out + "/responses.jsonl"))
    given[key(line)] = line["logprobs"];
  const auto scores = lines_of(out + "/scores.jsonl");
  std::set<std::string> scored;
  for (const auto& line : scores) {
    BOOST_TEST(scored.insert(key(line)).second, line.dump());
    BOOST_REQUIRE_MESSAGE(given.count(key(line)) == 1, line.dump());
    // Shortest decimals that read back: equal text is equal bits.
    BOOST_TEST(line["logprobs"] == given[key(line)], key(line));
    BOOST_TEST(!line["logprobs"].empty());
  }
  BOOST_TEST(scores.size() > 0U);
  BOOST_TEST(arm_of(out)["sidecar"]["scored"] == scores.size());
  BOOST_TEST(arm_of(out)["sidecar"]["duplicates"] == 0);
}

BOOST_AUTO_TEST_CASE(commands_run_once_each_whichever_of_their_processes_are_killed) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  constexpr std::size_t count = 30;
  const program run{long_tail(place, {"--lease-exec-count", std::to_string(count), "--lease-exec",
                                      "sleep 0.05; test -d \"$ADAFLOOR_SCRATCH\" && "
                                      "echo unit $ADAFLOOR_UNIT on $ADAFLOOR_LEASE_RANK"}),
                    place.path()};
  std::srand(7);
  std::size_t killed = 0;
  const auto over = [&] { return std::filesystem::exists(out + "/run.json"); };
  comes_true(
      [&] {
        for (const auto pid : processes_with("unit $ADAFLOOR_UNIT")) // The launcher has it, too.
          if (pid != run.pid() && killed < 10 && std::rand() % 8 == 0)
            killed += kill(pid, SIGKILL) == 0 ? 1 : 0;
        return over();
      },
      240s);
  BOOST_REQUIRE(over());
  BOOST_TEST(killed > 0U);
  const auto results = lines_of(out + "/exec.jsonl");
  std::set<std::uint64_t> seen;
  for (const auto& line : results) {
    BOOST_TEST(seen.insert(line["unit"].get<std::uint64_t>()).second, line.dump());
    if (line["exit_code"] != 0) continue;
    // The shell says "Killed" first where only its `sleep` was hit.
    BOOST_TEST(line["text"].get<std::string>().find("unit " + line["unit"].dump() + " on ")
                   != std::string::npos,
               line.dump());
  }
  check_once(results, count);
  BOOST_TEST(arm_of(out)["sidecar"]["executed"] == count);
  check_restored(out);
}

BOOST_AUTO_TEST_CASE(commands_are_told_how_long_their_rank_is_expected_to_be_free) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  constexpr std::size_t count = 12;
  const auto ended = run_program(
      long_tail(place, {"--lease-exec-count", std::to_string(count), "--lease-exec",
                        "echo $ADAFLOOR_LEASE_DEADLINE_SECONDS $ADAFLOOR_LEASE_ID; sleep 0.1"}),
      place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto results = lines_of(out + "/exec.jsonl");
  check_once(results, count);
  std::map<std::string, std::vector<double>> left;
  for (const auto& line : results) {
    std::istringstream said{line["text"].get<std::string>()};
    double seconds = 0;
    std::string lease;
    said >> seconds >> lease;
    left[lease].push_back(seconds);
  }
  check_left(left, windows_of(out));
}

/// Kills model workers of `run` at random moments, half of them while they are stopped and given
/// units.
struct worker_killer {
  static constexpr std::size_t most = 12;
  pid_t run;
  std::string out;
  std::vector<pid_t> stopped{};
  std::size_t killed = 0;

  void strike() {
    for (const auto pid : std::exchange(stopped, {}))
      kill(pid, SIGKILL);
    for (const auto rank : children_of(run, out + "/job.json"))
      for (const auto worker : children_of(rank, "model-worker")) {
        if (killed == most || std::rand() % 4 != 0) continue;
        const bool stops = std::rand() % 2 == 0;
        killed += kill(worker, stops ? SIGSTOP : SIGKILL) == 0 ? 1 : 0;
        if (stops) stopped.push_back(worker);
      }
  }
};

BOOST_AUTO_TEST_CASE(queries_are_answered_once_each_whichever_model_workers_are_killed) {
  constexpr std::size_t count = 1500;
  const scratch_dir place;
  const auto out = place.path() + "/out";
  const auto queries = place.path() + "/queries.jsonl";
  write_queries(queries, count);
  // Units come late, or a fast machine has done them all before the first kill.
  const auto arguments =
      long_tail(place, {"--sidecar-model", arith_model(), "--sidecar-queries", queries, "--fault",
                        "at=work_units do=delay ms=40 count=0"});
  std::srand(11);
  std::size_t killed = 0, correct = 0;
  int forced = 0;
  const auto done = [&] { return count_lines(out + "/sidecar.jsonl"); };
  // On a slow machine one tail is too short for them all; the next run goes on.
  for (int runs = 0; runs < 10 && done() < count; ++runs) {
    std::filesystem::remove(out + "/run.json");
    program run{arguments, place.path()};
    worker_killer killer{run.pid(), out};
    BOOST_REQUIRE(comes_true(
        [&] {
          const auto kept = done();
          if (kept > 0 && (kept < count || !killer.stopped.empty())) killer.strike();
          return std::filesystem::exists(out + "/run.json");
        },
        240s));
    const auto ended = run.wait();
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    const auto arm = arm_of(out);
    killed += killer.killed;
    correct += arm["sidecar"]["correct"].get<std::size_t>();
    forced += arm["leases"]["forced"].get<int>();
    BOOST_TEST(arm["sidecar"]["duplicates"] == 0);
    BOOST_TEST(arm["leases"]["unclean"] == 0);
    BOOST_TEST(arm["quarantined"].empty());
    check_restored(out);
  }
  check_once(lines_of(out + "/sidecar.jsonl"), count);
  BOOST_TEST(100 * correct >= 99 * count);
  BOOST_TEST(killed > 0U);
  BOOST_TEST(forced > 0); // They were at work.
}

BOOST_AUTO_TEST_CASE(model_workers_are_there_before_the_first_lease_and_end_with_their_ranks) {
  const scratch_dir place;
  const auto queries = place.path() + "/queries.jsonl";
  write_queries(queries, 1);
  const program run{long_tail(place, {"--sidecar-model", arith_model(), "--sidecar-queries",
                                      queries, "--hold-seconds", "600"}),
                    place.path()};
  std::vector<pid_t> ranks, workers;
  BOOST_REQUIRE(comes_true(
      [&] {
        ranks = children_of(run.pid(), place.path() + "/out/job.json");
        workers.clear();
        for (const auto rank : ranks)
          for (const auto worker : children_of(rank, "model-worker"))
            workers.push_back(worker);
        return workers.size() == 4;
      },
      120s));
  for (const auto rank : ranks)
    kill(rank, SIGKILL);
  BOOST_TEST(comes_true(
      [&] {
        return std::all_of(workers.begin(), workers.end(), [](pid_t pid) { // Zombies have none.
          return read_file("/proc/" + std::to_string(pid) + "/cmdline").empty();
        });
      },
      60s));
}

BOOST_AUTO_TEST_CASE(
    a_command_that_ignores_sigterm_is_gone_with_its_children_and_the_world_returns) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  const auto marker = place.path() + "/stubborn";
  const auto command = "trap '' TERM; /bin/bash -c \"exec -a " + marker + " sleep 600\" & touch "
                       + marker + "; sleep 600; sleep 600";
  const auto ended =
      run_program(long_tail(place, {"--lease-grace-seconds", "0.3", "--lease-exec-count", "4",
                                    "--lease-exec", command}),
                  place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  BOOST_TEST(std::filesystem::exists(marker)); // It ran.
  BOOST_TEST(processes_with(marker).empty());
  BOOST_TEST(lines_of(out + "/exec.jsonl").empty()); // Never finished, always handed back.
  const auto arm = arm_of(out);
  BOOST_TEST(arm["leases"]["forced"] > 0);
  BOOST_TEST(arm["leases"]["unclean"] == 0);
  BOOST_TEST(arm["quarantined"].empty());
  check_restored(out);
}

/// Windows of seconds: those of a small model's tails may all be too short.
BOOST_AUTO_TEST_CASE(a_job_killed_in_the_middle_goes_on_with_the_units_that_are_left) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  const auto queries = place.path() + "/queries.jsonl";
  constexpr std::size_t count = 120;
  write_queries(queries, count);
  const auto arguments =
      long_tail(place, {"--sidecar-model", arith_model(), "--sidecar-queries", queries});
  std::size_t before = 0;
  {
    // Each rank gets its first units only, or a fast machine has done them all before the kill.
    auto scarce = arguments;
    scarce.insert(scarce.end(), {"--fault", "at=work_units do=drop skip=2 count=0"});
    program first{scarce, place.path()};
    BOOST_REQUIRE(comes_true([&] { return count_lines(out + "/sidecar.jsonl") >= 10; }, 120s));
    first.signal(SIGKILL);
    first.wait();
    BOOST_REQUIRE(comes_true([&] { return processes_with(out).empty(); }, 20s));
    before = count_lines(out + "/sidecar.jsonl");
    BOOST_TEST(before < count);
    BOOST_TEST(!std::filesystem::exists(out + "/run.json"));              // In the middle.
    std::ofstream{out + "/sidecar.jsonl", std::ios::app} << "{\"unit\":"; // A torn end.
  }
  const auto ended = run_program(arguments, place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  BOOST_TEST(ended.err.find("continues") != std::string::npos, ended.err);
  check_once(lines_of(out + "/sidecar.jsonl"), count);
  const auto sidecar = arm_of(out)["sidecar"];
  BOOST_TEST(sidecar["completed"] == count - before);
  BOOST_TEST(sidecar["duplicates"] == 0);
}
