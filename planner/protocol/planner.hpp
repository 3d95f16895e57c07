#pragma once
// The planner: drives a rollout from admission to the full world being back, and weight updates.
#include "planner/plan/exits.hpp"
#include "planner/plan/roles.hpp"
#include "planner/protocol/machine.hpp"
#include "planner/protocol/transition.hpp"

#include <deque>
#include <optional>
#include <set>
#include <string>

namespace adafloor {

struct planner_config {
  rank_id self; ///< rank whose process runs planner, broker, membership,
                ///< recorder and trainer
  std::uint32_t world_size = 1;
  std::uint32_t experts = 1; ///< per layer
  transition_config transition;
  microseconds resend{50'000};                      ///< until acknowledged
  microseconds admit_max{60'000'000};               ///< until every rank admitted its requests
  microseconds start_max{30'000'000};               ///< until every rank started
  microseconds rollout_max{6ll * 3600 * 1'000'000}; ///< for generating, all included
  microseconds recall_max{60'000'000};   ///< until the broker has every lease back or gave up
  microseconds report_max{10'000'000};   ///< until every rank has closed its books
  microseconds weights_max{600'000'000}; ///< until every rank has loaded a policy
  microseconds stop_max{3'000'000};      ///< until every rank stopped
  microseconds retry_pause{200'000};     ///< between an aborted transition and the next try
  std::uint32_t attempts_max = 3;        ///< for one contraction, and for the restoration
  std::uint32_t part_requests_max = 64;  ///< requests in one admit_requests
  std::uint32_t part_window = 4;         ///< unacknowledged parts per rank
  std::uint32_t requests_max = 1u << 16; ///< of a rollout
  std::uint32_t pace_steps = 4;          ///< decode steps that one decode_pace covers
  /// Members tell their progress after every step in which time passes, and none passes while a
  /// response is unacknowledged (emulated ranks). Then an exit is decided only on what all members
  /// told of the same step, and the last response is acknowledged when that decision is through.
  bool lockstep = false;
  microseconds lockstep_max{5'000'000}; ///< to hear of the same step from all members
  /// The world goes on without ranks that die; else a death ends the rollout. Emulated ranks have
  /// no recovery.
  bool recover = true;
  /// From the engine that waits for a peer in vain to the membership's decision on that peer, else
  /// failure.
  microseconds peer_lost_max{15'000'000};
  std::uint32_t part_tokens_max = 1u << 15; ///< of requests that are rebuilt, in one admit_requests
  /// What exits are weighed with: costs, the limits of a rank, lambda, seed. World, experts and
  /// what is each rollout's own (policy, residency, migration, pool, cap) are filled in.
  plan_options weighing;
};

/// Local addresses used: recorder (takes `response`, answers `response_kept`; takes `token_batch`,
/// each once and in order of its rank, answers `tokens_kept`), broker, trainer.
/// The trainer's messages: begin_rollout -> rollout_done or rollout_failed, before it one
/// rollout_report per rank, its `from` being that rank, and one request_moved per move that ended,
/// from the rank that gave the request away; rank_quarantined when a rank cannot come back, after
/// which the others go on: requests that are to start there go to the least loaded of them, larger
/// exits are left out, and there is no report of it in later rollouts; update_weights ->
/// weights_updated or weights_refused; stop -> stopped, when all ranks have stopped or stop_max has
/// passed.
struct planner_machine {
  enum class phase : std::uint8_t {
    idle,
    admitting, ///< requests go out
    starting,  ///< engines are told to decode
    running,   ///< until every response is durable; the group may contract
    recalling, ///< leases come back
    restoring, ///< the full world is formed again
    reporting, ///< ranks close their books
    failed,    ///< the world is not usable; only stop is obeyed
  };
  enum class response_state : std::uint8_t { missing, storing, kept };
  struct request_part {
    rank_id home;
    response_state state = response_state::missing;
    std::uint32_t moves_failed = 0;           ///< orders to move it that ended elsewise
    std::size_t index = 0;                    ///< in `decision_part::requests`
    bool waits = false;                       ///< for one of the rank's places
    std::uint64_t started_at = 0;             ///< decode step
    rollout_request spec;                     ///< to rebuild it; empty once its response is here
    std::map<std::uint32_t, token_run> known; ///< its tokens, by index of the first; likewise
  };
  /// An order to move a request that its rank has not answered yet.
  struct open_move {
    move_key key;
    rank_id from, to;
    time_point sent_at;
  };
  struct admission {
    admit_requests body; ///< emptied once admitted
    bool admitted = false;
    time_point sent_at;
  };
  struct rank_part {
    std::vector<admission> parts;
    std::size_t parts_sent = 0; ///< the first so many of `parts` were sent
    std::size_t parts_admitted = 0;
    bool started = false;
    bool reported = false;
    std::uint32_t requests = 0;     ///< whose home it is; changes when one moves
    std::uint32_t received = 0;     ///< responses, durable or being stored
    std::deque<request_id> waiting; ///< for one of its `max_num_seqs` places, in order
    std::uint64_t tokens_taken = 0; ///< batches up to this one went to the recorder
    std::uint64_t tokens_kept = 0;  ///< batches up to this one are in the log
    rank_progress progress;         ///< the newest by step
    time_point sent_at;             ///< of start_rollout or end_rollout
    bool finished() const;          ///< nothing left to generate
  };
  /// What exits are decided from (planner/plan/exits.hpp).
  struct decision_part {
    step_plan plan; ///< exits (sizes given up are taken out), prompts, pool, cap; the rest is empty
    plan_options options;
    std::vector<predicted_prompt> predicted;
    std::vector<request_id> requests; ///< by index
    std::vector<std::size_t> prompts; ///< by index of request: its index in `predicted`
    exit_memory memory;
    std::optional<exit_choice> chosen; ///< its moves are under way
  };
  struct rollout_part {
    rollout_id id;
    std::map<request_id, request_part> requests;
    std::map<rank_id, rank_part> ranks;
    std::map<request_id, open_move> moves;
    std::size_t kept = 0;
    std::optional<request_id> held; ///< lockstep: kept, not acknowledged yet
    time_point held_at;
    decision_part decision;
    std::uint32_t predicted_tail = 0;
    microseconds began_at{0};
    microseconds ended_at{0};
    std::uint64_t last_step = 0; ///< highest seen
    std::vector<transition_record> transitions;
    std::uint32_t aborted_transitions = 0;
    std::uint32_t attempts = 0; ///< of the transition that is due
    std::optional<time_point> retry_at;
    std::map<rank_id, epoch_id> freed; ///< ranks outside of the group, by the epoch without them
    decode_pace pace;                  ///< since the last one that the broker was told
    std::uint64_t pace_step = 0;
    time_point pace_began_at;
  };
  /// Ranks of the group have died: the others form a group without them and take their requests.
  struct recovery_part {
    recovery_record record;
    bool adopted = false; ///< every request of the dead has a new home
    std::uint32_t attempts = 0;
    std::set<rank_id> leavers; ///< of a contraction that was committed and not settled; alive
  };
  /// An engine waits for a peer in vain, and the membership has not decided yet.
  struct suspicion {
    std::string text;
    time_point since;
  };
  struct weights_part {
    update_weights order;
    std::map<rank_id, weights_updated> updated;
    std::map<rank_id, time_point> waiting; ///< last sent
    std::string refusals;
    time_point began_at;
  };
  struct stop_part {
    stop order;
    std::map<rank_id, time_point> waiting; ///< last sent
    time_point began_at;
  };

  planner_config config;
  identity who; ///< stamp.epoch is the newest committed epoch
  incarnation_filter incarnations;
  drop_counts drops;
  phase now_in = phase::idle;
  time_point phase_began_at;
  std::vector<rank_id> world;   ///< all ranks but those in quarantine, ascending
  std::set<rank_id> quarantine; ///< dead, or the end of a lease of theirs could not be proven
  std::vector<rank_id> members; ///< of the newest committed epoch
  std::vector<rank_id> owners;  ///< expert map of it
  epoch_id highest_epoch;       ///< ever proposed, aborted ones included
  transition_coordinator transition;
  std::optional<rollout_part> rollout;
  std::uint64_t moves_ordered = 0; ///< in the whole job; numbers them
  rollout_id last_rollout;         ///< the newest that ended; its late messages are answered
  std::optional<recovery_part> recovery;
  std::optional<suspicion> suspected;
  epoch_id recovered_epoch;      ///< of the newest recovery: complaints of older epochs are settled
  std::deque<envelope> deferred; ///< orders of the trainer that came during a recovery
  std::optional<weights_part> weights;
  std::optional<weights_updated> last_weights;
  bool weights_mixed = false; ///< an update failed on some ranks; no rollout until one succeeds
  std::optional<stop_part> stopping;
  bool stop_done = false;
  pause_watch own_pause;
  std::set<rank_id> lost;      ///< dead by decision of the membership
  std::string failure;         ///< why phase failed
  bool failed_by_loss = false; ///< because a rank died

  planner_machine(planner_config config, fence stamp, time_point now);
};

void step(planner_machine&, const envelope&, time_point now, effects&);
void tick(planner_machine&, time_point now, effects&);

/// Orders that a live request moves to `to` (protocols.md section 4). Nothing happens, and the
/// answer is false, when no rollout is running, the request is not there, has its response, is
/// moving already or is at home at `to`, or `to` is not a member of the group or about to leave it.
/// Once the move is over the group is looked at again, as after a response.
bool order_move(planner_machine&, request_id, rank_id to, time_point now, effects&);
/// `rank` is source or destination of a move that is not over: it must not leave the group.
bool moving(const planner_machine&, rank_id);
bool moves_open(const planner_machine&);

} // namespace adafloor
