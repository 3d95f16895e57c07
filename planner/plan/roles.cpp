#include "planner/plan/roles.hpp"

#include <algorithm>
#include <tuple>

namespace adafloor {

std::optional<int> next_group(const std::vector<planned_exit>& exits, int group, int needed,
                              bool direct) {
  std::optional<int> best;
  for (const auto& exit : exits) {
    if (exit.to >= group || exit.to < needed) continue;
    if (!best || (direct ? exit.to < *best : exit.to > *best)) best = exit.to;
  }
  return best;
}

namespace {

bool contains(const std::vector<rank_id>& list, rank_id rank) {
  return std::find(list.begin(), list.end(), rank) != list.end();
}

} // namespace

result<std::vector<rank_id>> survivors_for(const std::vector<rank_id>& unfinished,
                                           const std::vector<rank_id>& members, int size) {
  auto wanted = static_cast<std::size_t>(std::max(size, 0));
  if (size < 1 || wanted > members.size())
    return bad_input("survivors: a group of " + std::to_string(members.size())
                     + " ranks cannot become " + std::to_string(size) + "; allowed: 1.."
                     + std::to_string(members.size()));
  if (unfinished.size() > wanted)
    return bad_input("survivors: " + std::to_string(unfinished.size())
                     + " ranks are unfinished, more than the " + std::to_string(size)
                     + " that would stay; wait or migrate their requests");
  for (auto rank : unfinished)
    if (!contains(members, rank))
      return bad_input("survivors: rank " + std::to_string(rank.value)
                       + " is unfinished but no member of the group");
  std::vector<rank_id> order = members, out = unfinished;
  std::sort(order.begin(), order.end());
  for (auto rank : order)
    if (out.size() < wanted && !contains(unfinished, rank)) out.push_back(rank);
  std::sort(out.begin(), out.end());
  return out;
}

result<std::vector<rank_id>> planned_survivors(const std::vector<rank_id>& members, int size) {
  if (size < 1 || static_cast<std::size_t>(size) > members.size())
    return bad_input("survivors: a group of " + std::to_string(members.size())
                     + " ranks cannot become " + std::to_string(size));
  std::vector<rank_id> order = members;
  std::sort(order.begin(), order.end());
  order.erase(order.begin(), order.end() - size);
  return order;
}

double future_peak(const std::vector<const packed_request*>& requests) {
  std::vector<const packed_request*> order = requests;
  std::sort(order.begin(), order.end(), [](const packed_request* a, const packed_request* b) {
    return a->final_tokens - a->tokens > b->final_tokens - b->tokens;
  });
  double held = 0, peak = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    held += order[k]->tokens;
    peak = std::max(
        peak, held + static_cast<double>(k + 1) * (order[k]->final_tokens - order[k]->tokens));
  }
  return peak;
}

namespace {

struct bin {
  rank_id rank;
  double tokens = 0;
  std::vector<const packed_request*> requests; ///< descending by growth once sorted

  void sort() {
    std::stable_sort(
        requests.begin(), requests.end(),
        [](const packed_request* a, const packed_request* b) { return growth(*a) > growth(*b); });
  }
  static double growth(const packed_request& r) { return r.final_tokens - r.tokens; }
  /// Predicted peak with one more request (or none), in one pass.
  double peak_with(const packed_request* added) const {
    double held = 0, peak = 0, count = 0;
    auto take = [&](const packed_request& r) {
      held += r.tokens;
      peak = std::max(peak, held + ++count * growth(r));
    };
    for (const auto* r : requests) {
      if (added != nullptr && growth(*added) > growth(*r)) {
        take(*added);
        added = nullptr;
      }
      take(*r);
    }
    if (added != nullptr) take(*added);
    return peak;
  }
  void insert(const packed_request* added) {
    auto place = std::find_if(requests.begin(), requests.end(),
                              [&](const packed_request* r) { return growth(*added) > growth(*r); });
    requests.insert(place, added);
  }
};

bool fits(double count, double peak, const pack_limits& limits) {
  return count <= limits.max_num_seqs
         && (limits.capacity_tokens <= 0 || peak <= limits.capacity_tokens);
}

} // namespace

std::optional<packing> pack_live(const std::vector<packed_request>& live,
                                 const std::vector<rank_id>& members, int size,
                                 const pack_limits& limits) {
  auto wanted = static_cast<std::size_t>(std::max(size, 0));
  if (size < 1 || wanted > members.size()
      || live.size() > wanted * static_cast<std::size_t>(std::max(limits.max_num_seqs, 0)))
    return std::nullopt;
  std::vector<bin> bins;
  for (auto rank : members)
    bins.push_back({rank, 0, {}});
  std::sort(bins.begin(), bins.end(), [](const bin& a, const bin& b) { return a.rank < b.rank; });
  for (const auto& request : live) {
    auto place = std::lower_bound(bins.begin(), bins.end(), request.rank,
                                  [](const bin& b, rank_id r) { return b.rank < r; });
    if (place == bins.end() || place->rank != request.rank) return std::nullopt;
    place->requests.push_back(&request);
    place->tokens += request.tokens;
  }
  if (limits.planned)
    std::reverse(bins.begin(), bins.end());
  else
    std::stable_sort(bins.begin(), bins.end(), [](const bin& a, const bin& b) {
      return std::tuple(b.requests.size(), b.tokens) < std::tuple(a.requests.size(), a.tokens);
    });
  std::vector<const packed_request*> movers;
  for (std::size_t i = wanted; i < bins.size(); ++i)
    movers.insert(movers.end(), bins[i].requests.begin(), bins[i].requests.end());
  bins.resize(wanted);
  packing out;
  for (auto& b : bins) {
    out.survivors.push_back(b.rank);
    b.sort();
    // A survivor that is too full itself gives away what grows most.
    while (!b.requests.empty()
           && !fits(static_cast<double>(b.requests.size()), b.peak_with(nullptr), limits)) {
      movers.push_back(b.requests.front());
      b.requests.erase(b.requests.begin());
    }
  }
  std::sort(movers.begin(), movers.end(), [](const packed_request* a, const packed_request* b) {
    return std::tuple(-a->final_tokens, a->request) < std::tuple(-b->final_tokens, b->request);
  });
  for (const auto* mover : movers) {
    bin* best = nullptr;
    double best_peak = 0;
    for (auto& b : bins) {
      if (static_cast<int>(b.requests.size()) >= limits.max_num_seqs) continue;
      double peak = b.peak_with(mover);
      if (fits(0, peak, limits) && (best == nullptr || peak < best_peak)) {
        best = &b;
        best_peak = peak;
      }
    }
    if (best == nullptr) return std::nullopt;
    best->insert(mover);
    if (mover->rank != best->rank) out.moves.push_back({mover->request, mover->rank, best->rank});
  }
  std::sort(out.survivors.begin(), out.survivors.end());
  return out;
}

} // namespace adafloor
