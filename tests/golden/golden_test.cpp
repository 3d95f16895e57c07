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
                                     std::uint32_t ranks, bool gpu_kernels = false) {
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
