// Whole runs whose groups are NCCL's, on real rank processes; the NCCL is that of
// tests/gpu/fake_nccl.cpp, the plug-in's code the very one that GPUs get.
#define BOOST_TEST_MODULE nccl
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

using words = std::vector<std::string>;

boost::test_tools::assertion_result has_plugin(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result answer(std::string(ADAFLOOR_FAKE_PLUGINS) != "");
  if (!answer) answer.message() << "no nccl.h and cuda_runtime.h";
  return answer;
}

/// Eight ranks that contract to four and two and move requests before that.
struct eight_ranks : scratch_dir {
  eight_ranks() { ::setenv("ADAFLOOR_PLUGINS", ADAFLOOR_FAKE_PLUGINS, 1); }
  ~eight_ranks() { ::unsetenv("ADAFLOOR_PLUGINS"); }

  program_result run(const words& more) const {
    std::filesystem::remove_all(path() + "/out");
    const auto models = shipped_models() + "/collatz-moe";
    words line{"run",
               "--ranks",
               "8",
               "--floor",
               "2",
               "--migrate",
               "consolidate",
               "--history",
               models + "/history/v1.csv",
               "--prompts",
               two_long_answers(path()),
               "--out",
               path() + "/out",
               "--model",
               models + "/v1-bf16"};
    for (const char* word :
         {"--steps", "1", "--n", "2", "--prompts-per-step", "8", "--max-num-seqs", "6",
          "--max-response-length", "1500", "--sidecar-model", "none", "--heartbeat-ms", "700",
          "--failure-ms", "2000"})
      line.emplace_back(word);
    line.insert(line.end(), more.begin(), more.end());
    return run_program(line, path());
  }
  json arms(const words& more) const {
    const auto ended = run(more);
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    BOOST_TEST(processes_with(path() + "/out/job.json").empty());
    return json::parse(read_file(path() + "/out/run.json"))["arms"];
  }
  const json& expected() const {
    static const auto arm = [this] {
      const auto all = arms({"--collective", "auto", "--arms", "vanilla"});
      const auto task = json::parse(read_file(path() + "/out/job.json"));
      BOOST_TEST(task["transport"]["collective"] == "ucx"); // GPUs there are, the device is cpu
      return all[0];
    }();
    return arm;
  }
  void same(const json& arm) const {
    const auto& expected = this->expected();
    for (const char* what : {"tokens_digest", "logprobs_digest", "responses"})
      BOOST_TEST(arm[what] == expected[what], arm["arm"] << ", " << what);
  }
  void says(const words& more, const words& parts) const {
    const auto ended = run(more);
    BOOST_TEST(ended.exit_code == 2, ended.err);
    for (const auto& part : parts)
      BOOST_TEST(ended.err.find(part) != std::string::npos, ended.err << " should say " << part);
    BOOST_TEST(!std::filesystem::exists(path() + "/out"));
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(over_nccl, eight_ranks, *boost::unit_test::precondition(has_plugin))

BOOST_AUTO_TEST_CASE(groups_shrink_and_return_with_the_bits_that_ucx_gives) {
  std::size_t contractions = 0;
  for (const auto& arm : arms({"--collective", "nccl", "--arms", "natural,planned,adaptive",
                               "--residency", "planned"})) {
    same(arm);
    for (const auto& t : arm["transitions"])
      contractions += t["kind"] == "contract" ? 1 : 0;
  }
  BOOST_TEST(contractions > 2U);
}

/// NCCL notices neither: the ranks' own signs of life do.
BOOST_AUTO_TEST_CASE(a_rank_that_dies_or_freezes_is_left_and_the_others_form_another_world) {
  for (const std::string act : {"crash", "freeze"}) {
    const auto arm = arms({"--collective", "nccl", "--arms", "natural", "--fault",
                           "at=start_rollout do=" + act + " rank=6"})[0];
    same(arm);
    BOOST_TEST(arm["ranks_lost"].size() == 1U, act);
    BOOST_TEST(arm["transitions"].back()["to"] == 7, act);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_dies_in_a_contraction_is_left) {
  for (const std::string at : {"engine_prepare", "engine_commit"}) {
    const auto arm = arms({"--collective", "nccl", "--arms", "natural", "--fault",
                           "at=" + at + " do=crash rank=3"})[0];
    same(arm);
  }
}

BOOST_AUTO_TEST_CASE(a_choice_that_cannot_be_is_refused_before_anything_starts) {
  ::setenv("FAKE_CUDA_DEVICES", "3", 1);
  says({"--collective", "nccl"}, {"--collective nccl", "8 ranks", "3 GPUs", "--collective ucx"});
  ::setenv("FAKE_CUDA_DEVICES", "0", 1);
  says({"--collective", "nccl"}, {"--collective nccl", "no GPU"});
  ::unsetenv("FAKE_CUDA_DEVICES");
  says({"--collective", "mpi"}, {"--collective mpi", "ucx, nccl, auto"});
  ::setenv("ADAFLOOR_PLUGINS", path().c_str(), 1);
  says({"--collective", "nccl"}, {"--collective nccl", "not found in"});
}

BOOST_AUTO_TEST_SUITE_END()
