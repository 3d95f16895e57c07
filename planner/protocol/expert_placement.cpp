#include "planner/protocol/expert_placement.hpp"

#include <algorithm>
#include <map>

namespace adafloor {

std::vector<rank_id> home_owners(std::uint32_t experts, std::uint32_t world_size) {
  std::vector<rank_id> owners;
  owners.reserve(experts);
  for (std::uint64_t rank = 0; rank < world_size; ++rank)
    for (auto e = rank * experts / world_size; e < (rank + 1) * experts / world_size; ++e)
      owners.emplace_back(static_cast<std::uint32_t>(rank));
  return owners;
}

std::vector<rank_id> contract_owners(const std::vector<rank_id>& owners,
                                     const std::vector<rank_id>& survivors) {
  std::map<rank_id, std::uint32_t> load;
  for (auto rank : survivors)
    load[rank] = experts_of(owners, rank);
  auto out = owners;
  for (auto& owner : out) {
    if (load.count(owner)) continue;
    auto least = std::min_element(load.begin(), load.end(),
                                  [](const auto& a, const auto& b) { return a.second < b.second; });
    owner = least->first;
    ++least->second;
  }
  return out;
}

result<void> check_map(const std::vector<rank_id>& owners, const std::vector<rank_id>& members) {
  if (owners.empty()) return bad_input("expert map: no experts");
  for (std::size_t e = 0; e < owners.size(); ++e)
    if (std::find(members.begin(), members.end(), owners[e]) == members.end())
      return bad_input("expert map: expert " + std::to_string(e) + " is given to rank "
                       + std::to_string(owners[e].value) + ", which is not in the group");
  return {};
}

std::uint32_t experts_of(const std::vector<rank_id>& owners, rank_id rank) {
  return static_cast<std::uint32_t>(std::count(owners.begin(), owners.end(), rank));
}

} // namespace adafloor
