#pragma once
// Composite ids that cross the wire, and enums with their largest value (the decoder range-checks).
#include "messages/reflect.hpp"
#include "messages/types.hpp"

#include <string>
#include <vector>

namespace adafloor {

/// A role that can receive messages within a process.
enum class role_kind : std::uint8_t {
  rank = 1,       ///< the rank's protocol machine
  planner = 2,    ///< rollout and transition coordinator
  broker = 3,     ///< leases and the auxiliary work queue
  membership = 4, ///< failure detector
  sidecar = 5,    ///< lease holder on a rank
  engine = 6,     ///< the thread that decodes; local only
  recorder = 7,   ///< durable result files; local only
  trainer = 8,    ///< who asked for the rollout; local only
  worker = 9,     ///< does a sidecar's auxiliary work; local only
};
constexpr role_kind enum_max(role_kind) {
  return role_kind::worker;
}
const char* name_of(role_kind);

/// Where a message goes or comes from.
struct address {
  rank_id rank;
  role_kind role = role_kind::rank;
  FIELDS(address, rank, role)
};

/// Stands in every envelope, collective frame and bulk chunk (protocols.md section 1).
struct fence {
  term_id term;
  epoch_id epoch;
  weights_id weights;
  FIELDS(fence, term, epoch, weights)
};

/// Names a lease for ever; the fencing token of the sidecar's outputs.
struct lease_id {
  epoch_id epoch; ///< of the EP group when the lease was granted
  std::uint32_t counter = 0;
  FIELDS(lease_id, epoch, counter)
  friend bool operator<(const lease_id& a, const lease_id& b) { return a.fields() < b.fields(); }
};

} // namespace adafloor
