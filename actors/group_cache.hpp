#pragma once
// The communicators of one rank. Those of planned residency are made once and kept, so that a
// transition takes what is there; any other is made for its epoch and goes with it.
#include "gpu/communicator.hpp"

#include <map>
#include <memory>
#include <vector>

namespace adafloor {

/// Belongs to the engine's thread.
class group_cache {
public:
  /// `fabric` outlives the cache and every communicator.
  explicit group_cache(collective_fabric& fabric) : fabric_(fabric) {}

  /// Makes the group of these members now and keeps it. Nothing happens for one that is kept
  /// already. Errors: those of make_group.
  result<void> keep(epoch_id epoch, const std::vector<rank_id>& members);

  /// The communicator of the group for `epoch`. Errors: those of make_group.
  result<std::shared_ptr<communicator>> take(epoch_id epoch, const std::vector<rank_id>& members);

  std::size_t kept() const { return kept_.size(); }
  std::size_t made() const { return made_; } ///< communicators, in all

private:
  result<std::shared_ptr<communicator>> make(epoch_id epoch, const std::vector<rank_id>& members);

  collective_fabric& fabric_;
  std::map<std::vector<rank_id>, std::shared_ptr<communicator>> kept_;
  std::size_t made_ = 0;
};

} // namespace adafloor
