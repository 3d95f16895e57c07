#pragma once
// Where the rank-seconds of a rollout went.

namespace adafloor {

/// All in rank-seconds. Exact: world * seconds = busy + dummy + leased + transition + idle.
struct sim_ledger {
  double rank_seconds = 0; ///< world * rollout seconds
  double busy = 0;         ///< members with live requests
  double dummy = 0;        ///< members without: they only take part in the exchange
  double leased = 0;       ///< ranks outside the group
  double transition = 0;   ///< pauses of exits, copies and restores, for the ranks that wait
  double idle = 0;         ///< fixed time of a step

  /// What the rollout binds: world * seconds - leased.
  double bound() const { return rank_seconds - leased; }
  sim_ledger& operator+=(const sim_ledger& other);
};

/// Largest part of the ledger that is unaccounted for, as a share of rank_seconds.
double imbalance(const sim_ledger& ledger);
/// Aborts the program if the ledger does not add up to within 1e-9: a bug, never an input.
void assert_exact(const sim_ledger& ledger);

} // namespace adafloor
