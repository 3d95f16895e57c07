#pragma once
// The rank's side of every conversation: admission, responses, group membership, the lease gate and
// the rank's time line. Speaks to its own engine and sidecar by local messages.
#include "planner/protocol/kv_handoff.hpp"
#include "planner/protocol/machine.hpp"
#include "planner/protocol/timeline.hpp"

#include <deque>
#include <optional>
#include <set>
#include <string>

namespace adafloor {

struct rank_config {
  rank_id self;
  std::uint32_t world_size = 1;
  incarnation_id incarnation;
  rank_id planner_rank;                  ///< where planner, broker and membership run
  microseconds heartbeat{200'000};       ///< between two heartbeats
  microseconds resend{50'000};           ///< until acknowledged
  microseconds progress_resend{200'000}; ///< the last rank_progress is repeated while it decodes
  microseconds planner_silence_max{10'000'000}; ///< then the rank gives up: `orphaned`
  microseconds planner_first_max{0}; ///< the same while it was never heard, if that is more
  handoff_config handoff;
  std::uint32_t response_window = 64; ///< unacknowledged responses that are on the way at once
  std::uint32_t token_window = 4;     ///< unacknowledged batches of the token log, likewise
};

/// Local addresses used: {self, engine}, {self, sidecar}. The shell routes to this machine whatever
/// is addressed to {self, rank}, the engine's and the sidecar's messages included.
struct rank_machine {
  /// Where the rank stands in the transition that it was last told to prepare.
  enum class transition_phase : std::uint8_t { preparing, prepared, committed };
  struct transition_part {
    prepare_transition plan;
    transition_phase phase = transition_phase::preparing;
    std::optional<prepared> answer; ///< once the engine is prepared
  };
  struct outgoing {
    response body;
    time_point sent_at;
  };
  struct outgoing_tokens {
    token_batch body;
    time_point sent_at;
  };
  struct rollout_part {
    rollout_id id;
    std::set<std::uint32_t> parts; ///< admitted
    std::uint32_t parts_expected = 1;
    std::uint32_t requests = 0; ///< admitted or moved here, without those moved away
    std::map<move_key, outbound_move> outbound; ///< also those that are over
    std::map<move_key, inbound_move> inbound;   ///< also those that are over
    bool started = false;
    microseconds began_at{0}; ///< planner's clock
    rank_progress progress;   ///< the newest
    time_point progress_sent_at;
    std::deque<outgoing> outbox;          ///< not yet known to be durable, oldest first
    std::size_t in_flight = 0;            ///< the first so many of `outbox` were sent
    std::deque<outgoing_tokens> tokens;   ///< batches that are not known to be in the log
    std::size_t tokens_in_flight = 0;     ///< the first so many of them were sent
    bool engine_ran = false;              ///< busy or dummy was seen since the start
    std::optional<end_rollout> ending;    ///< waits for the engine and the token log
    std::optional<rollout_report> report; ///< once ended
  };
  struct lease_part {
    lease_id id;
    bool accepted = false; ///< the sidecar said yes
  };
  /// A lease that is over; told until the broker has heard it.
  struct return_part {
    lease_returned report;
    time_point sent_at;
  };

  rank_config config;
  identity who; ///< stamp.epoch is the epoch that this rank runs, or left the group with
  std::vector<rank_id> members; ///< of that epoch's group, ascending
  std::set<rank_id> dead;       ///< of whom a recovery told
  incarnation_filter incarnations;
  drop_counts drops;

  std::optional<rollout_part> rollout;
  std::optional<transition_part> transition;
  std::optional<switched> last_switch; ///< into who.stamp.epoch
  std::optional<refused> last_refusal; ///< of the newest epoch that this rank refused
  bool settled_epoch = true;           ///< settle_transition of who.stamp.epoch was seen
  epoch_id dead_epoch;                 ///< highest epoch aborted or refused: never armed again

  std::optional<lease_part> lease;
  std::optional<return_part> returned;
  std::optional<lease_id> lease_floor; ///< leases up to this one are over
  bool device_unclean = false;         ///< a lease's end could not be proven: never a member again

  std::optional<update_weights> loading;
  std::optional<weights_updated> last_weights;

  std::optional<engine_failed> failure; ///< repeated to the planner until the job stops
  time_point failure_sent_at;

  timeline time;
  microseconds clock_shift{0};      ///< planner's clock minus own, of the fastest round trip
  microseconds clock_round_trip{0}; ///< that round trip; zero: none measured yet
  time_point heartbeat_at;
  time_point planner_heard_at;
  pause_watch own_pause;
  bool stopping = false; ///< `stop` was obeyed: the process may exit once `stopped` is on its way
  bool orphaned = false; ///< the planner is silent: engine and sidecar were told to stop

  rank_machine(rank_config config, fence stamp, time_point now);

  bool in_group() const; ///< member of the group of the own epoch
};

void step(rank_machine&, const envelope&, time_point now, effects&);
void tick(rank_machine&, time_point now, effects&);

} // namespace adafloor
