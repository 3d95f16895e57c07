#pragma once
// TailGuard: a response cap per step, and how far predictions were off in the past.
#include "planner/plan/prediction.hpp"

namespace adafloor {

struct guard_options {
  double quantile = 0.95;
  double default_ratio = 1.20; ///< with fewer than two epochs
  int transitions = 3;         ///< newest pairs of adjacent epochs in the fit
  std::int32_t step_tokens = 512;
  std::int32_t least_cap = 4096;
};

struct guard_fit {
  double ratio = 1.20; ///< realised over predicted tail, the quantile, >= 1
  double coverage = 0; ///< share of the newest epoch's prompts inside a fit made without it
  bool has_coverage = false;
  int transitions = 0;  ///< pairs of epochs in the fit
  bool widened = false; ///< the newest epoch left the fit's coverage, so its own quantile counts
};

/// Planner.md section 1: for each pair of adjacent past epochs every prompt's tail is predicted
/// from all earlier epochs; the ratio is the quantile of max(1, realised / predicted) over the last
/// transitions. Drift: if coverage on the newest epoch is below the quantile by more than two
/// standard errors, the ratio is widened to the newest epoch's own quantile.
guard_fit fit_guard(const epoch_list& past, const prediction_options& prediction,
                    const guard_options& options);

/// Cap of one step in tokens, clip(ceil_to(512, ratio * exit), 4096, Lmax); 0 where it is not below
/// Lmax and so does nothing.
std::int32_t guard_cap(double ratio, double step_exit, std::int32_t max_response_length,
                       const guard_options& options);

/// The smallest value that at least a share `q` of `values` does not exceed; 1 for no values.
double upper_quantile(std::vector<double> values, double q);

} // namespace adafloor
