#pragma once
// Whether to shrink now, to which size, and who moves: called by the simulator and by the runtime.
#include "planner/plan/plan.hpp"

#include <memory>

namespace adafloor {

class survival_model;

/// A request as the decision sees it: where it is and what it has generated.
struct exit_request {
  std::uint64_t request = 0;
  std::size_t prompt = 0; ///< index into the workload
  rank_id rank;
  double tokens = 0;      ///< response tokens so far
  double held_prompt = 0; ///< prompt tokens that count against the pool
};

struct exit_view {
  std::vector<rank_id> members;   ///< of the present group, ascending
  std::vector<exit_request> live; ///< every unfinished request of the step, waiting ones included
  double step = 0;                ///< decode steps so far
};

/// `to` equal to the present size: no exit, only moves that leave fewer ranks with work (where the
/// cost model says that a decode step gets cheaper with each rank that has none).
struct exit_choice {
  int to = 0;
  std::vector<rank_id> survivors; ///< ascending
  std::vector<request_move> moves;
};

/// What a decider remembers between calls within one step, so that it need not try again after
/// every completion what cannot have changed. Start each step with a fresh one.
struct exit_memory {
  int refused_group = 0;       ///< group in which an exit was last refused
  int refused_live = 0;        ///< live requests then
  int patience = 64;           ///< look again when a share of 1/patience of them has ended
  int repacked_live = 1 << 30; ///< live requests when packing within the group was last considered
  std::shared_ptr<const survival_model> survival;
  /// Final length of each request in each scenario. A draw stays valid while the request has not
  /// outlived it, and is repeated, conditioned on survival, when it has.
  std::vector<std::vector<double>> finals;
  std::uint64_t draws = 0;
};

/// True if calling decide_exit can be of use: `counts` are the unfinished requests of each member
/// of the group, in any order. Cheap.
bool may_exit(const step_plan& plan, const plan_options& options, const std::vector<int>& counts,
              const exit_memory& memory);

/// The exit to take now, or nothing. Deterministic; uses only what a runtime knows. Policies
/// without exits never leave; natural residency leaves as soon as the unfinished ranks fit the next
/// planned size; planned residency when its donors are done. Migration moves what blocks an exit
/// whose time has come (up to `stragglers_max` requests), or, with consolidate, whatever packs into
/// fewer ranks. `adaptive` leaves only if the exit is expected to pay over the resampled futures.
std::optional<exit_choice> decide_exit(const step_plan& plan, const plan_options& options,
                                       const std::vector<predicted_prompt>& predicted,
                                       const exit_view& view, exit_memory& memory);

/// Predicted final response tokens of each live request of the view: the k live requests of a
/// prompt take the k longest lengths of its history times the KV margin, at least one more token
/// than they have, at most the limit.
std::vector<double> predicted_finals(const plan_options& options,
                                     const std::vector<predicted_prompt>& predicted,
                                     const std::vector<exit_request>& live, std::int32_t cap);

} // namespace adafloor
