#pragma once
// Conversation: the policy is updated between rollouts (protocols.md section 6).
#include "messages/ids.hpp"

namespace adafloor {

/// trainer -> planner -> rank -> engine: load policy `version` from the folder `source`. Refused
/// while a rollout or another update runs. Resent until answered.
struct update_weights {
  weights_id version;
  std::string source;
  FIELDS(update_weights, version, source)
};

/// engine -> rank -> planner -> trainer: `version` is loaded and verified.
struct weights_updated {
  weights_id version;
  std::uint32_t tensors = 0;
  std::uint64_t digest = 0; ///< over the names and bytes of the dense tensors, equal on all ranks
  FIELDS(weights_updated, version, tensors, digest)
};

/// engine -> rank -> planner -> trainer: the old version stays.
struct weights_refused {
  weights_id version;
  std::string text;
  FIELDS(weights_refused, version, text)
};

} // namespace adafloor
