#pragma once
// `adafloor faults run`: simulated worlds, faults of every kind, invariants after every event.
#include "messages/result.hpp"
#include "planner/sim/seed_run.hpp"

#include <string>

namespace adafloor {

struct faults_run_options {
  std::uint64_t first = 1, last = 1000; ///< seeds
  sim::world_choice choice;
  bool all_mutants = false; ///< plants every bug, one after the other
  bool trace = false;       ///< of every message
  unsigned jobs = 1;        ///< worlds at once
};

/// "A..B" or one seed. Errors: bad_input.
result<void> read_seeds(const std::string& text, faults_run_options*);
/// Comma separated kinds of fault, "none", or "all". Errors: bad_input.
result<std::set<fault_kind>> read_kinds(const std::string& text);

/// Plays the worlds; progress goes to stderr, figures to stdout. True: all are clean, or, where
/// bugs are planted, every bug was caught.
bool run_worlds(const faults_run_options&);

} // namespace adafloor
