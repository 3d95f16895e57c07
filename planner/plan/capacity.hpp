#pragma once
// How many KV tokens one rank can hold at each size of the EP group.
#include "messages/result.hpp"

#include <cstdint>
#include <vector>

namespace adafloor {

/// KV tokens of one rank while its group has `ranks` members.
struct group_capacity {
  int ranks = 0;
  std::int64_t tokens = 0;
};

/// What one rank's memory is spent on; all figures in bytes unless named otherwise.
struct memory_model {
  double device_bytes = 0;
  double dense_weight_bytes = 0;
  double expert_bytes = 0; ///< one expert of one layer
  double workspace_bytes = 0;
  double resident_group_bytes = 0; ///< one warmed group kept for planned residency
  double kv_bytes_per_token = 0;
  int layers = 0;
  int experts = 0;
};

/// Capacity at each of `sizes` (planner.md section 2): device memory less dense weights, the
/// ceil(E/g) expert slots of every layer, workspace and `resident_groups` kept groups, over the KV
/// bytes of a token. Errors: bad_input if a size leaves no room, naming the size and the shortfall.
result<std::vector<group_capacity>>
capacities(const memory_model& memory, const std::vector<int>& sizes, int resident_groups = 0);

/// Capacity at `ranks` from a table sorted or not: exact where listed, else linear in the expert
/// slots per rank, ceil(experts / ranks), between the neighbours; beyond the ends the end's value,
/// below the smallest size 0. An empty table means no limit.
std::int64_t capacity_at(const std::vector<group_capacity>& table, int ranks, int experts = 128);

} // namespace adafloor
