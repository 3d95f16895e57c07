#pragma once
// What every protocol machine in this project has in common: it is a struct, and
//   void step(machine&, const envelope&, time_point now, effects&)
//   void tick(machine&, time_point now, effects&)
// are the only ways to change it. A machine does no I/O, reads no clock, draws no random number and
// starts no thread, so the same inputs give the same effects. What it wants done - a message to
// another process, or work by the engine or the sidecar of its own - is an envelope in `effects`.
// `tick` only resends and watches deadlines: calling it every 5 to 20 ms is enough, and progress
// never waits for it.
#include "messages/catalog.hpp"

#include <cassert>
#include <map>
#include <optional>
#include <vector>

namespace adafloor {

/// What a machine wants sent. The shell fills in the sender's incarnation.
using effects = std::vector<envelope>;

/// Who a machine is: stamps what it sends.
struct identity {
  address self;
  fence stamp; ///< the highest term, epoch and weights version that the machine has seen
};

template <class Message>
void post(const identity& from, address to, Message body, effects& out) {
  out.push_back(envelope{from.self, to, incarnation_id{}, from.stamp, std::move(body)});
}

template <class M, class... Ms>
constexpr bool one_of = (std::is_same_v<M, Ms> || ...);

constexpr address role_at(rank_id rank, role_kind role) {
  return address{rank, role};
}

/// Messages that were not obeyed, by reason. Never an error in themselves: the network may double,
/// delay and reorder.
struct drop_counts {
  std::uint64_t stale_term = 0;        ///< from a planner that was replaced
  std::uint64_t stale_epoch = 0;       ///< about a group that is gone, or was never decided
  std::uint64_t stale_weights = 0;     ///< sender and receiver serve different policies
  std::uint64_t stale_incarnation = 0; ///< from a process that was replaced or declared dead
  std::uint64_t stale_rollout = 0;     ///< about another rollout
  std::uint64_t stale_lease = 0;       ///< about a lease that ended
  std::uint64_t unexpected = 0;        ///< not addressed to this role, or in the wrong phase
};

/// One process per rank: the first incarnation heard stays until the rank is declared dead.
struct incarnation_filter {
  std::map<rank_id, incarnation_id> known;

  bool accepts(rank_id rank, incarnation_id incarnation) {
    return known.emplace(rank, incarnation).first->second == incarnation;
  }
};

/// Notices that the process itself did not run for a while (stopped, starved, suspended): silence
/// and lateness in that time prove nothing about others.
struct pause_watch {
  microseconds gap_max{1'000'000}; ///< between two ticks of a process that runs
  std::optional<time_point> ticked_at = {};

  /// To be called once per tick: how much deadlines must move, zero for a process that ran.
  microseconds missed(time_point now) {
    const auto gap = now - ticked_at.value_or(now);
    ticked_at = now;
    return gap > gap_max ? gap : microseconds{0};
  }
};

/// True, and the clock of this resend restarts, when `every` has passed since `sent_at`.
inline bool due(time_point& sent_at, time_point now, microseconds every) {
  if (now - sent_at < every) return false;
  sent_at = now;
  return true;
}

} // namespace adafloor
