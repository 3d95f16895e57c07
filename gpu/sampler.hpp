#pragma once
// Choosing tokens. The random number of a position is a function of (seed, random_key, position)
// alone, so neither batch nor placement nor restarts change it.
#include "gpu/engine.hpp"

#include <array>
#include <vector>

namespace adafloor {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

/// In [0, 1): 53 bits of philox with key random_key and counter (position, seed).
double uniform_at(std::uint64_t seed, std::uint64_t random_key, std::uint32_t position);

struct sampled_token {
  token_id token = 0;
  float logprob = 0; ///< under the model's distribution: temperature 1, nothing truncated
};

/// Works on rows of `vocabulary` logits with the padding of round_up_lanes behind them.
class sampler {
public:
  explicit sampler(std::uint32_t vocabulary);

  /// Temperature first, then top_k, then top_p (the smallest set of most probable tokens whose
  /// probability reaches top_p; equal logits in order of id). `position`: of the new token.
  /// Errors: internal when a logit is not finite.
  result<sampled_token> sample(const float* logits, const sampling_spec& spec,
                               std::uint64_t random_key, std::uint32_t position);
  /// ln probability of `token`. Errors: internal when a logit is not finite.
  result<float> logprob(const float* logits, token_id token);

private:
  result<double> log_sum(const float* logits, float* top);
  token_id draw(const float* logits, const sampling_spec& spec, double uniform);

  std::uint32_t vocabulary_;
  std::vector<float> weights_, scaled_;
  std::vector<token_id> order_;
};

} // namespace adafloor
