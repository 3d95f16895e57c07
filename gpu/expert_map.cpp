#include "gpu/expert_map.hpp"

#include "gpu/digest.hpp"

#include <algorithm>
#include <string>

namespace adafloor {

result<expert_map> home_expert_map(std::uint32_t experts, std::uint32_t world_size) {
  if (world_size == 0 || experts % world_size != 0)
    return bad_input("expert map: " + std::to_string(world_size) + " ranks do not divide "
                     + std::to_string(experts) + " experts; choose a divisor");
  expert_map map;
  map.owner_of.reserve(experts);
  for (std::uint64_t e = 0; e < experts; ++e)
    map.owner_of.emplace_back(static_cast<std::uint32_t>(e * world_size / experts));
  return map;
}

std::uint64_t expert_map_hash(const expert_map& map) {
  std::vector<std::uint32_t> owners;
  owners.reserve(map.owner_of.size());
  for (auto owner : map.owner_of)
    owners.push_back(owner.value);
  return digest64(owners.data(), owners.size() * sizeof(std::uint32_t), owners.size());
}

std::vector<std::uint32_t> experts_of(const expert_map& map, rank_id rank) {
  std::vector<std::uint32_t> experts;
  for (std::uint32_t e = 0; e < map.owner_of.size(); ++e)
    if (map.owner_of[e] == rank) experts.push_back(e);
  return experts;
}

result<void> expert_coverage(const expert_map& map, std::uint32_t experts,
                             const std::vector<rank_id>& members) {
  if (map.owner_of.size() != experts)
    return bad_input("expert map: has " + std::to_string(map.owner_of.size())
                     + " experts, the model has " + std::to_string(experts));
  for (std::uint32_t e = 0; e < experts; ++e)
    if (!std::binary_search(members.begin(), members.end(), map.owner_of[e]))
      return bad_input("expert map: expert " + std::to_string(e) + " belongs to rank "
                       + std::to_string(map.owner_of[e].value)
                       + ", which is no member of the group");
  return {};
}

} // namespace adafloor
