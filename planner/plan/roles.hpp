#pragma once
// Who stays and who leaves: the functions that the plan, the simulator and the runtime all call, so
// that they cannot disagree.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <optional>
#include <vector>

namespace adafloor {

/// The group becomes `to` ranks, at the predicted decode step `at` (tokens since the rollout
/// began).
struct planned_exit {
  double at = 0;
  int to = 0;
  friend bool operator==(const planned_exit& a, const planned_exit& b) {
    return a.at == b.at && a.to == b.to;
  }
};

/// The size to shrink to now, or nothing. `needed` ranks must stay (those with unfinished requests,
/// or, with migration, those that the live requests pack into). It is the next planned size below
/// `group`, provided that `needed` fits it: each planned size is visited, and completions that skip
/// a stage still shrink. With `direct` it is the smallest planned size that `needed` fits.
std::optional<int> next_group(const std::vector<planned_exit>& exits, int group, int needed,
                              bool direct = false);

/// Natural residency: the `size` members that stay, ascending: all of `unfinished`, padded with
/// finished members, lowest rank first. Errors: bad_input if unfinished ranks do not fit, are not
/// members, or the group has fewer than `size` members.
result<std::vector<rank_id>> survivors_for(const std::vector<rank_id>& unfinished,
                                           const std::vector<rank_id>& members, int size);

/// Planned residency: the last `size` members, ascending (donor, wave, final order).
result<std::vector<rank_id>> planned_survivors(const std::vector<rank_id>& members, int size);

/// A request that still generates. Tokens are responses (plus prompt where that is counted).
struct packed_request {
  std::uint64_t request = 0;
  rank_id rank;
  double tokens = 0;       ///< held now
  double final_tokens = 0; ///< predicted at its end, >= tokens
};

struct request_move {
  std::uint64_t request = 0;
  rank_id from, to;
};

/// What a survivor can take.
struct pack_limits {
  int max_num_seqs = 32;
  double capacity_tokens = 0; ///< KV tokens of one rank in the smaller group; <= 0: no limit
  bool planned = false; ///< the last ranks stay (planned residency), not those with most requests
};

struct packing {
  std::vector<rank_id> survivors; ///< ascending
  std::vector<request_move> moves;
};

/// Packs the live requests into `size` of the `members`: survivors are those with most live
/// requests (ties: more tokens, then the lowest rank), and each request of a leaver, or of a
/// survivor that is too full itself, goes, longest first, to the survivor whose predicted peak
/// grows to the least. Nothing if it does not fit: the batch limit, the present tokens or the
/// predicted future peak of some survivor.
std::optional<packing> pack_live(const std::vector<packed_request>& live,
                                 const std::vector<rank_id>& members, int size,
                                 const pack_limits& limits);

/// Predicted peak of requests that all grow one token a step: max over k of the sum of the present
/// tokens plus k times the growth until the k-th longest ends.
double future_peak(const std::vector<const packed_request*>& requests);

} // namespace adafloor
