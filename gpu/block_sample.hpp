#pragma once
// Choosing tokens from whole rows of logits, as gpu/sampler does on the CPU: the same tokens and
// the same bits of their log-probabilities. Rows with top-k or top-p are left to that one.
#include "gpu/block.hpp"

namespace adafloor {

struct sample_row {
  float temperature = 0; ///< 0: the highest logit
  std::uint32_t position = 0;
  std::uint64_t seed = 0, random_key = 0;
};

struct sampled_row {
  std::uint32_t token = 0;
  float logprob = 0; ///< under the model's distribution
  float top = 0;     ///< the highest logit
  float unused = 0;
  double log_sum = 0; ///< ln of the sum of exp(logit - top); NaN: a logit is not finite
};

struct sample_kernel {
  const float* logits = nullptr; ///< [rows][ld]
  std::uint32_t rows = 0, vocabulary = 0, ld = 0;
  const sample_row* how = nullptr; ///< by row
  sampled_row* out = nullptr;

  static constexpr const char* name = "sample";
  static constexpr std::uint32_t threads = 256, tile = 2048;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const {
    return tile * sizeof(float) + threads * 8 + sizeof(progress) + 64;
  }
  std::uint64_t bytes() const { return 12ULL * rows * vocabulary; }
  std::uint64_t flops() const { return 44ULL * rows * vocabulary; }

  /// What the chain of sums has come to; thread 0 writes it.
  struct progress {
    double sum, goal;
    std::uint32_t token;
    bool found;
  };

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const float* row = logits + std::size_t{b.x} * ld;
    const sample_row& spec = how[b.x];
    float* weights = b.template shared<float>(tile);
    float* best = b.template shared<float>(threads);
    auto* which = b.template shared<std::uint32_t>(threads);
    auto* state = b.template shared<progress>(1);
    highest(b, row, best, which);
    const float top = best[0];
    const std::uint32_t greedy = which[0];
    b.each([&](std::uint32_t t) {
      if (t == 0) *state = {0, INFINITY, 0, false};
    });
    chain(b, row, 1.0F, top, weights, state);
    auto* log_sum = b.template shared<double>(1);
    b.each([&](std::uint32_t t) {
      const double sum = state->sum;
      if (t == 0) *log_sum = sum - sum == 0 ? log_body(sum) : static_cast<double>(NAN);
    });
    if (spec.temperature != 0.0F) draw(b, row, spec, top / spec.temperature, weights, state);
    b.each([&](std::uint32_t t) {
      if (t != 0) return;
      const std::uint32_t token = spec.temperature == 0.0F ? greedy : state->token;
      sampled_row r;
      r.token = token;
      r.top = top;
      r.log_sum = *log_sum;
      r.logprob = static_cast<float>(static_cast<double>(row[token]) - static_cast<double>(top)
                                     - r.log_sum);
      out[b.x] = r;
    });
  }

  /// best[0], which[0]: the highest logit, the lowest token among equals.
  template <class Block>
  ADAFLOOR_BODY void highest(Block& b, const float* row, float* best, std::uint32_t* which) const {
    b.each([&](std::uint32_t t) {
      std::uint32_t at = t < vocabulary ? t : 0;
      for (std::uint32_t i = t; i < vocabulary; i += threads)
        if (row[i] > row[at]) at = i;
      best[t] = row[at];
      which[t] = at;
    });
    keep_highest(b, threads, best, which);
  }

  /// Adds exp(logit / temperature - shift) in order of token until the sum exceeds the goal.
  template <class Block>
  ADAFLOOR_BODY void chain(Block& b, const float* row, float temperature, float shift,
                           float* weights, progress* state) const {
    for (std::uint32_t i0 = 0; i0 < vocabulary; i0 += tile) {
      const std::uint32_t here = least(tile, vocabulary - i0);
      b.each([&](std::uint32_t t) {
        for (std::uint32_t i = t; i < here; i += threads) {
          const float logit = row[i0 + i];
          weights[i] = is_finite(logit) ? exp_body(logit / temperature - shift) : NAN;
        }
      });
      b.each([&](std::uint32_t t) {
        if (t != 0) return;
        double sum = state->sum;
        const double goal = state->goal;
        std::uint32_t i = 0;
        for (; i < here && !(sum > goal); ++i)
          sum = sum + static_cast<double>(weights[i]);
        state->sum = sum;
        state->found = sum > goal;
        state->token = i0 + i - 1;
      });
      if (state->found) return;
    }
  }

  template <class Block>
  ADAFLOOR_BODY void draw(Block& b, const float* row, const sample_row& spec, float shift,
                          float* weights, progress* state) const {
    b.each([&](std::uint32_t t) {
      if (t == 0) *state = {0, INFINITY, 0, false};
    });
    chain(b, row, spec.temperature, shift, weights, state);
    b.each([&](std::uint32_t t) {
      const double uniform = uniform_body(spec.seed, spec.random_key, spec.position);
      if (t == 0) *state = {0, uniform * state->sum, 0, false};
    });
    chain(b, row, spec.temperature, shift, weights, state);
  }
};

} // namespace adafloor
