#include "planner/plan/future.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace adafloor {

future_rules rules_for(const step_plan& plan, const plan_options& options, int group) {
  future_rules rules;
  rules.sizes.push_back(group);
  for (const auto& exit : plan.exits)
    if (exit.to < group) rules.sizes.push_back(exit.to);
  std::sort(rules.sizes.begin(), rules.sizes.end(), std::greater<>{});
  for (int size : rules.sizes)
    rules.capacity.push_back(options.resize_pool
                                 ? capacity_at(options.capacities, size, options.experts)
                                 : plan.capacity_tokens);
  if (options.migrate == migrate_kind::stragglers) rules.movable = options.stragglers_max;
  if (options.migrate == migrate_kind::consolidate) rules.movable = std::numeric_limits<int>::max();
  rules.planned = options.residency == residency_kind::planned;
  return rules;
}

namespace {

constexpr std::size_t moments_max = 24;

// Lengths by rank and overall, ascending, as steps from now at which requests end.
struct endings {
  std::vector<std::vector<double>> by_rank; ///< in order of members
  std::vector<double> all;
  double held = 0; ///< tokens now, all requests
};

// All sorted lists in one, by merging neighbours.
std::vector<double> merge_all(const std::vector<std::vector<double>>& lists, std::size_t size) {
  std::vector<double> out;
  out.reserve(size);
  std::vector<std::ptrdiff_t> edges{0};
  for (const auto& list : lists) {
    out.insert(out.end(), list.begin(), list.end());
    if (!list.empty()) edges.push_back(static_cast<std::ptrdiff_t>(out.size()));
  }
  while (edges.size() > 2) {
    std::vector<std::ptrdiff_t> wider{0};
    for (std::size_t i = 2; i < edges.size(); i += 2) {
      std::inplace_merge(out.begin() + edges[i - 2], out.begin() + edges[i - 1],
                         out.begin() + edges[i]);
      wider.push_back(edges[i]);
    }
    if (edges.size() % 2 == 0) wider.push_back(edges.back());
    edges = std::move(wider);
  }
  return out;
}

endings endings_of(const exit_view& view, const std::vector<double>& finals) {
  endings out;
  std::vector<double> elsewhere; // on ranks outside the group
  out.by_rank.resize(view.members.size());
  for (auto& list : out.by_rank)
    list.reserve(view.live.size() / view.members.size() + 1);
  for (std::size_t i = 0; i < view.live.size(); ++i) {
    const auto& r = view.live[i];
    auto place = std::lower_bound(view.members.begin(), view.members.end(), r.rank);
    auto end = std::max(1.0, finals[i] - r.tokens);
    const bool member = place != view.members.end() && *place == r.rank;
    auto& list =
        member ? out.by_rank[static_cast<std::size_t>(place - view.members.begin())] : elsewhere;
    list.push_back(end);
    out.held += r.tokens + r.held_prompt;
  }
  for (auto& rank : out.by_rank)
    std::sort(rank.begin(), rank.end());
  out.all = merge_all(out.by_rank, view.live.size());
  if (elsewhere.empty()) return out;
  out.all.insert(out.all.end(), elsewhere.begin(), elsewhere.end());
  std::sort(out.all.begin(), out.all.end());
  return out;
}

double alive(const std::vector<double>& ascending, double at) {
  return static_cast<double>(ascending.end()
                             - std::upper_bound(ascending.begin(), ascending.end(), at));
}

// Moments at which something ends; with few endings all of them, and then costs are exact.
std::vector<double> moments_of(const std::vector<double>& ends, bool* exact) {
  std::vector<double> out{0};
  for (double at : ends) {
    if (at > out.back()) out.push_back(at);
    if (out.size() > moments_max) break;
  }
  *exact = out.size() <= moments_max;
  if (*exact) return out;
  // Evenly over the endings, then at each halving of what is left: small groups live in the tail,
  // whose last completions each get a moment of their own.
  std::vector<std::size_t> picks;
  for (std::size_t k = 1; k < moments_max; ++k)
    picks.push_back(k * ends.size() / moments_max);
  for (std::size_t left = ends.size() / (2 * moments_max); left > 6; left /= 2)
    picks.push_back(ends.size() - left);
  for (std::size_t left = std::min<std::size_t>(6, ends.size()); left > 0; --left)
    picks.push_back(ends.size() - left);
  out.assign(1, 0);
  for (auto pick : picks)
    if (ends[pick] > out.back()) out.push_back(ends[pick]);
  return out;
}

// What the requests alive at one moment look like.
struct moment_state {
  double live = 0, active = 0, widest = 0; ///< requests, ranks with some, most tokens on a rank
  double left = 0;                         ///< planned residency: first members that are done
  std::vector<double> below;               ///< below[i]: requests on the i emptiest members
};

moment_state state_at(const endings& ends, double held_each, double at) {
  moment_state s;
  s.below.reserve(ends.by_rank.size() + 1);
  s.below.push_back(0);
  bool done = true;
  for (const auto& rank : ends.by_rank) {
    double n = alive(rank, at);
    s.below.push_back(n);
    s.live += n;
    s.active += n > 0 ? 1 : 0;
    s.widest = std::max(s.widest, n * (held_each + at));
    done = done && n == 0;
    s.left += done ? 1 : 0;
  }
  std::sort(s.below.begin() + 1, s.below.end());
  for (std::size_t i = 1; i < s.below.size(); ++i)
    s.below[i] += s.below[i - 1];
  return s;
}

bool possible(const moment_state& s, const future_rules& rules, std::size_t size, double peak,
              const plan_options& options) {
  auto h = static_cast<std::size_t>(rules.sizes[size]);
  auto members = s.below.size() - 1;
  auto leavers = members > h ? members - h : 0;
  if (rules.planned && rules.movable == 0) return s.left >= static_cast<double>(leavers);
  double moved = s.below[leavers];
  if (moved > rules.movable) return false;
  if (moved == 0) return true;
  return s.live <= static_cast<double>(h) * options.max_num_seqs
         && peak <= static_cast<double>(h) * static_cast<double>(rules.capacity[size]);
}

// `requests`: alive on average until the next moment.
double step_ms(const moment_state& s, double requests, const future_rules& rules, std::size_t size,
               double tokens, const plan_options& options) {
  int h = rules.sizes[size];
  int live = std::max(1, static_cast<int>(requests));
  int active = std::max(1, static_cast<int>(s.active));
  if (size > 0 && rules.movable > 0) active = std::max(1, std::min(h, live));
  if (rules.movable == std::numeric_limits<int>::max()) // as far as packing can go
    active = std::min(active, (live + options.max_num_seqs - 1) / options.max_num_seqs + 1);
  active = std::min(active, h);
  // Without migration everything stays where it is, whatever the size.
  bool stays = size == 0 || rules.movable == 0;
  double widest = stays ? s.widest : std::max(tokens, 1.1 * tokens * live / h);
  int batch = std::min(options.max_num_seqs, (live + active - 1) / active);
  auto cost = decode_cost(options.costs, h, active, batch, live);
  return cost.constant_ms + cost.per_max_kv_ms * widest;
}

} // namespace

exit_future build_future(const exit_view& view, const std::vector<double>& finals,
                         const future_rules& rules, const plan_options& options) {
  constexpr auto never = std::numeric_limits<std::size_t>::max();
  exit_future out;
  out.sizes = rules.sizes;
  auto ends = endings_of(view, finals);
  bool exact = false;
  auto moments = moments_of(ends.all, &exact);
  auto count = moments.size() - 1;
  double each = ends.held / static_cast<double>(std::max<std::size_t>(1, view.live.size()));
  out.cost.assign(rules.sizes.size(), std::vector<double>(count, 0));
  out.earliest.assign(rules.sizes.size(), never);
  out.earliest[0] = 0;
  double margin = options.kv.margin_milli / 1000.0, peak = 0, after_live = 0;
  for (std::size_t k = count; k-- > 0;) {
    auto start = state_at(ends, each, moments[k]);
    const double live = start.live;
    const double middle_live = exact ? live : (live + after_live) / 2;
    after_live = live;
    peak = std::max(peak, live * (each + moments[k + 1]) * margin);
    double steps = moments[k + 1] - moments[k];
    double tokens = each + (moments[k] + moments[k + 1] + 1) / 2;
    for (std::size_t s = 0; s < rules.sizes.size(); ++s) {
      double held = (options.lambda - 1) * options.world + rules.sizes[s];
      out.cost[s][k] = held * steps * step_ms(start, middle_live, rules, s, tokens, options) / 1000;
      if (s > 0 && possible(start, rules, s, peak, options)) out.earliest[s] = k;
    }
  }
  return out;
}

exit_worth expected_values(const exit_view& view, const future_rules& rules,
                           const std::vector<std::vector<double>>& futures,
                           const plan_options& options) {
  auto sizes = rules.sizes.size();
  exit_worth mean{std::vector<double>(sizes, 0), std::vector<double>(sizes, 0)};
  for (const auto& finals : futures) {
    auto one = exit_values(build_future(view, finals, rules, options), options.costs,
                           options.lambda, options.world);
    for (std::size_t i = 0; i < sizes; ++i) {
      mean.now[i] += one.now[i];
      mean.wait[i] += std::min(one.wait[i], one.wait[0]);
    }
  }
  for (auto* list : {&mean.now, &mean.wait})
    for (auto& value : *list)
      value /= static_cast<double>(futures.size());
  return mean;
}

std::vector<double> expected_times(const exit_view& view, const future_rules& rules,
                                   const std::vector<std::vector<double>>& futures,
                                   const plan_options& options) {
  std::vector<double> mean(rules.sizes.size(), 0);
  for (const auto& finals : futures) {
    auto future = build_future(view, finals, rules, options);
    bool exact = false;
    auto moments = moments_of(endings_of(view, finals).all, &exact);
    for (std::size_t i = 1; i < mean.size(); ++i)
      mean[i] += (view.step + moments[std::min(future.earliest[i], moments.size() - 1)])
                 / static_cast<double>(futures.size());
  }
  return mean;
}

} // namespace adafloor
