#pragma once
// Conversation: freed ranks are lent to auxiliary work (protocols.md section 5). The broker speaks
// to the rank, which alone decides whether it may be lent and passes the lease on to its sidecar.
#include "messages/ids.hpp"

namespace adafloor {

/// planner -> broker: `rank` is outside the group of `epoch`, and every member confirmed it.
struct rank_available {
  rank_id rank;
  epoch_id epoch;
  microseconds window{0};    ///< predicted time until the rank is needed again
  std::uint32_t members = 0; ///< of that group
  FIELDS(rank_available, rank, epoch, window, members)
};

/// planner -> broker: get every lease back. Answered by `leases_recalled` when that is done.
struct recall_leases {
  rollout_id rollout;
  FIELDS(recall_leases, rollout)
};
/// The end of `lease` could not be proven, so nobody else may use the device of `rank`.
struct unreturned_lease {
  rank_id rank;
  lease_id lease;
  std::string text; ///< what was waited for, or what came instead
  FIELDS(unreturned_lease, rank, lease, text)
};
struct leases_recalled {
  rollout_id rollout;
  std::vector<unreturned_lease> unreturned; ///< by rank
  FIELDS(leases_recalled, rollout, unreturned)
};

/// planner -> trainer: `rank` stays outside of the world until the job ends; what follows is done
/// by the others.
struct rank_quarantined {
  rank_id rank;
  lease_id lease;               ///< whose end could not be proven
  std::uint32_t world_size = 0; ///< ranks that are left
  std::string text;
  FIELDS(rank_quarantined, rank, lease, world_size, text)
};

/// planner -> broker: the group of `members` ranks took `elapsed` for its last `steps` decode steps
/// with `live` requests. From it the broker knows what leases cost the rollout.
struct decode_pace {
  epoch_id epoch;
  std::uint32_t members = 0;
  std::uint32_t live = 0;
  std::uint32_t steps = 0;
  microseconds elapsed{0};
  FIELDS(decode_pace, epoch, members, live, steps, elapsed)
};

/// broker -> rank -> sidecar: run auxiliary work for `duration` from receipt. Resent until
/// answered.
struct lease_grant {
  lease_id lease;
  microseconds duration{0};
  microseconds grace{0};
  std::uint64_t memory_bytes = 0; ///< budget of the auxiliary work on this rank
  microseconds window{0};         ///< predicted time until the rank is needed again
  FIELDS(lease_grant, lease, duration, grace, memory_bytes, window)
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
  microseconds window{0}; ///< predicted time until the rank is needed again
  FIELDS(lease_renew, lease, duration, window)
};

/// broker -> rank -> sidecar: stop within `grace`. Resent until `lease_returned`.
struct lease_revoke {
  lease_id lease;
  microseconds grace{0};
  FIELDS(lease_revoke, lease, grace)
};

/// What there is of an answer that was interrupted.
struct partial_answer {
  std::uint64_t unit = 0;
  std::vector<token_id> tokens;
  std::vector<float> logprobs; ///< one for each token
  FIELDS(partial_answer, unit, tokens, logprobs)
};

/// sidecar -> rank -> broker: nothing of the auxiliary work is left on the rank. Resent until
/// `lease_closed`. A lease that the receiver never heard of is answered with zero units.
struct lease_returned {
  lease_id lease;
  bool forced = false; ///< the work had to be killed
  bool clean = true;   ///< false: process or memory could not be proven gone
  std::uint32_t units_done = 0;
  std::vector<std::uint64_t> died_at{};  ///< units under way when the worker died by itself
  std::vector<partial_answer> partial{}; ///< of units that are handed back
  FIELDS(lease_returned, lease, forced, clean, units_done, died_at, partial)
};
struct lease_closed {
  lease_id lease;
  FIELDS(lease_closed, lease)
};

/// What a unit asks for: an answer to a prompt; the log-probabilities of a response that exists; a
/// command of the operating system; a call of what the user linked in.
enum class work_kind : std::uint8_t { generate = 1, score = 2, exec = 3, callback = 4 };
constexpr work_kind enum_max(work_kind) {
  return work_kind::callback;
}
/// Others of their kind run beside it on the same rank.
constexpr bool runs_together(work_kind kind) {
  return kind == work_kind::generate || kind == work_kind::score;
}
const char* name_of(work_kind);

/// One piece of auxiliary work.
struct work_unit {
  std::uint64_t unit = 0; ///< unique in the job; results are keyed by it
  std::vector<token_id> prompt;
  std::uint32_t max_tokens = 0;
  std::uint32_t queue = 0; ///< it belongs to; see `queue_policy`
  work_kind kind = work_kind::generate;
  /// score: what follows the prompt; generate: what an earlier lease answered so far.
  std::vector<token_id> response{};
  std::string model{};                ///< folder; generate and score
  std::vector<std::string> command{}; ///< exec: program and arguments; callback: name and input
  std::vector<float> logprobs{};      ///< generate: one for each token of `response`
  FIELDS(work_unit, unit, prompt, max_tokens, queue, kind, response, model, command, logprobs)
};

/// trainer -> broker: how a queue is served; a queue that was not told of has the values here. What
/// is guessed holds until it was measured.
struct queue_policy {
  std::uint32_t queue = 0;
  std::uint32_t priority = 0;     ///< queues of a higher one go first
  std::uint32_t weight = 1;       ///< share of the lease time among queues of one priority
  microseconds start_up_guess{0}; ///< from grant to work that runs
  microseconds unit_guess{0};     ///< per unit
  FIELDS(queue_policy, queue, priority, weight, start_up_guess, unit_guess)
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
  std::vector<float> logprobs{}; ///< generate, score: one for each token of the response
  std::int32_t exit_code = 0;    ///< exec; 128 + number where a signal ended it
  std::string text{};            ///< exec: end of its output; callback: what it gave
  std::string error{};           ///< why the unit has no answer; empty: it has one
  FIELDS(work_result, lease, unit, tokens, logprobs, exit_code, text, error)
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
  microseconds window{0}; ///< predicted time until the rank is needed again
  FIELDS(run_unit, lease, work, window)
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
  std::vector<partial_answer> partial{}; ///< of the units that were dropped
  FIELDS(worker_stopped, lease, forced, clean, partial)
};

/// broker -> trainer: for the report. Times by the broker's clock.
struct lease_record {
  lease_id lease;
  rank_id rank;
  std::uint32_t queue = 0;
  microseconds window{0}; ///< predicted when it was granted
  microseconds granted_at{0};
  microseconds working_at{0}; ///< start-up is over; zero if no result came
  microseconds revoked_at{0}; ///< zero if it ended by itself
  microseconds returned_at{0};
  bool forced = false;
  bool clean = true; ///< false: the rank is not lent and not used again
  std::uint32_t units_done = 0;
  std::uint64_t tokens = 0; ///< in the results
  FIELDS(lease_record, lease, rank, queue, window, granted_at, working_at, revoked_at, returned_at,
         forced, clean, units_done, tokens)
};

/// broker -> trainer, with every answer to `recall_leases`: what leases cost the rollouts so far.
struct lending_state {
  std::uint64_t steps_lent = 0;  ///< measured decode steps while ranks were lent
  std::uint64_t steps_alone = 0; ///< while none was
  std::int32_t slowdown_ppm = 0; ///< of the former against the latter, at equal group and load
  bool limited = false;          ///< by `ranks_max`, because of the slow-down
  std::uint32_t ranks_max = 0;   ///< that may be lent at once from now on
  std::uint32_t cuts = 0;        ///< of `ranks_max`
  FIELDS(lending_state, steps_lent, steps_alone, slowdown_ppm, limited, ranks_max, cuts)
};

} // namespace adafloor
