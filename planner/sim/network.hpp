#pragma once
// Chance, and what goes wrong in a simulated world. Everything follows from one seed.
#include "planner/sim/faults.hpp"

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace adafloor::sim {

/// A broken invariant: the text names it.
struct violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void demand(bool holds, const char* invariant, const std::string& text) {
  if (!holds) throw violation(std::string(invariant) + ": " + text);
}

/// splitmix64: the same numbers with every compiler and library.
class random_stream {
public:
  explicit random_stream(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::uint64_t next() {
    auto z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < p; }
  microseconds delay(std::int64_t low_us, std::int64_t high_us) {
    return microseconds{between(low_us, high_us)};
  }

private:
  std::uint64_t state_;
};

/// What goes wrong in a world, and how often. Probabilities are per occasion.
struct fault_profile {
  double loss = 0, doubling = 0, late = 0; ///< of a message between processes
  double corruption = 0;                   ///< likewise
  bool in_order = false;                   ///< messages between two processes never overtake
  std::int64_t late_max_us = 1'500'000;
  double engine_refusal = 0, slow_prepare = 0; ///< of one engine_prepare
  double wrong_coverage = 0;                   ///< an engine reports one expert too few
  double worker_crash = 0, worker_stubborn = 0;
  double worker_unclean = 0;        ///< gone, but its memory is not known to be free
  std::int64_t worker_start_us = 0; ///< most that a worker needs before its first unit
  double weights_refusal = 0;
  double lease_refusal = 0;   ///< of a grant, by the sidecar
  double restore_refusal = 0; ///< of one engine_prepare; once in a rollout
  double pull_failure = 0;    ///< of one round of a moving request
  double no_room = 0;         ///< for one that wants to move in
  double pause = 0;           ///< of a node, per tick: it does nothing for a while
  std::int64_t pause_max_us = 700'000;
  double slow = 0; ///< of a node, per tick: each thing that it does takes longer for a while
  std::int64_t slow_max_us = 500'000;
  double cut = 0; ///< of the network, per tick: some ranks are cut off from the others for a while
  std::int64_t cut_max_us = 700'000;
};
/// Every kind that is not in `kept` never strikes.
void keep_only(fault_profile&, const std::set<fault_kind>& kept);

/// One copy of a message that arrives.
struct copy_on_its_way {
  microseconds delay;
  bool late = false;
};
/// Empty: lost.
inline std::vector<copy_on_its_way> fate(const fault_profile& f, random_stream& rng) {
  std::vector<copy_on_its_way> copies;
  if (rng.chance(f.loss)) return copies;
  const int count = rng.chance(f.doubling) ? 2 : 1;
  for (int i = 0; i < count; ++i) {
    const bool late = rng.chance(f.late);
    copies.push_back({late ? rng.delay(1'000, f.late_max_us) : rng.delay(50, 2'000), late});
  }
  return copies;
}

} // namespace adafloor::sim
