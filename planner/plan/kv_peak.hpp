#pragma once
// The KV cache that a set of prompts needs at its worst moment (planner.md section 2).
#include "planner/plan/prediction.hpp"

namespace adafloor {

/// Thousandths of a token: A_mu of whole lengths with mu in thousandths is a whole number of them,
/// so sums and comparisons are exact.
using milli_tokens = std::int64_t;

struct kv_options {
  std::int32_t margin_milli = 1160;         ///< mu * 1000 (`guard.kv_margin`)
  std::int32_t max_response_length = 16384; ///< lengths are clipped to it before the maximum
  bool count_prompt_tokens = false;         ///< each response also holds its prompt's tokens
};

/// One response's contribution: its length after margin and clipping, and what it holds besides.
struct kv_item {
  milli_tokens length = 0;
  milli_tokens prompt = 0;
};

/// A(S) = max over tau of sum over responses still alive at tau of (prompt + tau), all started
/// together; `items` descending by length.
milli_tokens kv_peak(const std::vector<kv_item>& items);

/// The items of one prompt, descending.
std::vector<kv_item> kv_items(const predicted_prompt& prompt, const kv_options& options);

/// A_mu of several prompts on one rank. `sets` are descending item lists.
milli_tokens kv_peak(const std::vector<const std::vector<kv_item>*>& sets);

} // namespace adafloor
