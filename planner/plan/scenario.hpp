#pragma once
// Futures of a step: final lengths resampled from l > t.
#include "planner/plan/exits.hpp"

namespace adafloor {

/// Lengths that live requests may still reach. Built once per step. A response is drawn from its
/// prompt's own history above t, or, with the weight of one more sample, is a new longest one: then
/// it exceeds the old maximum by a factor drawn from all prompts' ratios of longest to second
/// longest (leave-one-out: what the longest response was when it was new). So n past samples leave
/// 1/(n+1) of the mass beyond their maximum, and the tail is as heavy as the workload's.
class survival_model {
public:
  survival_model(const std::vector<predicted_prompt>& predicted,
                 const std::vector<std::size_t>& prompts);

  /// A final length above `tokens` for a request of `prompt`, for u in [0, 1). At most `limit`.
  double draw(std::size_t prompt, double tokens, double limit, double u) const;

private:
  std::vector<std::vector<std::int32_t>> own_; ///< by workload index, ascending
  std::vector<double> overshoots_;             ///< ascending, each >= 1
};

/// Final response tokens of each live request in `count` scenarios, in the order of `live`. Draws
/// of earlier calls are kept in `memory` where the request has not outlived them.
std::vector<std::vector<double>> sample_finals(exit_memory& memory, const survival_model& model,
                                               const std::vector<exit_request>& live, double limit,
                                               std::uint64_t seed, int count);

} // namespace adafloor
