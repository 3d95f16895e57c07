#pragma once
// The expert map of an epoch: owners[e] is the rank that serves expert e, in every layer.
#include "messages/types.hpp"

#include <vector>

namespace adafloor {

/// FNV-1a (64 bit) over (expert, owner) pairs in ascending expert order. Planner and engines
/// compare maps by it.
constexpr std::uint64_t expert_map_hash_begin = 14695981039346656037ull;
constexpr std::uint64_t expert_map_hash_add(std::uint64_t hash, std::uint32_t expert,
                                            rank_id owner) {
  for (const std::uint32_t word : {expert, owner.value})
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ ((word >> shift) & 0xffu)) * 1099511628211ull;
  return hash;
}
inline std::uint64_t expert_map_hash(const std::vector<rank_id>& owners) {
  std::uint64_t hash = expert_map_hash_begin;
  for (std::uint32_t expert = 0; expert < owners.size(); ++expert)
    hash = expert_map_hash_add(hash, expert, owners[expert]);
  return hash;
}

} // namespace adafloor
