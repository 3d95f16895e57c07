#pragma once
// How long things take: decode steps by group size, exits, restores, copies.
#include "planner/plan/capacity.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

/// ms of one decode step of a group: base + per_active * active ranks + per_max_kv * max_kv
/// + per_batch * largest batch of a rank, where max_kv is the largest rank's resident tokens.
struct decode_law {
  int ranks = 0;
  double base_ms = 0;
  double per_active_ms = 0;
  double per_max_kv_ms = 0;
  double per_batch_ms = 0;
  bool measured = true; ///< false: an assumption, said wherever it is used
};

/// ms of one decode step by batch per rank (tokens one rank decodes) from a table, instead of base.
struct decode_table {
  int ranks = 0;
  std::vector<double> tokens; ///< live requests of the whole group, ascending
  std::vector<double> ms;     ///< same size
};

struct exit_cost {
  int from = 0, to = 0;
  double seconds = 0;
};

struct cost_model {
  std::string name = "flat";
  std::string notes; ///< sources and assumptions, printed with results
  std::vector<decode_law> laws{{1, 50, 0, 0, 0, true}};
  std::vector<decode_table> tables; ///< added to the law of the same size
  std::vector<exit_cost> exits;
  double default_exit_seconds = 0;
  double restore_seconds = 0;
  double fixed_seconds = 0;         ///< per step, no shrink
  double fixed_shrunk_seconds = 0;  ///< per step that shrank, restore included
  double lease_start_seconds = 0;   ///< of a lease before it is of use
  double copy_bytes_per_second = 0; ///< KV migration per receiving rank; 0: free
  double kv_bytes_per_token = 0;
  double blackout_seconds = 0;          ///< stop of the group per batch of migrations
  double prefill_tokens_per_second = 0; ///< recompute after preemption; 0: free
  std::vector<group_capacity> capacity; ///< KV tokens per rank on this stack; empty: no limit
  std::vector<group_capacity> planned_capacity; ///< the same with resident groups kept
};

/// A decode law in numbers for one group at one batch: ms = constant + per_max_kv * max_kv.
struct step_cost {
  double constant_ms = 0;
  double per_max_kv_ms = 0;
};

/// Laws of sizes that are not listed are interpolated between the neighbours in log2(size); beyond
/// the ends the end's law holds. `active`: ranks with live requests; `batch`: the largest live
/// count of a rank; `live`: live requests of the group.
step_cost decode_cost(const cost_model& costs, int ranks, int active, int batch, int live);

/// Pause of an exit, paid by the whole old group: the direct jump's own figure, else the sum of its
/// listed stages, else interpolated between listed neighbours, else the default.
double exit_seconds(const cost_model& costs, int from, int to);

/// Seconds of a copy of KV tokens to one receiver.
double copy_seconds(const cost_model& costs, double tokens);

/// Reads a cost model (`key = value` lines, and decode, table and exit lines; see
/// config/cost_models/README.md). Errors: bad_input with `file`:line, key and what is allowed.
result<cost_model> parse_cost_model(std::string_view text, std::string_view file);
std::string format_cost_model(const cost_model& costs);

} // namespace adafloor
