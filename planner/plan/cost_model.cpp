#include "planner/plan/cost_model.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {
namespace {

double table_ms(const decode_table& table, double tokens) {
  const auto& x = table.tokens;
  auto upper = std::upper_bound(x.begin(), x.end(), tokens);
  if (upper == x.begin()) return table.ms.front();
  if (upper == x.end()) return table.ms.back() * tokens / x.back(); // beyond: in proportion
  auto i = static_cast<std::size_t>(upper - x.begin());
  double share = (tokens - x[i - 1]) / (x[i] - x[i - 1]);
  return table.ms[i - 1] + share * (table.ms[i] - table.ms[i - 1]);
}

step_cost at_law(const cost_model& costs, const decode_law& law, int active, int batch, int live) {
  step_cost out{law.base_ms + law.per_active_ms * active + law.per_batch_ms * batch,
                law.per_max_kv_ms};
  for (const auto& table : costs.tables)
    if (table.ranks == law.ranks) out.constant_ms += table_ms(table, live);
  return out;
}

const exit_cost* listed(const cost_model& costs, int from, int to) {
  for (const auto& exit : costs.exits)
    if (exit.from == from && exit.to == to) return &exit;
  return nullptr;
}

// A stage of at most one halving that is not listed: the dearest listed stage that it touches.
double stage_seconds(const cost_model& costs, int from, int to) {
  double most = -1;
  for (const auto& exit : costs.exits)
    if (exit.from <= 2 * exit.to && exit.to < from && to < exit.from)
      most = std::max(most, exit.seconds);
  return most >= 0 ? most : costs.default_exit_seconds;
}

} // namespace

step_cost decode_cost(const cost_model& costs, int ranks, int active, int batch, int live) {
  const decode_law *below = nullptr, *above = nullptr;
  for (const auto& law : costs.laws) {
    if (law.ranks <= ranks && (below == nullptr || law.ranks > below->ranks)) below = &law;
    if (law.ranks >= ranks && (above == nullptr || law.ranks < above->ranks)) above = &law;
  }
  if (below == nullptr && above == nullptr) return {};
  if (below == nullptr) below = above;
  if (above == nullptr) above = below;
  auto low = at_law(costs, *below, active, batch, live);
  if (above->ranks == below->ranks) return low;
  auto high = at_law(costs, *above, active, batch, live);
  double share = std::log2(static_cast<double>(ranks) / below->ranks)
                 / std::log2(static_cast<double>(above->ranks) / below->ranks);
  return {low.constant_ms + share * (high.constant_ms - low.constant_ms),
          low.per_max_kv_ms + share * (high.per_max_kv_ms - low.per_max_kv_ms)};
}

double exit_seconds(const cost_model& costs, int from, int to) {
  double sum = 0;
  while (from > to) {
    if (const auto* direct = listed(costs, from, to)) return sum + direct->seconds;
    int next = std::max(to, (from + 1) / 2);
    const auto* stage = listed(costs, from, next);
    sum += stage != nullptr ? stage->seconds : stage_seconds(costs, from, next);
    from = next;
  }
  return sum;
}

double copy_seconds(const cost_model& costs, double tokens) {
  if (costs.copy_bytes_per_second <= 0) return 0;
  return tokens * costs.kv_bytes_per_token / costs.copy_bytes_per_second;
}

} // namespace adafloor
