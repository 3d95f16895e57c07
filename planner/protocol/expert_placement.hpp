#pragma once
// Which rank serves which expert. Pure functions; owners[e] is the rank that serves expert e.
#include "messages/expert_map.hpp"
#include "messages/result.hpp"

#include <vector>

namespace adafloor {

/// The placement of the full world: contiguous blocks, rank r serves experts
/// [r*E/W, (r+1)*E/W), sizes differ by at most one. Needs world_size >= 1.
std::vector<rank_id> home_owners(std::uint32_t experts, std::uint32_t world_size);

/// The map of a smaller group: survivors keep what they serve; the leavers' experts, in ascending
/// order, go one by one to the survivor with the fewest (ties: the lowest rank). No survivor gets
/// an expert that would take it beyond ceil(E/g) unless it already served more. `survivors`
/// ascending, not empty.
std::vector<rank_id> contract_owners(const std::vector<rank_id>& owners,
                                     const std::vector<rank_id>& survivors);

/// Every expert has exactly one owner, and that is a member. Errors: bad_input naming the expert.
result<void> check_map(const std::vector<rank_id>& owners, const std::vector<rank_id>& members);

/// Number of experts that `owners` gives to `rank`.
std::uint32_t experts_of(const std::vector<rank_id>& owners, rank_id rank);

} // namespace adafloor
