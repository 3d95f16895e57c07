#pragma once
// Lends free ranks to auxiliary work and gets them back (protocols.md section 5); owns the queue.
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
};

/// Local addresses used: recorder (takes `work_result`, answers `work_kept`), trainer (takes
/// `lease_record`), planner. A lease is renewed until its rank is recalled, its work runs out or it
/// ends by itself.
struct broker_machine {
  enum class lease_phase : std::uint8_t { offered, granted, revoking };
  struct lease_state {
    lease_id id;
    lease_phase phase = lease_phase::offered;
    microseconds granted_at{0}, revoked_at{0};
    time_point sent_at;    ///< grant or revoke
    time_point renewed_at; ///< last renewal
    time_point revoked_since;
    std::set<std::uint64_t> taken; ///< units handed out, not yet answered
    std::uint32_t batch = 0;       ///< newest answered
    std::vector<std::uint64_t> batch_units;
    std::uint32_t units_done = 0;
  };
  struct rank_state {
    bool available = false;
    epoch_id epoch; ///< of the group that the rank left, confirmed
    std::optional<lease_state> lease;
    bool unreturned = false; ///< fail closed: no proof that the lease ended
  };
  enum class unit_state : std::uint8_t { waiting, taken, storing, kept };
  struct unit_entry {
    work_unit work; ///< emptied when kept
    unit_state state = unit_state::waiting;
    lease_id lease; ///< that took or answered it
  };

  broker_config config;
  identity who;
  incarnation_filter incarnations;
  drop_counts drops;
  std::map<rank_id, rank_state> ranks;
  std::map<std::uint64_t, unit_entry> units;
  std::set<std::uint64_t> waiting;  ///< units in the queue, served in this order
  std::uint32_t lease_counter = 0;  ///< never falls
  std::optional<rollout_id> recall; ///< being answered
  bool recalled = false;            ///< nothing is lent until a rank is available again
  std::uint64_t duplicates = 0;     ///< results of units that were answered before
  pause_watch own_pause;
  std::uint64_t units_refused = 0; ///< beyond queue_max

  broker_machine(broker_config config, term_id term);
};

void step(broker_machine&, const envelope&, time_point now, effects&);
void tick(broker_machine&, time_point now, effects&);

} // namespace adafloor
