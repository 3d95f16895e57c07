#pragma once
// A cost model from what a run measured.
#include "planner/plan/cost_model.hpp"

namespace adafloor {

/// One decode step of one group.
struct step_sample {
  int group_size = 0;
  double active = 0; ///< ranks with live requests
  double max_kv = 0; ///< resident KV tokens of the fullest rank
  double seconds = 0;
};

/// An exit or a restore that was measured.
struct exit_sample {
  int from = 0, to = 0; ///< to > from: a restore
  double pause_seconds = 0;
};

struct law_fit {
  decode_law law;
  std::size_t samples = 0;
  double r_squared = 0;
  double median_error = 0; ///< of |predicted - measured| / measured
};

/// Least squares per group size of ms on active ranks and max_kv. A term whose regressor does not
/// vary, or whose coefficient would be negative, is left out. Sizes with fewer than `samples_min`
/// steps are left out. Ascending by size.
std::vector<law_fit> fit_laws(const std::vector<step_sample>& samples, std::size_t samples_min = 8);

/// Laws, median exit pauses per (from, to) and the median restore, as a cost model. Errors:
/// bad_input if no size has enough steps.
result<cost_model> calibrate(const std::vector<step_sample>& steps,
                             const std::vector<exit_sample>& exits, const std::string& name);

} // namespace adafloor
