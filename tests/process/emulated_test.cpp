// A replay of recorded lengths on the emulated device, with real rank processes.
#define BOOST_TEST_MODULE emulated
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <map>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

constexpr int prompts = 16, samples = 3;

int length_of(int epoch, int prompt, int sample) {
  return 5 + prompt * prompt + 3 * prompt * ((prompt * 7 + sample * 5 + epoch * 3) % 11);
}

/// Two epochs, the prompts of the second in another order.
std::string write_workload(const std::string& folder) {
  const auto path = folder + "/lengths.csv";
  std::ofstream file{path};
  file << "epoch,position,prompt_id,sample,prompt_tokens,response_tokens,truncated\n";
  for (int epoch = 0; epoch < 2; ++epoch)
    for (int position = 0; position < prompts; ++position) {
      const int prompt = epoch == 0 ? position : (position * 5 + 3) % prompts;
      for (int sample = 0; sample < samples; ++sample)
        file << "ab"[epoch] << ',' << position << ",p" << prompt << ',' << sample << ','
             << 10 + prompt << ',' << length_of(epoch, prompt, sample) << ",0\n";
    }
  return path;
}

program_result replay(const scratch_dir& place, const std::vector<std::string>& more) {
  std::vector<std::string> words{"run",
                                 "--device",
                                 "emulated",
                                 "--cost-model",
                                 "ascend-eager",
                                 "--workload",
                                 write_workload(place.path()),
                                 "--workload-epoch",
                                 "b",
                                 "--history-epochs",
                                 "a",
                                 "--ranks",
                                 "4",
                                 "--time-scale",
                                 "0.01",
                                 "--out",
                                 place.path() + "/out",
                                 "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words, place.path());
}

} // namespace

BOOST_AUTO_TEST_CASE(all_arms_generate_the_recorded_lengths_and_the_books_close) {
  const scratch_dir place;
  const auto ended = replay(place, {"--arms", "vanilla,natural"});
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto printed = json::parse(ended.out);
  BOOST_TEST(printed["time"] == "seconds of the cost model");
  std::uint64_t tokens = 0;
  for (int prompt = 0; prompt < prompts; ++prompt)
    for (int sample = 0; sample < samples; ++sample)
      tokens += static_cast<std::uint64_t>(length_of(1, prompt, sample));
  const auto& arms = printed["arms"];
  BOOST_REQUIRE(arms.size() == 2U);
  for (const auto& arm : arms) {
    BOOST_TEST(arm["responses"] == prompts * samples);
    BOOST_TEST(arm["generated_tokens"] == tokens);
    BOOST_TEST(arm["tokens_digest"] == arms[0]["tokens_digest"]);
    BOOST_TEST(arm["logprobs_digest"] == arms[0]["logprobs_digest"]);
    double sum = 0;
    for (const char* column : {"busy", "dummy", "leased", "transition", "idle"})
      sum += arm["ledger"][column].get<double>();
    const auto whole = arm["ledger"]["rank_seconds"].get<double>();
    BOOST_TEST(std::abs(sum - whole) <= 1e-3 * whole);
    BOOST_TEST(std::abs(4 * arm["rollout_seconds"].get<double>() - whole) <= 1e-3 * whole);
  }
  BOOST_TEST(arms[0]["ledger"]["leased"] == 0.0);
  BOOST_TEST(arms[1]["ledger"]["leased"] > 0.0);
  BOOST_REQUIRE(!arms[1]["transitions"].empty());
  double paused = 0; // rank-seconds
  for (const auto& t : arms[1]["transitions"]) {
    // By the device's clock, so it is the cost model's figure whatever this machine does meanwhile.
    const double seconds = t["kind"] == "contract" ? 14 : 2.6;
    BOOST_TEST(std::abs(t["pause_seconds"].get<double>() - seconds) < 0.01, t.dump());
    paused += seconds * (t["kind"] == "contract" ? t["from"].get<int>() : 4);
  }
  BOOST_TEST(std::abs(arms[1]["ledger"]["transition"].get<double>() - paused) < 0.01 * paused);

  std::map<std::string, int> lengths;
  std::ifstream file{place.path() + "/out/responses.jsonl"};
  for (std::string line; std::getline(file, line);) {
    const auto response = json::parse(line);
    const auto prompt = std::stoi(response["prompt_id"].get<std::string>().substr(1));
    BOOST_TEST(response["stop"] == "eos");
    BOOST_TEST(response["tokens"].size() == response["logprobs"].size());
    BOOST_TEST(static_cast<int>(response["tokens"].size())
               == length_of(1, prompt, response["sample"].get<int>()));
    ++lengths[response["arm"].get<std::string>()];
  }
  BOOST_TEST((lengths == std::map<std::string, int>{{"natural", 48}, {"vanilla", 48}}));
  BOOST_TEST(processes_with(place.path() + "/out").empty());
}

BOOST_AUTO_TEST_CASE(requests_that_move_keep_their_tokens) {
  const scratch_dir place;
  const auto ended = replay(place, {"--arms", "vanilla,adaptive", "--migrate", "consolidate"});
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto arms = json::parse(ended.out)["arms"];
  BOOST_TEST(arms[0]["tokens_digest"] == arms[1]["tokens_digest"]);
  BOOST_TEST(arms[0]["logprobs_digest"] == arms[1]["logprobs_digest"]);
}
