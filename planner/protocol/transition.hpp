#pragma once
// Coordinator of one change of the EP group: prepare, commit or abort, settle (protocols.md
// section 3). A part of the planner machine; it decides nothing about when and who.
#include "planner/protocol/machine.hpp"

#include <string>

namespace adafloor {

struct transition_config {
  microseconds resend{50'000};
  microseconds prepare_max{10'000'000}; ///< until all are prepared, else abort
  microseconds abort_max{10'000'000};   ///< until all confirmed the abort, else failure
  microseconds switch_max{60'000'000};  ///< from commit until all switched, else failure
  microseconds settle_max{10'000'000};  ///< until all settled, else failure
};

struct transition_coordinator {
  enum class phase : std::uint8_t { none, preparing, aborting, committed, settling };
  /// What the caller must know when the coordinator is back at `none`.
  enum class outcome : std::uint8_t { pending, settled, aborted, failed };
  struct participant {
    bool prepared = false, aborted = false, switched = false, settled = false;
    std::string address; ///< of its exchanges, once prepared
    time_point sent_at;
  };

  transition_config config;
  phase now_in = phase::none;
  prepare_transition plan;
  std::map<rank_id, participant> participants; ///< old and new members
  time_point phase_began_at;
  transition_record record;
  std::string reason; ///< of an abort or a failure, naming ranks
};

/// Needs phase none. `plan` is complete; `participants` ascending.
void begin(transition_coordinator&, identity&, prepare_transition plan,
           const std::vector<rank_id>& participants, std::uint32_t from_size, time_point now,
           effects&);

/// Gives up a transition that is not committed; nothing happens to a committed one.
void abandon(transition_coordinator&, identity&, std::string reason, time_point now, effects&);

/// All participants are prepared, and nothing is committed.
bool all_prepared(const transition_coordinator&);
/// Needs all_prepared. `step` does it by itself, but for a recovery, which waits for more.
void commit(transition_coordinator&, identity&, time_point now, effects&);

/// Feeds prepared, refused, transition_aborted, switched or settled; anything else is ignored.
transition_coordinator::outcome step(transition_coordinator&, identity&, const envelope&,
                                     time_point now, effects&);
transition_coordinator::outcome tick(transition_coordinator&, identity&, time_point now, effects&);

} // namespace adafloor
