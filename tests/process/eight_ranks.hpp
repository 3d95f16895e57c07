#pragma once
// Runs of eight ranks whose tail contracts, moves requests and restores, with faults in the middle.
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>

namespace adafloor::testing {

using nlohmann::json;
using words = std::vector<std::string>;

struct run_end {
  json arm;
  std::vector<json> events;
  std::map<int, std::string> logs; ///< by rank

  std::vector<json> all(const std::string& kind) const {
    std::vector<json> found;
    for (const auto& e : events)
      if (e["event"] == kind) found.push_back(e);
    return found;
  }
  bool struck(int rank) const {
    return logs.at(rank).find("fault injected: ") != std::string::npos;
  }
};

/// Eight ranks, eight prompts of which two have long answers: they contract to four and two, move
/// requests before that, and restore.
struct eight_ranks : scratch_dir {
  words arguments(const words& more) const {
    const auto models = shipped_models() + "/collatz-moe";
    words line{"run", "--ranks", "8", "--floor", "2", "--migrate", "consolidate", "--history"};
    for (const auto& word : {models + "/history/v1.csv", std::string{"--prompts"},
                             two_long_answers(path()), std::string{"--out"}, path() + "/out"})
      line.push_back(word);
    for (const char* word : {"--steps",
                             "1",
                             "--n",
                             "2",
                             "--prompts-per-step",
                             "8",
                             "--max-num-seqs",
                             "6",
                             "--max-response-length",
                             "1500",
                             "--sidecar-model",
                             "none",
                             "--token-log-lag-ms",
                             "5",
                             "--heartbeat-ms",
                             "700",
                             "--failure-ms",
                             "2000",
                             "--max-restarts",
                             "0"})
      line.emplace_back(word);
    line.insert(line.end(), more.begin(), more.end());
    if (std::find(more.begin(), more.end(), "--model") == more.end())
      line.insert(line.end(), {"--model", models + "/v1-bf16"});
    return line;
  }

  run_end go(const words& more) {
    std::filesystem::remove_all(path() + "/out");
    program run(arguments(more), path());
    return end_of(run);
  }
  /// Waits for a run in this folder.
  run_end end_of(program& run) const {
    const auto ended = run.wait();
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    BOOST_TEST(processes_with(path() + "/out/job.json").empty());
    run_end seen;
    seen.arm = json::parse(read_file(path() + "/out/run.json"))["arms"][0];
    seen.events = events_of(path() + "/out");
    for (int rank = 0; rank < 8; ++rank)
      seen.logs[rank] = read_file(path() + "/out/rank-" + std::to_string(rank) + ".log");
    return seen;
  }
};

} // namespace adafloor::testing
