#pragma once
// All actor interfaces: which machine a role runs and which messages it accepts. Roles that are
// threads (engine, worker, trainer with recorder) say what they accept in their own headers.
#include "actors/machine_actor.hpp"
#include "planner/protocol/broker.hpp"
#include "planner/protocol/membership.hpp"
#include "planner/protocol/planner.hpp"
#include "planner/protocol/rank.hpp"
#include "planner/protocol/sidecar.hpp"

namespace adafloor {

template <class... Messages>
struct accept_list {
  static bool contains(const any_message& m) {
    return (std::holds_alternative<Messages>(m) || ...);
  }
};

/// One per process.
struct rank_role {
  static constexpr auto name = "rank";
  using machine = rank_machine;
  using accepts = accept_list<
      // from membership and planner
      heartbeat_seen, member_lost, stop, admit_requests, start_rollout, response_kept, tokens_kept,
      end_rollout, prepare_transition, abort_transition, commit_transition, settle_transition,
      update_weights, move_request,
      // from other ranks and, about the same, the own engine
      move_offer, move_accepted, move_refused, kv_ready, kv_taken, move_committed, move_rejected,
      move_cancel, move_cancelled,
      // from the broker
      lease_grant, lease_renew, lease_revoke, lease_closed,
      // from the own sidecar
      lease_accepted, lease_denied, lease_returned,
      // from the own engine
      response, token_batch, rank_progress, engine_prepared, engine_refused, engine_state,
      engine_failed, switched, weights_updated, weights_refused, engine_move_offer,
      engine_move_ended>;
};

/// One per process.
struct sidecar_role {
  static constexpr auto name = "sidecar";
  using machine = sidecar_machine;
  using accepts = accept_list<lease_grant, lease_renew, lease_revoke, lease_closed, work_units,
                              work_result, work_kept, worker_stopped, stop>;
};

/// One per job, in the planner's process.
struct planner_role {
  static constexpr auto name = "planner";
  using machine = planner_machine;
  using accepts = accept_list<
      // from the trainer
      begin_rollout, update_weights, stop,
      // from ranks
      requests_admitted, rollout_started, response, token_batch, rank_progress, rollout_report,
      request_moved, prepared, refused, transition_aborted, switched, settled, engine_failed,
      weights_updated, weights_refused, stopped,
      // from the recorder, the broker and membership
      response_kept, tokens_kept, leases_recalled, member_lost>;
};

/// One per job, in the planner's process.
struct broker_role {
  static constexpr auto name = "broker";
  using machine = broker_machine;
  using accepts = accept_list<rank_available, recall_leases, member_lost, lease_accepted,
                              lease_denied, lease_returned, decode_pace, queue_policy, queue_work,
                              take_work, work_result, work_kept>;
};

/// One per job, in the planner's process.
struct membership_role {
  static constexpr auto name = "membership";
  using machine = membership_machine;
  using accepts = accept_list<heartbeat>;
};

} // namespace adafloor
