#pragma once
// Conversation: the policy is updated between rollouts (protocols.md section 6).
#include "messages/ids.hpp"

namespace adafloor {

/// trainer -> planner -> rank -> engine: load policy `version` from the folder `source`. Refused
/// while a rollout or another update runs. Resent until answered. `tensors` and `digest`: what all
/// ranks together must hold afterwards, every tensor once; tensors 0: not known, then the ranks are
/// only compared with each other.
struct update_weights {
  weights_id version;
  std::string source;
  std::uint32_t tensors = 0;
  std::uint64_t digest = 0; ///< sum of the tensors' digests, modulo 2^64
  FIELDS(update_weights, version, source, tensors, digest)
};

/// engine -> rank -> planner: `version` is loaded. planner -> trainer: it is verified, too: the
/// dense tensors are equal on all ranks, and with the experts of all ranks they are what was asked
/// for. To the trainer the expert figures are those of all ranks together.
struct weights_updated {
  weights_id version;
  std::uint32_t tensors = 0;        ///< dense ones
  std::uint64_t digest = 0;         ///< sum of their digests, each over name, type, shape and bytes
  std::uint32_t expert_tensors = 0; ///< of the experts that this rank owns
  std::uint64_t expert_digest = 0;  ///< likewise
  FIELDS(weights_updated, version, tensors, digest, expert_tensors, expert_digest)
};

/// engine -> rank -> planner -> trainer: the old version stays.
struct weights_refused {
  weights_id version;
  std::string text;
  FIELDS(weights_refused, version, text)
};

} // namespace adafloor
