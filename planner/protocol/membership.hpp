#pragma once
// Who is alive: decides by silence, once and for ever (protocols.md section 7).
#include "planner/protocol/machine.hpp"

namespace adafloor {

struct membership_config {
  rank_id self;                        ///< rank whose process runs this role
  std::uint32_t world_size = 1;        ///< ranks 0 .. world_size-1 are expected
  microseconds silence_max{3'000'000}; ///< a rank silent for longer is dead
  microseconds first_max{0};           ///< until the first heartbeat, where that is longer
};

/// Takes `heartbeat`, answers `heartbeat_seen`; on death posts `member_lost` to the planner and the
/// broker of its own process, once. A rank declared dead is never alive again: a process that was
/// frozen and sends heartbeats again is told so; those of another incarnation are dropped and
/// counted.
struct membership_machine {
  struct peer {
    incarnation_id incarnation; ///< zero until the first heartbeat
    time_point heard_at;
    epoch_id epoch;                  ///< last reported
    std::uint64_t step = 0;          ///< last reported
    std::optional<member_lost> lost; ///< the decision, once taken
  };
  membership_config config;
  identity who;
  std::map<rank_id, peer> peers;
  pause_watch own_pause;
  drop_counts drops;

  membership_machine(membership_config config, term_id term, time_point now);
};

void step(membership_machine&, const envelope&, time_point now, effects&);
void tick(membership_machine&, time_point now, effects&);

} // namespace adafloor
