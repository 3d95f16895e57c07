#pragma once
// Maximum-weight matching on a general graph; the engine room of matching.cpp.
#include "planner/plan/matching.hpp"

#include <deque>

namespace adafloor {

/// Primal-dual with explicit blossoms. Nodes are 1..n, blossoms n+1..2n; 0 is "none". An edge of
/// weight 0 is absent. Call solve() once and read mate(v).
class blossom_matcher {
public:
  explicit blossom_matcher(std::size_t nodes);
  void set(std::size_t u, std::size_t v, wide_int weight);
  void solve();
  std::size_t mate(std::size_t v) const { return mate_[v]; }

private:
  struct edge {
    std::size_t u = 0, v = 0;
    wide_int weight = 0;
  };
  enum label_kind : std::int8_t { free_node = -1, outer = 0, inner = 1 };

  edge& at(std::size_t u, std::size_t v) { return edges_[u * stride_ + v]; }
  std::size_t& from(std::size_t b, std::size_t x) { return from_[b * (n_ + 1) + x]; }
  wide_int slack(const edge& e) { return dual_[e.u] + dual_[e.v] - at(e.u, e.v).weight * 2; }
  void update_slack(std::size_t u, std::size_t x);
  void set_slack(std::size_t x);
  void push(std::size_t x);
  void set_base(std::size_t x, std::size_t base);
  std::size_t rotate(std::size_t b, std::size_t x);
  void set_mate(std::size_t u, std::size_t v);
  void augment(std::size_t u, std::size_t v);
  std::size_t common_ancestor(std::size_t u, std::size_t v);
  void shrink(std::size_t u, std::size_t ancestor, std::size_t v);
  void expand(std::size_t b);
  bool on_tight_edge(const edge& e);
  bool grow();
  bool adjust_duals();
  bool phase();

  std::size_t n_, used_, stride_, stamp_ = 0;
  std::vector<edge> edges_;
  std::vector<wide_int> dual_;
  std::vector<std::size_t> mate_, slack_, base_, parent_, seen_, from_;
  std::vector<label_kind> label_;
  std::vector<std::vector<std::size_t>> flower_;
  std::deque<std::size_t> queue_;
};

} // namespace adafloor
