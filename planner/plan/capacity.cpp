#include "planner/plan/capacity.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace adafloor {

result<std::vector<group_capacity>> capacities(const memory_model& memory,
                                               const std::vector<int>& sizes, int resident_groups) {
  if (memory.kv_bytes_per_token <= 0)
    return bad_input("memory model: kv_bytes_per_token is "
                     + std::to_string(memory.kv_bytes_per_token) + "; it must be above 0");
  std::vector<group_capacity> table;
  for (int size : sizes) {
    if (size < 1)
      return bad_input("memory model: group size " + std::to_string(size) + " is below 1");
    double slots = std::ceil(static_cast<double>(memory.experts) / size);
    double room = memory.device_bytes - memory.dense_weight_bytes
                  - slots * memory.layers * memory.expert_bytes - memory.workspace_bytes
                  - resident_groups * memory.resident_group_bytes;
    if (room < memory.kv_bytes_per_token)
      return bad_input("memory model: a group of " + std::to_string(size) + " ranks needs "
                       + std::to_string(std::llround(-room / 1e6))
                       + " MB more per rank than the device has; raise the floor");
    table.push_back({size, static_cast<std::int64_t>(room / memory.kv_bytes_per_token)});
  }
  return table;
}

std::int64_t capacity_at(const std::vector<group_capacity>& table, int ranks, int experts) {
  if (table.empty()) return std::numeric_limits<std::int64_t>::max() / 4096;
  const group_capacity *below = nullptr, *above = nullptr;
  for (const auto& entry : table) {
    if (entry.ranks <= ranks && (below == nullptr || entry.ranks > below->ranks)) below = &entry;
    if (entry.ranks >= ranks && (above == nullptr || entry.ranks < above->ranks)) above = &entry;
  }
  if (below == nullptr) return 0;
  if (above == nullptr || above == below) return below->tokens;
  auto slots = [&](int g) { return (experts + g - 1) / g; };
  double span = slots(below->ranks) - slots(above->ranks);
  if (span <= 0) return std::min(below->tokens, above->tokens);
  double share = (slots(below->ranks) - slots(ranks)) / span;
  return below->tokens
         + static_cast<std::int64_t>(share * static_cast<double>(above->tokens - below->tokens));
}

} // namespace adafloor
