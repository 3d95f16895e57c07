// Logits and greedy tokens of the independent reference implementation, with 1, 2, 4 and 8 ranks,
// and with the kernels of a GPU: executed by this processor, or by a GPU where there is one.
#define BOOST_TEST_MODULE golden
#include "gpu/device.hpp"
#include "gpu/local_run.hpp"
#include "gpu/loopback.hpp"
#include "gpu/npy.hpp"
#include "tests/gpu/launchers.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

using namespace adafloor;

namespace {

const std::string root = ADAFLOOR_SOURCE_DIR "/tests/golden/";

struct fixture_case {
  const char* name;
  double tolerance; ///< 1e-4 for random weights, 3e-4 for trained ones (long sequences)
  std::vector<std::uint32_t> ranks;
  bool gpu_kernels = true; ///< long fixtures go without: gpu/launcher_device_test has their model
};

const fixture_case cases[] = {{"arith_dense", 3e-4, {1, 2, 4, 8}},
                              {"collatz_moe_v1", 3e-4, {1, 2, 4, 8}, false},
                              {"collatz_moe_v3", 3e-4, {1, 2, 4, 8}, false},
                              {"collatz_moe_v3_bf16", 3e-4, {1, 2, 4, 8}, false},
                              {"moe_e128k8_norm_untied_kv4_bf16", 1e-4, {1, 2, 4, 8}},
                              {"moe_e16k4_raw_untied_kv2_sharded", 1e-4, {1, 2, 4, 8}},
                              {"moe_e8k2_norm_tied_kv1", 1e-4, {1, 2, 4, 8}}};

std::ostream& operator<<(std::ostream& os, const fixture_case& c) {
  return os << c.name;
}

/// Greedy generation of all prompts; returns the outputs in order.
std::vector<request_output> generate(const std::string& model, const nlohmann::json& fixture,
                                     std::uint32_t ranks, bool gpu_kernels = false,
                                     kv_dtype kv_type = kv_dtype::float32) {
  std::vector<request_spec> requests;
  bool trained = fixture.contains("model"); // only there does EOS end the reference's responses
  for (std::size_t i = 0; i < fixture["prompts"].size(); ++i) {
    request_spec spec;
    spec.id = request_id{i};
    spec.prompt = fixture["prompts"][i].get<std::vector<token_id>>();
    spec.max_tokens = static_cast<std::uint32_t>(fixture["greedy"][i].size());
    spec.sampling.temperature = 0;
    spec.ignore_eos = !trained;
    spec.keep_logits = true;
    requests.push_back(std::move(spec));
  }
  auto fabrics = make_loopback_fabrics(ranks);
  engine_options options;
  options.prefill_budget = 50; // several chunks per prompt
  options.kv_type = kv_type;
  if (gpu_kernels)
    options.make_device = [] { return make_launcher_device(tests::fastest_launcher()); };
  auto outputs = run_locally(model, options, fabrics, std::move(requests));
  BOOST_REQUIRE_MESSAGE(outputs, outputs.error().text);
  return std::move(*outputs);
}

double max_difference(const std::string& path, const std::vector<float>& logits) {
  auto expected = read_npy(path);
  BOOST_REQUIRE_MESSAGE(expected, expected.error().text);
  BOOST_REQUIRE_GE(logits.size(), expected->values.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected->values.size(); ++i)
    worst = std::max(worst, std::fabs(double(logits[i]) - double(expected->values[i])));
  return worst;
}

} // namespace

BOOST_DATA_TEST_CASE(parity, boost::unit_test::data::make(cases), c) {
  auto folder = root + "fixtures/" + c.name;
  std::ifstream file(folder + "/fixture.json");
  auto fixture = nlohmann::json::parse(file);
  auto model =
      fixture.contains("model") ? root + "models/" + fixture["model"].get<std::string>() : folder;
  std::vector<request_output> alone;
  for (auto ranks : c.ranks) {
    auto outputs = generate(model, fixture, ranks);
    BOOST_REQUIRE_EQUAL(outputs.size(), fixture["prompts"].size());
    double worst = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      BOOST_TEST(outputs[i].tokens == fixture["greedy"][i].get<std::vector<token_id>>(),
                 "greedy tokens of prompt " << i << " with " << ranks << " ranks");
      worst = std::max(worst, max_difference(folder + "/logits_" + std::to_string(i) + ".npy",
                                             outputs[i].logits));
      if (!alone.empty()) {
        BOOST_TEST((outputs[i].logits == alone[i].logits), "bits with " << ranks << " ranks");
        BOOST_TEST((outputs[i].logprobs == alone[i].logprobs), "bits with " << ranks << " ranks");
      }
    }
    BOOST_TEST_MESSAGE(c.name << ", " << ranks << " ranks: max |logit difference| " << worst);
    BOOST_TEST(worst <= c.tolerance);
    if (alone.empty()) alone = std::move(outputs);
  }
  if (!c.gpu_kernels) return;
  const auto outputs = generate(model, fixture, 1, true);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    BOOST_TEST((outputs[i].logits == alone[i].logits), "bits with the kernels of a GPU");
    BOOST_TEST((outputs[i].logprobs == alone[i].logprobs), "bits with the kernels of a GPU");
    BOOST_TEST(outputs[i].tokens == alone[i].tokens, "tokens with the kernels of a GPU");
  }
}

/// Rounded keys and values change logits, by a little, and all devices and groups alike.
BOOST_DATA_TEST_CASE(pages_of_bfloat16, boost::unit_test::data::make(cases), c) {
  if (!c.gpu_kernels) return; // those with trained long responses
  const auto folder = root + "fixtures/" + c.name;
  std::ifstream file(folder + "/fixture.json");
  const auto fixture = nlohmann::json::parse(file);
  const auto model =
      fixture.contains("model") ? root + "models/" + fixture["model"].get<std::string>() : folder;
  const auto alone = generate(model, fixture, 1, false, kv_dtype::bfloat16);
  const auto group = generate(model, fixture, 4, false, kv_dtype::bfloat16);
  const auto kernels = generate(model, fixture, 1, true, kv_dtype::bfloat16);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    BOOST_TEST((group[i].logits == alone[i].logits), "bits with 4 ranks");
    BOOST_TEST((kernels[i].logits == alone[i].logits), "bits with the kernels of a GPU");
    // Of the prompt only: what follows may be another response.
    const auto expected = read_npy(folder + "/logits_" + std::to_string(i) + ".npy");
    BOOST_REQUIRE_MESSAGE(expected, expected.error().text);
    const auto values = fixture["prompts"][i].size() * expected->columns;
    // The mean, since where two experts are nearly as good as each other, another is chosen.
    double worst = 0, difference = 0, square = 0;
    for (std::size_t j = 0; j < values; ++j) {
      const double d = double(alone[i].logits[j]) - double(expected->values[j]);
      worst = std::max(worst, std::fabs(d));
      difference += d * d;
      square += double(expected->values[j]) * double(expected->values[j]);
    }
    const double relative = std::sqrt(difference / square);
    BOOST_TEST_MESSAGE(c.name << ": logits differ by " << relative << ", at most " << worst);
    BOOST_TEST(worst > 0);
    BOOST_TEST(relative <= 2e-2);
  }
}
