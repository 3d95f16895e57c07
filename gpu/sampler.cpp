#include "gpu/sampler.hpp"

#include "gpu/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace adafloor {

namespace {

/// Natural logarithm of a positive normal double by the series of atanh, in one fixed order of
/// operations, so that the bits do not depend on the machine's library. Error below 1e-15.
double fixed_log(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, 8);
  auto exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL;
  double m;
  std::memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  double s = (m - 1.0) / (m + 1.0), square = s * s, sum = 0;
  for (int k = 23; k >= 1; k -= 2)
    sum = sum * square + 1.0 / k;
  return exponent * 0.69314718055994531 + 2.0 * s * sum;
}

} // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t a = std::uint64_t{0xD2511F53} * c[0], b = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

double uniform_at(std::uint64_t seed, std::uint64_t random_key, std::uint32_t position) {
  auto r = philox(
      {position, 0, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      {static_cast<std::uint32_t>(random_key), static_cast<std::uint32_t>(random_key >> 32)});
  std::uint64_t bits = (std::uint64_t{r[0]} << 32) | r[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

sampler::sampler(std::uint32_t vocabulary)
  : vocabulary_(vocabulary), weights_(round_up_lanes(vocabulary)),
    scaled_(round_up_lanes(vocabulary)), order_(vocabulary) {}

result<double> sampler::log_sum(const float* logits, float* top) {
  *top = kernels().max_row(logits, vocabulary_);
  kernels().exp_row(logits, vocabulary_, *top, weights_.data());
  double sum = 0;
  for (std::uint32_t i = 0; i < vocabulary_; ++i)
    sum += std::isfinite(logits[i]) ? static_cast<double>(weights_[i]) : std::nan("");
  if (!std::isfinite(sum))
    return fail(error_code::internal, "a logit is not finite; the weights are damaged");
  return fixed_log(sum);
}

result<float> sampler::logprob(const float* logits, token_id token) {
  float top = 0;
  auto log = log_sum(logits, &top);
  if (!log) return tl::unexpected(log.error());
  return static_cast<float>(static_cast<double>(logits[token]) - static_cast<double>(top) - *log);
}

result<sampled_token> sampler::sample(const float* logits, const sampling_spec& spec,
                                      std::uint64_t random_key, std::uint32_t position) {
  sampled_token chosen;
  if (spec.temperature == 0.0F)
    chosen.token = static_cast<token_id>(std::max_element(logits, logits + vocabulary_) - logits);
  else
    chosen.token = draw(logits, spec, uniform_at(spec.seed, random_key, position));
  auto logprob = this->logprob(logits, chosen.token);
  if (!logprob) return tl::unexpected(logprob.error());
  chosen.logprob = *logprob;
  return chosen;
}

token_id sampler::draw(const float* logits, const sampling_spec& spec, double uniform) {
  for (std::uint32_t i = 0; i < vocabulary_; ++i)
    scaled_[i] = logits[i] / spec.temperature;
  kernels().exp_row(scaled_.data(), vocabulary_, kernels().max_row(scaled_.data(), vocabulary_),
                    weights_.data());
  std::iota(order_.begin(), order_.end(), 0);
  std::size_t kept = vocabulary_;
  bool truncated = spec.top_p < 1.0F || (spec.top_k > 0 && spec.top_k < vocabulary_);
  if (truncated) {
    if (spec.top_k > 0) kept = std::min<std::size_t>(kept, spec.top_k);
    auto before = [&](token_id a, token_id b) {
      return scaled_[a] > scaled_[b] || (scaled_[a] == scaled_[b] && a < b);
    };
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept),
                      order_.end(), before);
  }
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i)
    total += static_cast<double>(weights_[order_[i]]);
  if (spec.top_p < 1.0F) {
    double reached = 0, goal = static_cast<double>(spec.top_p) * total;
    std::size_t i = 0;
    while (i < kept && (i == 0 || reached < goal))
      reached += static_cast<double>(weights_[order_[i++]]);
    kept = i;
    total = reached;
  }
  double goal = uniform * total, reached = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    reached += static_cast<double>(weights_[order_[i]]);
    if (reached > goal) return order_[i];
  }
  return order_[kept - 1];
}

} // namespace adafloor
