#pragma once
// The engine's side of the token log: gathers what steps generate into batches with a bounded lag.
#include "planner/protocol/machine.hpp"

namespace adafloor {

/// Unacknowledged batches are bounded by `window`: while it is full, runs only grow, so a slow log
/// costs memory for tokens that exist anyway, never a step.
struct token_batcher {
  microseconds lag_max{250'000};    ///< from a token to the batch that holds it; 0: no log
  std::uint64_t window = 4;         ///< batches that are not known to be kept
  std::size_t tokens_max = 1 << 14; ///< in one batch

  rollout_id rollout;
  std::uint64_t sequence = 0; ///< of the newest batch
  std::uint64_t kept = 0;     ///< batches up to this one are in the log
  std::vector<token_run> runs;
  std::map<request_id, std::size_t> last_run; ///< by request: its newest run in `runs`
  std::size_t tokens = 0;                     ///< in `runs`
  time_point oldest_at;                       ///< when the first of them came
};

/// A new rollout: sequence numbers begin again, what is left of the old one is forgotten.
void begin(token_batcher&, rollout_id);
/// Token `index` (0-based) of a response.
void add(token_batcher&, request_id, std::uint32_t index, token_id, float logprob, time_point now);
/// The next batch, when the lag or the size is reached and the window has room; with `all` whatever
/// is there, at once, since the engine is about to rest.
std::optional<token_batch> next_batch(token_batcher&, bool all, time_point now);
void hear(token_batcher&, const tokens_kept&);

} // namespace adafloor
