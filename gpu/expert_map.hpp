#pragma once
// Which rank serves which expert. One map per epoch, the same for all layers of the model.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <vector>

namespace adafloor {

/// `owner_of[e]` is the rank that serves expert e in every MoE layer.
struct expert_map {
  std::vector<rank_id> owner_of;

  friend bool operator==(const expert_map& a, const expert_map& b) {
    return a.owner_of == b.owner_of;
  }
  friend bool operator!=(const expert_map& a, const expert_map& b) { return !(a == b); }
};

/// Contiguous blocks: expert e belongs to rank e * world_size / experts. Errors: bad_input when
/// `world_size` is 0 or does not divide `experts`. A model without experts has the empty map.
result<expert_map> home_expert_map(std::uint32_t experts, std::uint32_t world_size);

/// Digest of the map; equal on every machine.
std::uint64_t expert_map_hash(const expert_map& map);

/// Experts of `rank` in ascending order.
std::vector<std::uint32_t> experts_of(const expert_map& map, rank_id rank);

/// Every expert has exactly one owner among `members` (ascending). Errors: bad_input naming the
/// first expert whose owner is no member, or the wrong number of experts.
result<void> expert_coverage(const expert_map& map, std::uint32_t experts,
                             const std::vector<rank_id>& members);

} // namespace adafloor
