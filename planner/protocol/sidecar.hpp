#pragma once
// Holds a lease on its rank: takes units, has its worker run them, and is gone in time.
#include "planner/protocol/machine.hpp"

#include <deque>
#include <optional>

namespace adafloor {

struct sidecar_config {
  rank_id self;
  rank_id broker_rank;
  microseconds resend{50'000};       ///< until answered
  microseconds empty_pause{200'000}; ///< before an empty queue is asked again
  microseconds kill_max{2'000'000};  ///< from kill to proof; then the return is not clean
  std::uint32_t together = 8;        ///< units that a model runs at once; others run alone
  std::uint32_t prefetch = 4;        ///< units held besides those, until their time is known
  std::uint32_t prefetch_max = 64;   ///< never more
  microseconds ahead{50'000};        ///< then as many as take so long, so that no answer is awaited
  std::uint32_t results_max = 64;    ///< answered units not yet durable; beyond it the worker waits
};

/// Local addresses used: {self, rank} (gate; grants come from it, returns go to it) and {self,
/// worker} (takes `run_unit`, answers `work_result`; takes `stop_worker`, answers `worker_stopped`,
/// forced as it was told to `kill`, when nothing of the lease runs any more). Talks to
/// {broker_rank, broker} about units itself. The worker starts with the first run_unit of a lease
/// and must be able to do so again after it stopped. One that dies says worker_stopped, forced,
/// without being asked; that ends the lease, but is no answer.
struct sidecar_machine {
  enum class phase : std::uint8_t {
    idle,
    holding,  ///< a lease runs
    stopping, ///< stop_worker was sent, within grace
    killing,  ///< grace is over
    unclean,  ///< the worker could not be proven gone: no further lease
  };
  sidecar_config config;
  identity who;
  drop_counts drops;
  phase now_in = phase::idle;
  lease_id lease;
  microseconds grace{0};
  time_point ends_at;      ///< own clock
  time_point needed_at;    ///< own clock; the rank, as predicted
  time_point stop_before;  ///< end of grace, or of kill_max
  bool worker_gone = true; ///< since the last stop_worker
  bool forced = false;
  bool clean = true;

  std::optional<take_work> asked; ///< not yet answered
  time_point asked_at;
  std::uint32_t batch = 0;
  std::optional<time_point> ask_again_at; ///< the queue was empty
  std::deque<work_unit> ready;
  std::map<std::uint64_t, work_kind> running; ///< units; of one kind
  microseconds unit_time{0};                  ///< from result to result of this lease; 0: not known
  std::optional<time_point> result_at;        ///< last, of this lease
  struct result_part {
    work_result result;
    time_point sent_at;
  };
  std::map<std::uint64_t, result_part> results; ///< by unit, until kept
  std::uint32_t units_done = 0;                 ///< kept, of this lease
  std::vector<std::uint64_t> died_at;           ///< units, of this lease
  std::vector<partial_answer> partial;          ///< likewise
  pause_watch own_pause{microseconds{200'000}, {}};
  bool job_ended = false; ///< `stop` was seen: no further lease

  sidecar_machine(sidecar_config config, fence stamp);
};

void step(sidecar_machine&, const envelope&, time_point now, effects&);
void tick(sidecar_machine&, time_point now, effects&);

} // namespace adafloor
