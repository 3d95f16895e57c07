#pragma once
// Conversation: freed ranks are lent to auxiliary work (protocols.md section 5). The broker speaks
// to the rank, which alone decides whether it may be lent and passes the lease on to its sidecar.
#include "messages/ids.hpp"

namespace adafloor {

/// planner -> broker: `rank` is outside the group of `epoch`, and every member confirmed it.
struct rank_available {
  rank_id rank;
  epoch_id epoch;
  microseconds window{0}; ///< predicted time until the rank is needed again
  FIELDS(rank_available, rank, epoch, window)
};

/// planner -> broker: get every lease back. Answered by `leases_recalled` when that is done.
struct recall_leases {
  rollout_id rollout;
  FIELDS(recall_leases, rollout)
};
struct leases_recalled {
  rollout_id rollout;
  std::vector<rank_id> unreturned; ///< their return could not be verified: never two users
  FIELDS(leases_recalled, rollout, unreturned)
};

/// broker -> rank -> sidecar: run auxiliary work for `duration` from receipt. Resent until
/// answered.
struct lease_grant {
  lease_id lease;
  microseconds duration{0};
  microseconds grace{0};
  std::uint64_t memory_bytes = 0; ///< budget of the auxiliary work on this rank
  FIELDS(lease_grant, lease, duration, grace, memory_bytes)
};
struct lease_accepted {
  lease_id lease;
  FIELDS(lease_accepted, lease)
};
struct lease_denied {
  lease_id lease;
  std::string text;
  FIELDS(lease_denied, lease, text)
};

/// broker -> rank -> sidecar: the lease lasts `duration` from receipt. Lost ones do no harm.
struct lease_renew {
  lease_id lease;
  microseconds duration{0};
  FIELDS(lease_renew, lease, duration)
};

/// broker -> rank -> sidecar: stop within `grace`. Resent until `lease_returned`.
struct lease_revoke {
  lease_id lease;
  microseconds grace{0};
  FIELDS(lease_revoke, lease, grace)
};

/// sidecar -> rank -> broker: nothing of the auxiliary work is left on the rank. Resent until
/// `lease_closed`. A lease that the receiver never heard of is answered with zero units.
struct lease_returned {
  lease_id lease;
  bool forced = false; ///< the work had to be killed
  bool clean = true;   ///< false: process or memory could not be proven gone
  std::uint32_t units_done = 0;
  FIELDS(lease_returned, lease, forced, clean, units_done)
};
struct lease_closed {
  lease_id lease;
  FIELDS(lease_closed, lease)
};

/// One piece of auxiliary work: answer a prompt.
struct work_unit {
  std::uint64_t unit = 0; ///< unique in the queue; results are keyed by it
  std::vector<token_id> prompt;
  std::uint32_t max_tokens = 0;
  FIELDS(work_unit, unit, prompt, max_tokens)
};

/// trainer -> broker: more work for the queue. Units already known are ignored.
struct queue_work {
  std::vector<work_unit> units;
  FIELDS(queue_work, units)
};

/// sidecar -> broker: give me up to `count` units under `lease`. Resent until `work_units`.
struct take_work {
  lease_id lease;
  std::uint32_t batch = 0; ///< number of this request; a repeat gets the same units again
  std::uint32_t count = 0;
  FIELDS(take_work, lease, batch, count)
};
struct work_units {
  lease_id lease;
  std::uint32_t batch = 0;
  std::vector<work_unit> units; ///< empty: the queue has no work now
  FIELDS(work_units, lease, batch, units)
};

/// sidecar -> broker -> recorder: the answer to a unit. Resent until `work_kept`.
struct work_result {
  lease_id lease;
  std::uint64_t unit = 0;
  std::vector<token_id> tokens;
  FIELDS(work_result, lease, unit, tokens)
};

/// recorder -> broker -> sidecar: the result is durable, once.
struct work_kept {
  lease_id lease;
  std::uint64_t unit = 0;
  FIELDS(work_kept, lease, unit)
};

/// sidecar machine -> its worker (local): run one unit; the worker answers with `work_result`.
struct run_unit {
  lease_id lease;
  work_unit work;
  FIELDS(run_unit, lease, work)
};

/// sidecar machine -> its worker (local): stop now and free everything; answered by
/// `worker_stopped`. `kill`: grace is over.
struct stop_worker {
  lease_id lease;
  bool kill = false;
  FIELDS(stop_worker, lease, kill)
};
struct worker_stopped {
  lease_id lease;
  bool forced = false;
  bool clean = true;
  FIELDS(worker_stopped, lease, forced, clean)
};

/// broker -> trainer: for the report.
struct lease_record {
  lease_id lease;
  rank_id rank;
  microseconds granted_at{0};
  microseconds revoked_at{0}; ///< zero if it ended by itself
  microseconds returned_at{0};
  bool forced = false;
  std::uint32_t units_done = 0;
  FIELDS(lease_record, lease, rank, granted_at, revoked_at, returned_at, forced, units_done)
};

} // namespace adafloor
