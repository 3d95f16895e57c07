// Several policy versions in one run: loaded between epochs, verified, never half.
#define BOOST_TEST_MODULE policies
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <set>

using namespace adafloor::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

std::string version(int number) {
  return shipped_models() + "/collatz-moe/v" + std::to_string(number) + "-bf16";
}

/// By epoch and arm: what was generated, in one text.
std::map<std::pair<int, std::string>, std::string> texts_of(const std::string& out) {
  std::map<std::pair<int, std::string>, std::map<std::string, std::string>> sorted;
  std::ifstream file{out + "/responses.jsonl"};
  for (std::string line; std::getline(file, line);) {
    const auto r = json::parse(line);
    sorted[{r["epoch"].get<int>(), r["arm"].get<std::string>()}]
          [r["prompt_id"].dump() + r["sample"].dump()] = r["tokens"].dump();
  }
  std::map<std::pair<int, std::string>, std::string> texts;
  for (const auto& [key, responses] : sorted)
    for (const auto& [name, tokens] : responses)
      texts[key] += name + tokens;
  return texts;
}

} // namespace

BOOST_AUTO_TEST_CASE(three_versions_serve_an_epoch_each_and_the_last_one_more) {
  const scratch_dir place;
  const auto out = place.path() + "/out";
  std::vector<std::string> words{"run", "--out", out, "--json"};
  for (const int number : {3, 2, 1}) // the last is the least certain: what it draws differs
    words.insert(words.end(), {"--model", version(number)});
  for (const char* word :
       {"--epochs", "4", "--ranks", "4", "--floor", "2", "--steps", "1", "--n", "2",
        "--prompts-per-step", "4", "--arms", "vanilla,natural", "--max-response-length", "400"})
    words.emplace_back(word);
  const auto ended = run_program(words, place.path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  const auto arms = json::parse(ended.out)["arms"];
  BOOST_TEST(arms[0]["tokens_digest"] == arms[1]["tokens_digest"]);
  BOOST_TEST(arms[0]["logprobs_digest"] == arms[1]["logprobs_digest"]);
  BOOST_TEST(arms[0]["responses"] == 4 * 4 * 2);
  const auto texts = texts_of(out);
  BOOST_REQUIRE(texts.size() == 8U);
  for (int epoch = 0; epoch < 4; ++epoch)
    BOOST_TEST((texts.at({epoch, "vanilla"}) == texts.at({epoch, "natural"})));
  BOOST_TEST((texts.at({0, "vanilla"}) != texts.at({2, "vanilla"})));
  BOOST_TEST((texts.at({2, "vanilla"}) != texts.at({3, "vanilla"}))); // a second pass draws anew

  // v2 and v1 in the first arm; v3, v2 and v1 in the second. Numbers grow, whatever the folder.
  std::vector<int> numbers;
  std::set<int> tensors;
  for (const auto& event : events_of(out))
    if (event["event"] == "weights") {
      numbers.push_back(event["version"].get<int>());
      tensors.insert(event["tensors"].get<int>());
    }
  BOOST_TEST(numbers == (std::vector<int>{2, 3, 4, 5, 6}), boost::test_tools::per_element());
  BOOST_TEST(tensors.size() == 1U);
  BOOST_TEST(*tensors.begin() > 16 * 4 * 3); // all experts of all layers, and the dense ones
}

BOOST_AUTO_TEST_CASE(a_version_that_is_damaged_meanwhile_is_not_served) {
  const scratch_dir place;
  const auto out = place.path() + "/out", copy = place.path() + "/next";
  std::filesystem::copy(version(3), copy);
  program run({"run", "--model", version(2), "--model", copy, "--ranks", "2", "--steps", "2", "--n",
               "4", "--arms", "vanilla", "--out", out},
              place.path());
  BOOST_REQUIRE(comes_true([&] { return !events_of(out).empty(); }, 60s));
  const auto weights = copy + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1000);
  const auto ended = run.wait();
  BOOST_TEST(ended.exit_code == 2, ended.err);
  BOOST_TEST(ended.err.find("model.safetensors") != std::string::npos, ended.err);
  BOOST_TEST(texts_of(out).size() == 1U); // the epoch before is kept, and no other
}
