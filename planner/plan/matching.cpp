#include "planner/plan/matching.hpp"

#include "planner/plan/blossom.hpp"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/max_cardinality_matching.hpp>

#include <algorithm>

namespace adafloor {

std::optional<mates> cheapest_perfect_matching(const pair_costs& costs) {
  const auto n = costs.size();
  if (n % 2 != 0) return std::nullopt;
  wide_int highest = 0;
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b)
      highest = std::max(highest, costs.at(a, b));
  // So heavy that more pairs always weigh more than cheaper ones.
  wide_int base = (highest + 1) * static_cast<wide_int>(n / 2 + 1);
  blossom_matcher matcher{n};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b)
      if (costs.allowed(a, b)) matcher.set(a + 1, b + 1, base - costs.at(a, b));
  matcher.solve();
  mates out(n);
  for (std::size_t a = 0; a < n; ++a) {
    if (matcher.mate(a + 1) == 0) return std::nullopt;
    out[a] = matcher.mate(a + 1) - 1;
  }
  return out;
}

bool has_perfect_matching(std::size_t size,
                          const std::function<bool(std::size_t, std::size_t)>& allowed) {
  using graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS>;
  graph g(size);
  for (std::size_t a = 0; a < size; ++a)
    for (std::size_t b = a + 1; b < size; ++b)
      if (allowed(a, b)) boost::add_edge(a, b, g);
  std::vector<graph::vertex_descriptor> mate(size);
  boost::edmonds_maximum_cardinality_matching(g, mate.data());
  return std::none_of(mate.begin(), mate.end(), [](auto v) { return v == graph::null_vertex(); });
}

wide_int total_cost(const pair_costs& costs, const mates& matching) {
  wide_int sum = 0;
  for (std::size_t a = 0; a < matching.size(); ++a)
    if (a < matching[a]) sum += costs.at(a, matching[a]);
  return sum;
}

namespace {

std::size_t pairs_inside(const mates& matching, std::size_t nodes) {
  std::size_t count = 0;
  for (std::size_t a = 0; a < nodes; ++a)
    count += matching[a] < a ? 1U : 0U;
  return count;
}

const pair_quota* violated(const std::vector<pair_quota>& quotas, const mates& matching) {
  for (const auto& quota : quotas)
    if (pairs_inside(matching, quota.nodes) < quota.pairs) return &quota;
  return nullptr;
}

// False if even the matching with most pairs inside cannot fulfil the quota.
bool reachable(const pair_costs& costs, const pair_quota& quota) {
  pair_costs count{costs.size()};
  for (std::size_t a = 0; a < costs.size(); ++a)
    for (std::size_t b = a + 1; b < costs.size(); ++b)
      if (costs.allowed(a, b)) count.set(a, b, a < quota.nodes && b >= quota.nodes ? 1 : 0);
  auto best = cheapest_perfect_matching(count);
  return best && pairs_inside(*best, quota.nodes) >= quota.pairs;
}

struct quota_search {
  const std::vector<pair_quota>& quotas;
  std::size_t nodes_left;
  std::optional<mates> best;
  wide_int best_cost = 0;

  void visit(const pair_costs& costs) {
    if (nodes_left == 0) return;
    --nodes_left;
    auto found = cheapest_perfect_matching(costs);
    if (!found) return;
    auto cost = total_cost(costs, *found);
    if (best && cost >= best_cost) return;
    const auto* broken = violated(quotas, *found);
    if (broken == nullptr) {
      best = std::move(found);
      best_cost = cost;
      return;
    }
    if (!reachable(costs, *broken)) return;
    // Branch on a crossing pair that is still a choice; if all are forced nothing is left to try.
    std::size_t a = 0;
    while (a < broken->nodes && ((*found)[a] < broken->nodes || forced(costs, a, (*found)[a])))
      ++a;
    if (a == broken->nodes) return;
    auto b = (*found)[a];
    pair_costs branch = costs;
    branch.forbid(a, b);
    visit(branch);
    branch = costs;
    for (std::size_t x = 0; x < costs.size(); ++x) {
      if (x != b) branch.forbid(a, x);
      if (x != a) branch.forbid(b, x);
    }
    visit(branch);
  }

  static bool forced(const pair_costs& costs, std::size_t a, std::size_t b) {
    for (std::size_t x = 0; x < costs.size(); ++x)
      if (x != b && costs.allowed(a, x)) return false;
    return true;
  }
};

} // namespace

std::optional<mates> cheapest_with_quotas(const pair_costs& costs,
                                          const std::vector<pair_quota>& quotas,
                                          std::size_t node_limit) {
  for (const auto& quota : quotas) {
    // Even with nobody crossing the border there are too few nodes.
    if (quota.nodes / 2 < quota.pairs) return std::nullopt;
  }
  quota_search search{quotas, node_limit, std::nullopt, 0};
  search.visit(costs);
  return search.best;
}

} // namespace adafloor
