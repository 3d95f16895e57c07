#pragma once
// Plays worlds by seed: what became of one, the smallest that still fails, and how to play it
// again.
#include "planner/sim/world.hpp"

namespace adafloor::sim {

/// Which worlds a seed stands for.
struct world_choice {
  bool leases = false;     ///< worlds that are about leases
  bool deaths = false;     ///< worlds that are about ranks that die
  std::uint32_t ranks = 0; ///< 0: drawn from the seed
  std::set<fault_kind> kinds = all_kinds();
  std::optional<std::uint32_t> rollouts, requests, units; ///< none: drawn from the seed
  mutant bug = mutant::none;

  static std::set<fault_kind> all_kinds();
};
scenario scenario_of(std::uint64_t seed, const world_choice&);
/// The command that plays this world and prints what happens in it.
std::string replay_command(std::uint64_t seed, const world_choice&);
/// Worlds in which `bug` shows without the luck of a decision.
world_choice choice_for(mutant bug);

/// How often things happened in the worlds that were played: a simulation that never contracts
/// proves nothing.
struct world_figures {
  std::uint64_t worlds = 0, events = 0, rollouts = 0, contractions = 0, restorations = 0,
                aborted = 0, leases = 0, forced = 0, unclean = 0, unfinished = 0, cuts = 0,
                quarantined = 0, units = 0, failures = 0, stale = 0, lost = 0, recoveries = 0,
                rebuilt = 0, tokens_rebuilt = 0, fenced = 0;
  std::map<move_outcome, std::uint64_t> moves;
  fault_coverage struck;

  void add(const world&);
  void add(const world_figures&);
  std::string text() const; ///< one line, without `struck`
};

struct world_outcome {
  std::string broken;     ///< the invariant that was violated and how; empty: none
  std::uint64_t hash = 0; ///< of all that was delivered
  bool clean() const { return broken.empty(); }
};
/// `trace`, where given, gets a line per message and fault.
world_outcome play(const scenario&, std::ostream* trace = nullptr, world_figures* = nullptr);

/// A world that breaks the same invariant with less in it: fewer kinds of fault, rollouts, requests
/// and units. Plays some 50 worlds.
world_choice smallest(std::uint64_t seed, const world_choice&, const std::string& broken);

/// What happened last in a world before its invariant broke: at most `lines_max` lines, times in
/// seconds since the begin of the world, without what is said all the time or for the third time.
std::string last_events(const scenario&, std::size_t lines_max);

} // namespace adafloor::sim
