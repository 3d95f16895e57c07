#include "planner/plan/exit_value.hpp"

#include <algorithm>
#include <limits>

namespace adafloor {

namespace {

// Objective of one second during which `group` ranks are held: lambda * W - (W - group).
double weight(double lambda, int world, int group) {
  return (lambda - 1) * world + group;
}

} // namespace

exit_worth exit_values(const exit_future& future, const cost_model& costs, double lambda,
                       int world) {
  constexpr double never = std::numeric_limits<double>::infinity();
  auto sizes = future.sizes.size();
  auto moments = sizes == 0 ? 0 : future.cost[0].size();
  std::vector<double> pause(sizes * sizes, never);
  for (std::size_t from = 0; from < sizes; ++from)
    for (std::size_t to = from + 1; to < sizes; ++to)
      pause[from * sizes + to] =
          weight(lambda, world, future.sizes[from])
          * (exit_seconds(costs, future.sizes[from], future.sizes[to]) + costs.lease_start_seconds);
  // Leaving the full world for the first time makes a restore necessary at the end.
  if (sizes > 0 && future.sizes[0] == world)
    for (std::size_t to = 1; to < sizes; ++to)
      pause[to] += lambda * world * std::max(0.0, costs.fixed_shrunk_seconds - costs.fixed_seconds);
  // best[k * sizes + s]: least objective from moment k on with size s.
  std::vector<double> best((moments + 1) * sizes, 0);
  for (std::size_t k = moments; k-- > 0;)
    for (std::size_t s = sizes; s-- > 0;) {
      auto& value = best[k * sizes + s];
      value =
          s == 0 || future.earliest[s] <= k ? future.cost[s][k] + best[(k + 1) * sizes + s] : never;
      for (std::size_t to = s + 1; to < sizes; ++to)
        if (future.earliest[to] <= k)
          value = std::min(value, pause[s * sizes + to] + best[k * sizes + to]);
    }
  exit_worth out{std::vector<double>(sizes, never), std::vector<double>(sizes, never)};
  double stayed = 0;
  for (std::size_t k = 0; k < moments; ++k) {
    for (std::size_t to = 1; to < sizes; ++to) {
      if (future.earliest[to] > k) continue;
      double value = stayed + pause[to] + best[k * sizes + to];
      if (k == 0) out.now[to] = value;
      if (k == std::max<std::size_t>(1, future.earliest[to])) out.wait[to] = value;
    }
    stayed += future.cost[0][k];
  }
  if (sizes > 0) out.wait[0] = stayed;
  return out;
}

} // namespace adafloor
