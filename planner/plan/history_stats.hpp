#pragma once
// What a history says about its epochs, and how well one epoch predicts the next.
#include "planner/plan/guard.hpp"

namespace adafloor {

struct epoch_stats {
  std::string epoch;
  std::size_t prompts = 0, responses = 0, truncated = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, longest = 0; ///< tokens
  double tail_over_mean = 0; ///< mean over prompts of longest over mean response
};

/// From one epoch to the next, over the prompts that both have.
struct epoch_link {
  std::size_t shared = 0;
  double rank_correlation_means = 0, rank_correlation_tails = 0; ///< Spearman
  double ratio_q95 = 0;                                          ///< realised over predicted tail
  double mean_change = 0; ///< share by which the mean length of shared prompts changed
};

struct history_stats {
  std::vector<epoch_stats> epochs;
  std::vector<epoch_link> links; ///< links[i]: from epochs[i] to epochs[i + 1]
  guard_fit guard;
};

history_stats describe(const length_history& history, const prediction_options& prediction,
                       const guard_options& guard);

/// Spearman's rank correlation with mean ranks for ties; 0 for fewer than two pairs or no variance.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

} // namespace adafloor
