#define BOOST_TEST_MODULE sampler
#include "gpu/kernels.hpp"
#include "gpu/sampler.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

using namespace adafloor;

namespace {

const std::vector<float> logits = [] {
  std::vector<float> row(16, 0.0F); // padding behind ten logits
  const float values[10] = {1.0F, -0.5F, 2.0F, 0.3F, 2.0F, -3.0F, 0.0F, 1.5F, -1.0F, 0.9F};
  std::copy(values, values + 10, row.begin());
  return row;
}();

/// Probabilities of the ten logits at a temperature.
std::vector<double> probabilities(double temperature) {
  std::vector<double> p(10);
  double sum = 0;
  for (int i = 0; i < 10; ++i)
    sum += p[i] = std::exp(double(logits[i]) / temperature);
  for (auto& v : p)
    v /= sum;
  return p;
}

/// Frequencies over many positions.
std::vector<double> frequencies(const sampling_spec& spec, std::uint64_t key, int draws) {
  sampler chooser(10);
  std::vector<double> count(10, 0);
  for (int i = 0; i < draws; ++i)
    count[chooser.sample(logits.data(), spec, key, static_cast<std::uint32_t>(i))->token] +=
        1.0 / draws;
  return count;
}

} // namespace

BOOST_AUTO_TEST_CASE(philox_known_answers) { // Random123, kat_vectors
  using block = std::array<std::uint32_t, 4>;
  BOOST_TEST(
      (philox({0, 0, 0, 0}, {0, 0}) == block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  auto f = 0xffffffffU;
  BOOST_TEST(
      (philox({f, f, f, f}, {f, f}) == block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  BOOST_TEST((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0})
              == block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

BOOST_AUTO_TEST_CASE(frequencies_follow_the_distribution) {
  const int draws = 20'000;
  for (float temperature : {0.5F, 1.0F, 2.0F}) {
    sampling_spec spec;
    spec.temperature = temperature;
    spec.seed = 3;
    auto expected = probabilities(double(temperature));
    auto found = frequencies(spec, 77, draws);
    double chi_square = 0;
    for (int i = 0; i < 10; ++i)
      chi_square += draws * std::pow(found[i] - expected[i], 2) / expected[i];
    BOOST_TEST(chi_square < 27.9); // 9 degrees of freedom, 0.1 %
  }
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_cut_the_tail) {
  sampling_spec spec;
  spec.top_k = 3; // logits 2.0 (twice) and 1.5
  auto found = frequencies(spec, 1, 5'000);
  BOOST_TEST(found[2] + found[4] + found[7] == 1.0, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found[7] == std::exp(1.5) / (2 * std::exp(2.0) + std::exp(1.5)),
             boost::test_tools::tolerance(0.1));
  spec.top_k = 1; // equals: the lowest id
  BOOST_TEST(frequencies(spec, 1, 100)[2] == 1.0, boost::test_tools::tolerance(1e-9));
  spec.top_k = 0;
  auto p = probabilities(1);
  spec.top_p = static_cast<float>(p[2] + p[4] + 0.5 * p[7]); // needs the third token too
  found = frequencies(spec, 2, 5'000);
  BOOST_TEST(found[2] + found[4] + found[7] == 1.0, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found[7] > 0.1);
  spec.top_p = 1e-6F;
  BOOST_TEST(frequencies(spec, 2, 100)[2] == 1.0, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(draws_depend_on_seed_key_and_position_alone) {
  sampling_spec spec;
  sampler one(10), other(10);
  int differ_by_seed = 0, differ_by_key = 0;
  for (std::uint32_t position = 0; position < 200; ++position) {
    auto token = one.sample(logits.data(), spec, 5, position)->token;
    BOOST_TEST(token == other.sample(logits.data(), spec, 5, position)->token);
    auto seeded = spec;
    seeded.seed = 1;
    differ_by_seed += token != other.sample(logits.data(), seeded, 5, position)->token;
    differ_by_key += token != other.sample(logits.data(), spec, 6, position)->token;
  }
  BOOST_TEST(differ_by_seed > 100);
  BOOST_TEST(differ_by_key > 100);
  double sum = 0;
  for (std::uint32_t position = 0; position < 10'000; ++position) {
    auto u = uniform_at(9, 8, position);
    BOOST_REQUIRE((u >= 0 && u < 1));
    sum += u;
  }
  BOOST_TEST(std::fabs(sum / 10'000 - 0.5) < 0.01);
}

BOOST_AUTO_TEST_CASE(logprob_is_of_the_untempered_model) {
  sampler chooser(10);
  auto p = probabilities(1);
  for (token_id token = 0; token < 10; ++token)
    BOOST_TEST(double(*chooser.logprob(logits.data(), token)) == std::log(p[token]),
               boost::test_tools::tolerance(1e-6));
  sampling_spec cold;
  cold.temperature = 0.1F;
  cold.top_k = 2;
  auto chosen = *chooser.sample(logits.data(), cold, 1, 1);
  BOOST_TEST(chosen.logprob == *chooser.logprob(logits.data(), chosen.token));
  cold.temperature = 0;
  BOOST_TEST(chooser.sample(logits.data(), cold, 1, 1)->token == 2);
}

BOOST_AUTO_TEST_CASE(damaged_logits_are_an_error) {
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    auto row = logits;
    row[4] = bad;
    sampler chooser(10);
    BOOST_TEST(!chooser.sample(row.data(), {}, 1, 1).has_value());
    BOOST_TEST(!chooser.logprob(row.data(), 0).has_value());
  }
}
