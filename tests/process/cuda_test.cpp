// Whole runs with --device cuda on real rank processes: the code of the plug-in is the very one
// that GPUs get, the CUDA runtime under it that of tests/gpu/fake_cuda.cpp.
#define BOOST_TEST_MODULE cuda
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

using words = std::vector<std::string>;

boost::test_tools::assertion_result has_plugin(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result answer(std::string(ADAFLOOR_FAKE_PLUGINS) != "");
  if (!answer) answer.message() << "no cuda_runtime.h";
  return answer;
}

/// Four ranks that contract to two and move requests before that.
struct four_ranks : scratch_dir {
  four_ranks() { ::setenv("ADAFLOOR_PLUGINS", ADAFLOOR_FAKE_PLUGINS, 1); }
  ~four_ranks() {
    for (const char* name : {"ADAFLOOR_PLUGINS", "FAKE_CUDA_DEVICES", "FAKE_CUDA_BYTES"})
      ::unsetenv(name);
  }

  program_result run(const words& more) const {
    std::filesystem::remove_all(path() + "/out");
    const auto models = shipped_models() + "/collatz-moe";
    words line{"run",
               "--ranks",
               "4",
               "--floor",
               "2",
               "--migrate",
               "consolidate",
               "--history",
               models + "/history/v1.csv",
               "--prompts",
               two_long_answers(path()),
               "--out",
               path() + "/out"};
    for (const char* word :
         {"--steps", "1", "--n", "1", "--prompts-per-step", "8", "--max-num-seqs", "6",
          "--max-response-length", "200", "--sidecar-model", "none", "--arms", "natural"})
      line.emplace_back(word);
    if (std::find(more.begin(), more.end(), "--model") == more.end())
      line.insert(line.end(), {"--model", models + "/v1-bf16"});
    line.insert(line.end(), more.begin(), more.end());
    return run_program(line, path());
  }
  json arm(const words& more) const {
    const auto ended = run(more);
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    BOOST_TEST(processes_with(path() + "/out/job.json").empty());
    return json::parse(read_file(path() + "/out/run.json"))["arms"][0];
  }
  json cuda(words more) const {
    more.insert(more.end(), {"--device", "cuda"});
    return arm(more);
  }
  static void same(const json& arm, const json& expected) {
    for (const char* what : {"tokens_digest", "logprobs_digest", "responses"})
      BOOST_TEST(arm[what] == expected[what], what);
  }
  std::string refused(const words& more) const {
    const auto ended = run(more);
    BOOST_TEST(ended.exit_code != 0);
    return ended.err;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(with_cuda, four_ranks, *boost::unit_test::precondition(has_plugin))

BOOST_AUTO_TEST_CASE(a_rollout_that_contracts_and_moves_requests_has_the_bits_of_the_cpu) {
  const auto expected = arm({"--device", "cpu"});
  for (const std::string collective : {"ucx", "nccl"}) {
    const auto seen = cuda({"--collective", collective});
    same(seen, expected);
    BOOST_TEST(seen["transitions"].size() >= 2U, collective); // and back
    const auto events = events_of(path() + "/out");
    BOOST_TEST(
        std::count_if(events.begin(), events.end(),
                      [](const json& e) { return e["event"] == "move" && e["outcome"] == "moved"; })
        > 0);
  }
}

BOOST_AUTO_TEST_CASE(the_others_go_on_without_a_rank_that_dies) {
  same(cuda({"--collective", "ucx", "--heartbeat-ms", "700", "--failure-ms", "2000", "--fault",
             "at=start_rollout do=crash rank=2"}),
       arm({"--device", "cpu"}));
}

BOOST_AUTO_TEST_CASE(the_next_policy_is_served_with_its_own_weights) {
  const auto versions = shipped_models() + "/collatz-moe/v";
  const words two{"--model", versions + "2-bf16", "--model", versions + "1-bf16", "--epochs", "2"};
  same(cuda(two), arm(two));
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_said_with_a_remedy) {
  ::setenv("FAKE_CUDA_BYTES", "100000", 1);
  const auto full = refused({"--device", "cuda"});
  BOOST_TEST(full.find("fewer KV tokens or experts") != std::string::npos, full);
  ::setenv("FAKE_CUDA_DEVICES", "0", 1);
  const auto none = refused({"--device", "cuda"});
  BOOST_TEST(none.find("there is no GPU to use") != std::string::npos, none);
  ::setenv("ADAFLOOR_PLUGINS", path().c_str(), 1);
  const auto absent = refused({"--device", "cuda"});
  BOOST_TEST(absent.find("libadafloor_cuda.so: not found in") != std::string::npos, absent);
}

BOOST_AUTO_TEST_SUITE_END()
