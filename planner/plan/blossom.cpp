#include "planner/plan/blossom.hpp"

#include <algorithm>

namespace adafloor {

blossom_matcher::blossom_matcher(std::size_t nodes)
  : n_(nodes), used_(nodes), stride_(2 * nodes + 2), edges_(stride_ * stride_), dual_(stride_, 0),
    mate_(stride_, 0), slack_(stride_, 0), base_(stride_, 0), parent_(stride_, 0),
    seen_(stride_, 0), from_(stride_ * (nodes + 1), 0), label_(stride_, free_node),
    flower_(stride_) {
  for (std::size_t u = 1; u <= n_; ++u)
    for (std::size_t v = 1; v <= n_; ++v)
      at(u, v) = {u, v, 0};
}

void blossom_matcher::set(std::size_t u, std::size_t v, wide_int weight) {
  at(u, v).weight = at(v, u).weight = weight;
}

void blossom_matcher::update_slack(std::size_t u, std::size_t x) {
  if (slack_[x] == 0 || slack(at(u, x)) < slack(at(slack_[x], x))) slack_[x] = u;
}

void blossom_matcher::set_slack(std::size_t x) {
  slack_[x] = 0;
  for (std::size_t u = 1; u <= n_; ++u)
    if (at(u, x).weight > 0 && base_[u] != x && label_[base_[u]] == outer) update_slack(u, x);
}

void blossom_matcher::push(std::size_t x) {
  if (x <= n_) {
    queue_.push_back(x);
    return;
  }
  for (auto part : flower_[x])
    push(part);
}

void blossom_matcher::set_base(std::size_t x, std::size_t base) {
  base_[x] = base;
  if (x > n_)
    for (auto part : flower_[x])
      set_base(part, base);
}

// Place of sub-blossom x in b's cycle, turned round so that the way to it is even.
std::size_t blossom_matcher::rotate(std::size_t b, std::size_t x) {
  auto& cycle = flower_[b];
  auto place = static_cast<std::size_t>(std::find(cycle.begin(), cycle.end(), x) - cycle.begin());
  if (place % 2 == 0) return place;
  std::reverse(cycle.begin() + 1, cycle.end());
  return cycle.size() - place;
}

void blossom_matcher::set_mate(std::size_t u, std::size_t v) {
  mate_[u] = at(u, v).v;
  if (u <= n_) return;
  edge e = at(u, v);
  auto x = from(u, e.u);
  auto place = rotate(u, x);
  for (std::size_t i = 0; i < place; ++i)
    set_mate(flower_[u][i], flower_[u][i ^ 1]);
  set_mate(x, v);
  std::rotate(flower_[u].begin(), flower_[u].begin() + static_cast<std::ptrdiff_t>(place),
              flower_[u].end());
}

void blossom_matcher::augment(std::size_t u, std::size_t v) {
  for (;;) {
    auto next = base_[mate_[u]];
    set_mate(u, v);
    if (next == 0) return;
    set_mate(next, base_[parent_[next]]);
    u = base_[parent_[next]];
    v = next;
  }
}

std::size_t blossom_matcher::common_ancestor(std::size_t u, std::size_t v) {
  for (++stamp_; u != 0 || v != 0; std::swap(u, v)) {
    if (u == 0) continue;
    if (seen_[u] == stamp_) return u;
    seen_[u] = stamp_;
    u = base_[mate_[u]];
    if (u != 0) u = base_[parent_[u]];
  }
  return 0;
}

void blossom_matcher::shrink(std::size_t u, std::size_t ancestor, std::size_t v) {
  std::size_t b = n_ + 1;
  while (b <= used_ && base_[b] != 0)
    ++b;
  used_ = std::max(used_, b);
  dual_[b] = 0;
  label_[b] = outer;
  mate_[b] = mate_[ancestor];
  auto& cycle = flower_[b];
  cycle.assign(1, ancestor);
  for (std::size_t x = u, y; x != ancestor; x = base_[parent_[y]]) {
    cycle.push_back(x);
    cycle.push_back(y = base_[mate_[x]]);
    push(y);
  }
  std::reverse(cycle.begin() + 1, cycle.end());
  for (std::size_t x = v, y; x != ancestor; x = base_[parent_[y]]) {
    cycle.push_back(x);
    cycle.push_back(y = base_[mate_[x]]);
    push(y);
  }
  set_base(b, b);
  for (std::size_t x = 1; x <= used_; ++x)
    at(b, x).weight = at(x, b).weight = 0;
  for (std::size_t x = 1; x <= n_; ++x)
    from(b, x) = 0;
  for (auto part : cycle) {
    for (std::size_t x = 1; x <= used_; ++x)
      if (at(b, x).weight == 0 || slack(at(part, x)) < slack(at(b, x))) {
        at(b, x) = at(part, x);
        at(x, b) = at(x, part);
      }
    for (std::size_t x = 1; x <= n_; ++x)
      if (from(part, x) != 0) from(b, x) = part;
  }
  set_slack(b);
}

void blossom_matcher::expand(std::size_t b) {
  for (auto part : flower_[b])
    set_base(part, part);
  auto x = from(b, at(b, parent_[b]).u);
  auto place = rotate(b, x);
  for (std::size_t i = 0; i < place; i += 2) {
    auto part = flower_[b][i], next = flower_[b][i + 1];
    parent_[part] = at(next, part).u;
    label_[part] = inner;
    label_[next] = outer;
    slack_[part] = 0;
    set_slack(next);
    push(next);
  }
  label_[x] = inner;
  parent_[x] = parent_[b];
  for (std::size_t i = place + 1; i < flower_[b].size(); ++i) {
    label_[flower_[b][i]] = free_node;
    set_slack(flower_[b][i]);
  }
  base_[b] = 0;
}

// Takes a tight edge into the forest; true if it completed an augmenting path.
bool blossom_matcher::on_tight_edge(const edge& e) {
  auto u = base_[e.u], v = base_[e.v];
  if (label_[v] == free_node) {
    parent_[v] = e.u;
    label_[v] = inner;
    auto next = base_[mate_[v]];
    slack_[v] = slack_[next] = 0;
    label_[next] = outer;
    push(next);
  } else if (label_[v] == outer) {
    auto ancestor = common_ancestor(u, v);
    if (ancestor == 0) {
      augment(u, v);
      augment(v, u);
      return true;
    }
    shrink(u, ancestor, v);
  }
  return false;
}

bool blossom_matcher::grow() {
  while (!queue_.empty()) {
    auto u = queue_.front();
    queue_.pop_front();
    if (label_[base_[u]] == inner) continue;
    for (std::size_t v = 1; v <= n_; ++v) {
      if (at(u, v).weight <= 0 || base_[u] == base_[v]) continue;
      if (slack(at(u, v)) == 0) {
        if (on_tight_edge(edge{at(u, v)})) return true;
      } else {
        update_slack(u, base_[v]);
      }
    }
  }
  return false;
}

// False once no dual change can help any more.
bool blossom_matcher::adjust_duals() {
  bool bounded = false;
  wide_int delta = 0;
  auto bound = [&](wide_int value) {
    if (!bounded || value < delta) delta = value;
    bounded = true;
  };
  for (std::size_t b = n_ + 1; b <= used_; ++b)
    if (base_[b] == b && label_[b] == inner) bound(dual_[b] / 2);
  for (std::size_t x = 1; x <= used_; ++x) {
    if (base_[x] != x || slack_[x] == 0) continue;
    if (label_[x] == free_node) bound(slack(at(slack_[x], x)));
    if (label_[x] == outer) bound(slack(at(slack_[x], x)) / 2);
  }
  for (std::size_t u = 1; u <= n_; ++u)
    if (label_[base_[u]] == outer && (!bounded || dual_[u] <= delta)) return false;
  for (std::size_t u = 1; u <= n_; ++u) {
    if (label_[base_[u]] == outer) dual_[u] -= delta;
    if (label_[base_[u]] == inner) dual_[u] += delta;
  }
  for (std::size_t b = n_ + 1; b <= used_; ++b) {
    if (base_[b] != b) continue;
    if (label_[b] == outer) dual_[b] += delta * 2;
    if (label_[b] == inner) dual_[b] -= delta * 2;
  }
  return true;
}

// One augmentation; false when the matching is of maximum weight.
bool blossom_matcher::phase() {
  std::fill(label_.begin(), label_.end(), free_node);
  std::fill(slack_.begin(), slack_.end(), 0);
  queue_.clear();
  for (std::size_t x = 1; x <= used_; ++x)
    if (base_[x] == x && mate_[x] == 0) {
      parent_[x] = 0;
      label_[x] = outer;
      push(x);
    }
  if (queue_.empty()) return false;
  for (;;) {
    if (grow()) return true;
    if (!adjust_duals()) return false;
    queue_.clear();
    for (std::size_t x = 1; x <= used_; ++x)
      if (base_[x] == x && slack_[x] != 0 && base_[slack_[x]] != x && slack(at(slack_[x], x)) == 0
          && on_tight_edge(edge{at(slack_[x], x)}))
        return true;
    for (std::size_t b = n_ + 1; b <= used_; ++b)
      if (base_[b] == b && label_[b] == inner && dual_[b] == 0) expand(b);
  }
}

void blossom_matcher::solve() {
  wide_int heaviest = 0;
  for (std::size_t u = 0; u <= n_; ++u) {
    base_[u] = u;
    flower_[u].clear();
  }
  for (std::size_t u = 1; u <= n_; ++u)
    for (std::size_t v = 1; v <= n_; ++v) {
      from(u, v) = u == v ? u : 0;
      heaviest = std::max(heaviest, at(u, v).weight);
    }
  for (std::size_t u = 1; u <= n_; ++u)
    dual_[u] = heaviest;
  while (phase()) {
  }
}

} // namespace adafloor
