#include "planner/plan/layout.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace adafloor {

std::vector<std::vector<std::size_t>> cut_steps(const std::vector<predicted_prompt>& prompts,
                                                std::size_t per_step, bool sort) {
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (sort)
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return prompts[a].tail < prompts[b].tail;
    });
  std::vector<std::vector<std::size_t>> steps;
  for (std::size_t first = 0; first < order.size(); first += per_step) {
    auto last = std::min(order.size(), first + per_step);
    steps.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(first),
                       order.begin() + static_cast<std::ptrdiff_t>(last));
  }
  return steps;
}

namespace {

layout_unit bundle(const layout_unit& a, const layout_unit& b) {
  layout_unit out = a;
  out.prompts.insert(out.prompts.end(), b.prompts.begin(), b.prompts.end());
  out.tail = std::max(a.tail, b.tail);
  out.tokens = a.tokens + b.tokens;
  out.items.clear();
  std::merge(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
             std::back_inserter(out.items),
             [](const kv_item& x, const kv_item& y) { return x.length > y.length; });
  return out;
}

int bits_of(wide_int value) {
  int bits = 0;
  for (; value > 0; value /= 2)
    ++bits;
  return bits;
}

} // namespace

std::vector<layout_unit> make_units(const std::vector<predicted_prompt>& prompts,
                                    const std::vector<std::size_t>& step, std::size_t world,
                                    const kv_options& kv) {
  std::vector<layout_unit> units;
  for (auto index : step) {
    const auto& p = prompts[index];
    layout_unit unit;
    unit.prompts = {index};
    unit.tail = std::llround(p.tail);
    unit.tokens = std::accumulate(p.lengths.begin(), p.lengths.end(), std::int64_t{0});
    unit.items = kv_items(p, kv);
    units.push_back(std::move(unit));
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const layout_unit& a, const layout_unit& b) { return a.tail < b.tail; });
  if (units.size() <= world) return units;
  while (units.size() > 2 * world) {
    auto pairs = std::min(units.size() / 2, units.size() - 2 * world);
    std::vector<layout_unit> next;
    for (std::size_t i = 0; i < pairs; ++i)
      next.push_back(bundle(units[2 * i], units[2 * i + 1]));
    next.insert(next.end(), units.begin() + static_cast<std::ptrdiff_t>(2 * pairs), units.end());
    std::stable_sort(next.begin(), next.end(),
                     [](const layout_unit& a, const layout_unit& b) { return a.tail < b.tail; });
    units = std::move(next);
  }
  units.insert(units.begin(), 2 * world - units.size(), layout_unit{});
  return units;
}

milli_tokens pair_peak(const layout_unit& a, const layout_unit& b) {
  return kv_peak(std::vector<const std::vector<kv_item>*>{&a.items, &b.items});
}

milli_tokens smallest_peak(const std::vector<layout_unit>& units, std::size_t world) {
  milli_tokens least = 0;
  for (const auto& unit : units)
    least = std::max(least, kv_peak(unit.items));
  if (units.size() <= world) return least;
  auto n = units.size();
  std::vector<milli_tokens> peaks(n * n), values{least};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) {
      peaks[a * n + b] = peaks[b * n + a] = pair_peak(units[a], units[b]);
      if (peaks[a * n + b] >= least) values.push_back(peaks[a * n + b]);
    }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::size_t low = 0, high = values.size() - 1; // the highest value allows every pair
  while (low < high) {
    auto middle = (low + high) / 2;
    bool feasible = has_perfect_matching(
        n, [&](std::size_t a, std::size_t b) { return peaks[a * n + b] <= values[middle]; });
    if (feasible)
      high = middle;
    else
      low = middle + 1;
  }
  return values[low];
}

pair_costs layout_costs(const std::vector<layout_unit>& units, milli_tokens capacity) {
  auto n = units.size();
  pair_costs costs{n};
  struct parts {
    wide_int gap, peak, tokens;
  };
  std::vector<parts> all(n * n);
  parts most{1, 1, 1};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) {
      auto peak = pair_peak(units[a], units[b]);
      if (peak > capacity) continue;
      bool padding = units[a].prompts.empty() || units[b].prompts.empty();
      wide_int tokens = units[a].tokens + units[b].tokens;
      auto& p = all[a * n + b];
      p = {padding ? 0 : std::abs(units[a].tail - units[b].tail), peak, tokens * tokens};
      most = {std::max(most.gap, p.gap), std::max(most.peak, p.peak),
              std::max(most.tokens, p.tokens)};
      costs.set(a, b, 0);
    }
  // Each part gets the room that its sum over a whole matching needs; of the last one the low bits
  // go if 120 bits are not enough.
  auto pairs = bits_of(static_cast<wide_int>(n));
  int peak_bits = bits_of(most.peak) + pairs, token_bits = bits_of(most.tokens) + pairs;
  int over = bits_of(most.gap) + pairs + peak_bits + token_bits + pairs + 3 - 120;
  int cut = std::min(std::max(over, 0), token_bits);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) {
      if (!costs.allowed(a, b)) continue;
      const auto& p = all[a * n + b];
      costs.set(a, b, (((p.gap << peak_bits) + p.peak) << (token_bits - cut)) + (p.tokens >> cut));
    }
  return costs;
}

namespace {

// Longest with shortest: feasible where anything plain is.
std::optional<mates> folded(const std::vector<layout_unit>& units, milli_tokens capacity) {
  auto n = units.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return kv_peak(units[a].items) < kv_peak(units[b].items);
  });
  mates out(n);
  for (std::size_t i = 0; i < n / 2; ++i) {
    auto a = order[i], b = order[n - 1 - i];
    if (pair_peak(units[a], units[b]) > capacity) return std::nullopt;
    out[a] = b;
    out[b] = a;
  }
  return out;
}

} // namespace

milli_tokens largest_peak(const std::vector<layout_unit>& units, const mates& matching) {
  milli_tokens most = 0;
  for (std::size_t a = 0; a < units.size(); ++a)
    most = std::max(most, matching.empty() ? kv_peak(units[a].items)
                                           : pair_peak(units[a], units[matching[a]]));
  return most;
}

std::optional<mates> match_units(const std::vector<layout_unit>& units, std::size_t world,
                                 milli_tokens capacity) {
  if (units.size() <= world) {
    if (largest_peak(units, {}) > capacity) return std::nullopt;
    return mates{};
  }
  if (units.size() <= exact_units_max)
    return cheapest_perfect_matching(layout_costs(units, capacity));
  mates out(units.size());
  for (std::size_t first = 0; first < units.size(); first += exact_units_max) {
    auto last = std::min(units.size(), first + exact_units_max);
    std::vector<layout_unit> block(units.begin() + static_cast<std::ptrdiff_t>(first),
                                   units.begin() + static_cast<std::ptrdiff_t>(last));
    auto found = cheapest_perfect_matching(layout_costs(block, capacity));
    if (!found) return folded(units, capacity);
    for (std::size_t i = 0; i < found->size(); ++i)
      out[first + i] = first + (*found)[i];
  }
  return out;
}

std::vector<std::vector<std::size_t>> rank_lists(const std::vector<layout_unit>& units,
                                                 const mates& matching, std::size_t world) {
  std::vector<std::pair<std::int64_t, std::vector<std::size_t>>> ranks;
  for (std::size_t a = 0; a < units.size(); ++a) {
    if (matching.empty()) {
      ranks.emplace_back(units[a].tail, units[a].prompts);
      continue;
    }
    auto b = matching[a];
    if (b < a) continue;
    auto prompts = units[a].prompts;
    prompts.insert(prompts.end(), units[b].prompts.begin(), units[b].prompts.end());
    ranks.emplace_back(std::max(units[a].tail, units[b].tail), std::move(prompts));
  }
  ranks.resize(std::max(world, ranks.size()));
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(!a.second.empty(), a.first) < std::pair(!b.second.empty(), b.first);
  });
  std::vector<std::vector<std::size_t>> out;
  for (auto& rank : ranks)
    out.push_back(std::move(rank.second));
  return out;
}

namespace {

struct repairer {
  std::vector<std::vector<std::size_t>>& steps;
  const std::vector<predicted_prompt>& prompts;
  std::size_t world;
  const kv_options& kv;
  milli_tokens capacity;

  milli_tokens overflow(const std::vector<std::size_t>& step) const {
    return std::max<milli_tokens>(
        smallest_peak(make_units(prompts, step, world, kv), world) - capacity, 0);
  }

  std::size_t heaviest(const std::vector<std::size_t>& step) const {
    std::size_t best = 0;
    milli_tokens most = -1;
    for (std::size_t i = 0; i < step.size(); ++i) {
      auto peak = kv_peak(kv_items(prompts[step[i]], kv));
      if (peak > most) {
        most = peak;
        best = i;
      }
    }
    return best;
  }

  // One swap of step s's heaviest prompt with a near step; false if none helps.
  bool swap_once(std::size_t s, milli_tokens before, std::size_t window) {
    auto out = heaviest(steps[s]);
    for (std::size_t distance = 1; distance <= window; ++distance)
      for (bool down : {true, false}) {
        if (down ? s < distance : s + distance >= steps.size()) continue;
        auto& other = steps[down ? s - distance : s + distance];
        std::vector<std::size_t> order(other.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return prompts[other[a]].tail < prompts[other[b]].tail;
        });
        order.resize(std::min<std::size_t>(order.size(), 8));
        for (auto i : order) {
          std::swap(steps[s][out], other[i]);
          if (overflow(steps[s]) < before && overflow(other) == 0) return true;
          std::swap(steps[s][out], other[i]);
        }
      }
    return false;
  }
};

} // namespace

int repair_steps(std::vector<std::vector<std::size_t>>& steps,
                 const std::vector<predicted_prompt>& prompts, std::size_t world,
                 const kv_options& kv, milli_tokens capacity) {
  constexpr int swaps_max = 8;
  constexpr std::size_t window = 8;
  repairer repair{steps, prompts, world, kv, capacity};
  int swaps = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (match_units(make_units(prompts, steps[s], world, kv), world, capacity)) continue;
    // A bottleneck matching of a big step costs seconds: there the report of the overflow must do.
    if (2 * world > 4 * exact_units_max) continue;
    auto before = repair.overflow(steps[s]);
    while (before > 0 && swaps < swaps_max && repair.swap_once(s, before, window)) {
      ++swaps;
      before = repair.overflow(steps[s]);
    }
  }
  return swaps;
}

} // namespace adafloor
