#pragma once
// Lends free ranks to auxiliary work and gets them back (protocols.md section 5); owns the queues.
#include "planner/protocol/lease_pace.hpp"
#include "planner/protocol/machine.hpp"

#include <optional>
#include <set>
#include <string>

namespace adafloor {

struct broker_config {
  rank_id self;                     ///< rank whose process runs this role
  microseconds resend{50'000};      ///< until answered
  microseconds duration{2'000'000}; ///< of a lease, from receipt
  microseconds renew{500'000};      ///< between two renewals
  microseconds grace{2'000'000};    ///< for the work to stop by itself
  microseconds return_margin{
      5'000'000};                   ///< beyond grace; then the rank is not returned: fail closed
  microseconds window_min{500'000}; ///< shorter predicted windows are not lent
  std::uint64_t memory_bytes = 1u << 30; ///< budget of the work on one rank
  std::uint32_t take_max = 64;           ///< units in one answer
  std::size_t queue_max = 1u << 20;      ///< units ever queued; more are refused and counted
  std::uint32_t unit_attempts_max = 5;   ///< at which a worker died; 0: no bound
  pace_config pace;                      ///< when lending slows the rollout down
};

/// Local addresses used: recorder (takes `work_result`, answers `work_kept`), trainer (takes
/// `lease_record`, `lending_state`), planner. A lease works for one queue. It is renewed until its
/// rank is recalled, its queue runs out, a queue of higher priority waits, lending is cut, or it
/// ends by itself.
///
/// Which queue gets a free rank: of those whose first result is expected within what is left of the
/// rank's predicted window, those of the highest priority; of these, while there is a choice, none
/// whose start-up would take more than a quarter of it; of these the one with the least lease time
/// per weight; then the one with the longest start-up. So work with a long start-up gives way in
/// short windows and is owed, and gets, the long ones. The rank with the longest window goes first.
///
/// A unit that a worker was at when it died by itself is handed out after all others and alone, so
/// that of those that were under way together only the cause is blamed again. After
/// `unit_attempts_max` deaths the recorder gets an error as its result.
struct broker_machine {
  enum class lease_phase : std::uint8_t { offered, granted, revoking };
  /// A smoothed observation: each new one counts for a quarter; the guess until there is one.
  struct estimate {
    microseconds value{0};
    std::uint64_t seen = 0;
    void add(microseconds x) { value = seen++ == 0 ? x : value + (x - value) / 4; }
    /// It took at least so long.
    void at_least(microseconds x) {
      if (value < x) value = x;
    }
  };
  struct lease_state {
    lease_id id;
    lease_phase phase = lease_phase::offered;
    std::uint32_t queue = 0;
    microseconds window{0};  ///< left when it was offered
    microseconds charged{0}; ///< to the queue
    microseconds granted_at{0}, working_at{0}, revoked_at{0};
    time_point sent_at;    ///< grant or revoke
    time_point renewed_at; ///< last renewal
    time_point revoked_since;
    time_point progress_at;        ///< grant, or last result
    std::set<std::uint64_t> taken; ///< units handed out, not yet answered
    std::uint32_t batch = 0;       ///< newest answered
    std::vector<std::uint64_t> batch_units;
    std::uint32_t units_done = 0;
    std::uint64_t tokens = 0;
  };
  struct rank_state {
    bool available = false;
    epoch_id epoch;         ///< of the group that the rank left, confirmed
    time_point told_at;     ///< last
    microseconds window{0}; ///< predicted then
    std::optional<lease_state> lease;
    bool unreturned = false; ///< fail closed: no proof that the lease ended
    lease_id last_lease;
    std::string why; ///< it is unreturned
  };
  struct queue_state {
    queue_policy policy;
    std::set<std::uint64_t> waiting; ///< units, served in this order
    estimate first_result;           ///< from grant
    estimate unit;                   ///< from result to result of one lease
    estimate stop;                   ///< from revoke to return
    std::uint32_t leases = 0;        ///< running
    microseconds served{0};          ///< lease time per weight
  };
  enum class unit_state : std::uint8_t { waiting, taken, storing, kept };
  struct unit_entry {
    work_unit work; ///< emptied when kept
    unit_state state = unit_state::waiting;
    lease_id lease;           ///< that took or answered it
    std::uint32_t deaths = 0; ///< of workers that were at it
  };

  broker_config config;
  identity who;
  incarnation_filter incarnations;
  drop_counts drops;
  std::map<rank_id, rank_state> ranks;
  std::map<std::uint64_t, unit_entry> units;
  std::map<std::uint32_t, queue_state> queues;
  std::uint32_t lease_counter = 0;  ///< never falls
  std::optional<rollout_id> recall; ///< being answered
  bool recalled = false;            ///< nothing is lent until a rank is available again
  std::uint64_t duplicates = 0;     ///< results of units that were answered before
  std::uint64_t units_refused = 0;  ///< beyond queue_max
  lease_pace pace;
  pause_watch own_pause;

  broker_machine(broker_config config, term_id term);
  std::size_t units_waiting() const; ///< in all queues
};

void step(broker_machine&, const envelope&, time_point now, effects&);
void tick(broker_machine&, time_point now, effects&);

} // namespace adafloor
