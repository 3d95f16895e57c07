#pragma once
// Exact minimum-cost perfect matching on general graphs, integers only.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace adafloor {

__extension__ typedef __int128 wide_int;

/// A complete graph on `size` nodes; pairs that may not be matched have no cost.
class pair_costs {
public:
  explicit pair_costs(std::size_t size) : size_(size), cost_(size * size, forbidden) {}
  std::size_t size() const { return size_; }
  /// Cost of a pair, >= 0; symmetrical.
  void set(std::size_t a, std::size_t b, wide_int cost) {
    cost_[a * size_ + b] = cost_[b * size_ + a] = cost;
  }
  void forbid(std::size_t a, std::size_t b) { set(a, b, forbidden); }
  bool allowed(std::size_t a, std::size_t b) const { return at(a, b) != forbidden; }
  wide_int at(std::size_t a, std::size_t b) const { return cost_[a * size_ + b]; }

private:
  static constexpr wide_int forbidden = -1;
  std::size_t size_;
  std::vector<wide_int> cost_;
};

/// mate[i] = j; every node has one.
using mates = std::vector<std::size_t>;

/// The perfect matching of least total cost, or nothing if there is none. Weighted blossom method
/// in O(size^3) (Edmonds 1965; formulation of Galil, Computing Surveys 18(1), 1986). Own code,
/// because the weighted matching of Boost.Graph 1.74 loops or crashes on graphs with missing edges;
/// the tests compare it with exhaustive search. Costs times 4 * size must fit 126 bits.
std::optional<mates> cheapest_perfect_matching(const pair_costs& costs);

/// True if a perfect matching of allowed pairs exists (Boost.Graph, maximum cardinality).
bool has_perfect_matching(std::size_t size,
                          const std::function<bool(std::size_t, std::size_t)>& allowed);

/// Total cost of a matching.
wide_int total_cost(const pair_costs& costs, const mates& matching);

/// At least `pairs` pairs must lie wholly inside the first `nodes` nodes.
struct pair_quota {
  std::size_t nodes = 0;
  std::size_t pairs = 0;
};

/// The cheapest perfect matching that fulfils nested quotas (an exact 0/1 programme): branch and
/// bound over the pairs that cross a violated quota's border, with the unconstrained matching as
/// bound. Beyond `node_limit` branches the best found so far is returned.
std::optional<mates> cheapest_with_quotas(const pair_costs& costs,
                                          const std::vector<pair_quota>& quotas,
                                          std::size_t node_limit = 400);

} // namespace adafloor
