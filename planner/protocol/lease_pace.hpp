#pragma once
// What leases cost the rollout: decode step times with and without them, and what follows.
#include "messages/leases.hpp"
#include "messages/types.hpp"

#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace adafloor {

struct pace_config {
  double max_slowdown = 0.03; ///< of the decode steps, as a share; beyond it less is lent; 0: never
  std::uint32_t samples_min = 12;     ///< of each kind, before a group size and load is judged
  std::uint32_t cut_samples_min = 48; ///< with leases, since the last cut, before the next
  microseconds rest{20'000'000};      ///< after a cut, before a little more is lent again
  microseconds measure_max{200'000};  ///< lending waits at most so long for steps without leases,
  microseconds measure_min{20'000};   ///< at least so long or not at all,
  double measure_share = 0.05;      ///< in all at most this share of the time that ranks were lent,
  double window_share = 0.125;      ///< and at most this share of the predicted window
  std::uint32_t measure_every = 16; ///< times that a group size was reached, once it was measured
};

/// Compares the medians of `decode_pace` samples taken while ranks were lent with those taken while
/// none was, for each group size and power of two of live requests, so that neither the group nor
/// the load is mistaken for the leases. Samples without leases come from whatever time nothing is
/// lent in a smaller group, and from pauses before the first grant of a stage. A pause is paid for
/// by what was lent before: the first stages are lent at once, and short jobs are not judged.
struct lease_pace {
  struct samples {
    std::deque<microseconds> alone, lent; ///< per step, the newest `samples_max`
  };
  static constexpr std::size_t samples_max = 48;
  pace_config config;
  std::map<std::pair<std::uint32_t, std::uint32_t>, samples> seen; ///< by members, load
  std::map<std::uint32_t, std::uint32_t> stages;                   ///< reached, by members
  time_point changed_at;                   ///< when ranks began or ceased to be lent
  bool lending = false;                    ///< ranks are lent
  microseconds lent_for{0};                ///< up to changed_at
  microseconds measured_for{0};            ///< pauses
  std::optional<time_point> measure_until; ///< nothing is lent before
  std::uint64_t steps_alone = 0, steps_lent = 0;
  std::uint32_t lent_since_cut = 0;       ///< samples
  std::optional<std::uint32_t> ranks_max; ///< lent at once; none: all
  time_point cut_at;
  std::uint32_t cuts = 0;
};

/// `lent`: ranks that hold a lease now, revoked ones included.
void note_lent(lease_pace&, std::uint32_t lent, time_point now);
/// The group shrank to `members`, or a rank more became free; `window`: predicted.
void note_stage(lease_pace&, std::uint32_t members, microseconds window, time_point now);
void note_pace(lease_pace&, const decode_pace&, time_point now);
/// Nothing is to be lent now, so that steps without leases can be measured.
bool measuring(lease_pace&, time_point now);
/// Slow-down as a share, over all that both kinds of samples were seen of, weighted by the steps
/// with leases. Nothing while too few were seen.
std::optional<double> slowdown(const lease_pace&);
/// Adapts `ranks_max`, `lent` ranks being lent now. True when it fell: leases beyond it must end.
bool adapt(lease_pace&, std::uint32_t lent, time_point now);

} // namespace adafloor
