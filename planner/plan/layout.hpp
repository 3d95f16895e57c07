#pragma once
// Which prompts form a step, and which rank gets which.
#include "planner/plan/kv_peak.hpp"
#include "planner/plan/matching.hpp"

#include <optional>
#include <vector>

namespace adafloor {

/// One or more prompts that go to the same rank together. Units of a step are sorted by tail.
struct layout_unit {
  std::vector<std::size_t> prompts; ///< indices into the epoch's predictions; empty: padding
  std::int64_t tail = 0;            ///< predicted longest response, tokens, rounded
  std::int64_t tokens = 0;          ///< predicted total response tokens
  std::vector<kv_item> items;       ///< descending
};

/// All prompts in order of predicted tail (ties: dataset order), cut into steps of `per_step`; the
/// last step may be smaller. With sort = false in dataset order.
std::vector<std::vector<std::size_t>> cut_steps(const std::vector<predicted_prompt>& prompts,
                                                std::size_t per_step, bool sort);

/// The step's units, ascending by tail: exactly 2 * world of them if it has more prompts than
/// ranks, padded with empty ones or bundled from sorted neighbours, shortest first; else one unit
/// per prompt.
std::vector<layout_unit> make_units(const std::vector<predicted_prompt>& prompts,
                                    const std::vector<std::size_t>& step, std::size_t world,
                                    const kv_options& kv);

/// A_mu of two units on one rank.
milli_tokens pair_peak(const layout_unit& a, const layout_unit& b);

/// The smallest possible largest A_mu over perfect matchings of the units (bottleneck matching); of
/// single units the largest A_mu.
milli_tokens smallest_peak(const std::vector<layout_unit>& units, std::size_t world);

/// Pair costs, lexicographic: |m_i - m_j|, A_mu, squared token sum, packed into one integer. The
/// larger m needs no place of its own: over perfect matchings its sum is (gap sum + sum of all
/// m) / 2. Pairs with A_mu above `capacity` are forbidden.
pair_costs layout_costs(const std::vector<layout_unit>& units, milli_tokens capacity);

/// Exact up to this many units; beyond, blocks of so many sorted neighbours are matched exactly.
constexpr std::size_t exact_units_max = 64;

/// Minimum-gap matching under the capacity, or nothing if there is none. At most one unit per rank:
/// an empty matching, if each fits.
std::optional<mates> match_units(const std::vector<layout_unit>& units, std::size_t world,
                                 milli_tokens capacity);

/// Largest A_mu over the ranks of a matching.
milli_tokens largest_peak(const std::vector<layout_unit>& units, const mates& matching);

/// Prompts per rank from matched units, ordered by tail so that the last ranks end last. Ranks
/// without work come first, with empty lists.
std::vector<std::vector<std::size_t>> rank_lists(const std::vector<layout_unit>& units,
                                                 const mates& matching, std::size_t world);

/// Steps that cannot fit `capacity` swap single prompts with near steps (planner.md section 3):
/// at most 8 swaps, window 8, accepted only if the neighbour stays feasible and the overflow falls.
/// Returns the number of swaps.
int repair_steps(std::vector<std::vector<std::size_t>>& steps,
                 const std::vector<predicted_prompt>& prompts, std::size_t world,
                 const kv_options& kv, milli_tokens capacity);

} // namespace adafloor
