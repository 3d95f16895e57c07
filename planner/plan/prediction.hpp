#pragma once
// What the next epoch's lengths are expected to be, from the epochs before it.
#include "planner/plan/history.hpp"

namespace adafloor {

struct prediction_options {
  double weight_old = 0.3; ///< moving average of the prompt tail: new = 0.3 * old + 0.7 * observed
  double weight_observed = 0.7;
  std::int32_t max_response_length = 16384; ///< tokens; predictions never exceed it
  std::int32_t responses_per_prompt = 16;   ///< for prompts without any history
};

/// One prompt as the planner sees it.
struct predicted_prompt {
  std::string id;
  std::int32_t prompt_tokens = 0;
  double tail = 0;                   ///< predicted longest response, tokens
  std::vector<std::int32_t> lengths; ///< latest observed multiset, descending, tokens
  std::vector<std::int32_t> pool;    ///< all observed lengths, descending: the prior of survival
  bool known = false;                ///< false: no history, pooled distribution
};

using epoch_list = std::vector<std::vector<prompt_lengths>>;

/// Predictions for `workload` (only id, prompt_tokens and order are read) from `past`, oldest epoch
/// first. One epoch: tail = its longest response; more: moving average (planner.md section 1). The
/// multiset for KV estimates is the latest observed one. A prompt without history takes evenly
/// spaced quantiles of all past lengths, or the limit if there are none, with known = false.
std::vector<predicted_prompt> predict(const epoch_list& past,
                                      const std::vector<prompt_lengths>& workload,
                                      const prediction_options& options);

} // namespace adafloor
