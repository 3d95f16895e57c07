#include "gpu/sampler.hpp"

#include "gpu/block.hpp"
#include "gpu/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace adafloor {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c,
                                    std::array<std::uint32_t, 2> key) {
  const auto r = philox_body({{c[0], c[1], c[2], c[3]}}, key[0], key[1]);
  return {r.word[0], r.word[1], r.word[2], r.word[3]};
}

double uniform_at(std::uint64_t seed, std::uint64_t random_key, std::uint32_t position) {
  return uniform_body(seed, random_key, position);
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
  return log_body(sum);
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
