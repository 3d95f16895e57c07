#pragma once
// What an exit is worth: a dynamic programme over (time, group size) for one future.
#include "planner/plan/cost_model.hpp"

#include <vector>

namespace adafloor {

/// One future of the step, seen from now, on a grid of moments. Index k = moment; the last moment
/// is the end of the step, after which nothing costs.
struct exit_future {
  std::vector<int> sizes;                ///< group sizes, descending; sizes[0] is the present group
  std::vector<std::vector<double>> cost; ///< cost[s][k]: objective of running size s from k to k+1
  std::vector<std::size_t> earliest;     ///< first moment at which size s is possible; npos: never
};

/// What each target size is worth, in the objective: leaving for sizes[s] now, and staying until
/// sizes[s] is possible and leaving for it then (at moment 1 or later). Entry 0 of `wait` is
/// staying to the end. After the first exit the future is known and used at its best. Infinite
/// where a size is not possible in time. O(moments * sizes^2).
struct exit_worth {
  std::vector<double> now, wait;
};

exit_worth exit_values(const exit_future& future, const cost_model& costs, double lambda,
                       int world);

} // namespace adafloor
