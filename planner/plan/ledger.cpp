#include "planner/plan/ledger.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace adafloor {

sim_ledger& sim_ledger::operator+=(const sim_ledger& other) {
  rank_seconds += other.rank_seconds;
  busy += other.busy;
  dummy += other.dummy;
  leased += other.leased;
  transition += other.transition;
  idle += other.idle;
  return *this;
}

double imbalance(const sim_ledger& ledger) {
  double parts = ledger.busy + ledger.dummy + ledger.leased + ledger.transition + ledger.idle;
  return std::abs(ledger.rank_seconds - parts) / std::max(1.0, ledger.rank_seconds);
}

void assert_exact(const sim_ledger& ledger) {
  if (imbalance(ledger) <= 1e-9) return;
  std::fprintf(stderr, "ledger does not add up: %.9g rank-s against %.9g in its parts\n",
               ledger.rank_seconds,
               ledger.busy + ledger.dummy + ledger.leased + ledger.transition + ledger.idle);
  std::abort();
}

} // namespace adafloor
