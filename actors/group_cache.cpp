#include "actors/group_cache.hpp"

namespace adafloor {

result<std::shared_ptr<communicator>> group_cache::make(epoch_id epoch,
                                                        const std::vector<rank_id>& members) {
  auto group = fabric_.make_group(epoch, members);
  if (!group) return tl::unexpected(group.error());
  ++made_;
  return std::shared_ptr<communicator>(std::move(*group));
}

result<void> group_cache::keep(epoch_id epoch, const std::vector<rank_id>& members) {
  if (kept_.count(members) > 0) return {};
  auto group = make(epoch, members);
  if (!group) return tl::unexpected(group.error());
  kept_[members] = std::move(*group);
  return {};
}

result<std::shared_ptr<communicator>> group_cache::take(epoch_id epoch,
                                                        const std::vector<rank_id>& members) {
  const auto found = kept_.find(members);
  if (found == kept_.end()) return make(epoch, members);
  auto& group = found->second;
  if (group->epoch() == epoch) return group;
  if (auto entered = group->enter(epoch); !entered) return tl::unexpected(entered.error());
  return group;
}

} // namespace adafloor
