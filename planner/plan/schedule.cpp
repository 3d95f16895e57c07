#include "planner/plan/schedule.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>

namespace adafloor {

std::vector<int> stage_sizes(const std::vector<int>& group_sizes, int world, int floor) {
  std::vector<int> out;
  for (int size : group_sizes)
    if (size < world && size >= floor && size >= 1) out.push_back(size);
  std::sort(out.begin(), out.end(), std::greater<>{});
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

double release_area(const std::vector<planned_exit>& exits, int world, double tail) {
  double area = 0;
  int group = world;
  for (const auto& exit : exits) {
    area += (group - exit.to) * (tail - exit.at);
    group = exit.to;
  }
  return area;
}

std::vector<planned_exit> natural_exits(std::vector<double> rank_tails, int world,
                                        const std::vector<int>& stages) {
  std::sort(rank_tails.begin(), rank_tails.end());
  rank_tails.insert(
      rank_tails.begin(),
      static_cast<std::size_t>(std::max(0, world - static_cast<int>(rank_tails.size()))), 0.0);
  std::vector<planned_exit> exits;
  for (int size : stages) {
    auto done = static_cast<std::size_t>(world - size);
    if (done < 1 || done > rank_tails.size()) continue;
    exits.push_back({rank_tails[done - 1], size});
  }
  return exits;
}

namespace {

// Largest tail of each matched pair, or of each unit.
std::vector<double> rank_tails(const std::vector<layout_unit>& units, const mates& matching) {
  std::vector<double> out;
  for (std::size_t a = 0; a < units.size(); ++a) {
    if (matching.empty())
      out.push_back(static_cast<double>(units[a].tail));
    else if (a < matching[a])
      out.push_back(static_cast<double>(std::max(units[a].tail, units[matching[a]].tail)));
  }
  return out;
}

floor_plan finish(const std::vector<layout_unit>& units, mates matching, int floor) {
  floor_plan plan;
  plan.floor = floor;
  plan.peak = largest_peak(units, matching);
  for (const auto& unit : units)
    plan.tail = std::max(plan.tail, static_cast<double>(unit.tail));
  plan.matching = std::move(matching);
  return plan;
}

struct threshold_search {
  const std::vector<layout_unit>& units;
  int world;
  std::vector<int> stages;
  pair_costs costs;
  std::vector<std::int64_t> times;   ///< distinct unit tails, ascending
  std::vector<std::size_t> nodes_by; ///< units that end by times[i]
  double tail;

  std::size_t quota(std::size_t stage) const {
    return static_cast<std::size_t>(world - stages[stage]);
  }

  // First time at which `stage` alone can have its quota; times.size() if never.
  std::size_t earliest(std::size_t stage) const {
    auto possible = [&](std::size_t i) {
      return cheapest_with_quotas(costs, {{nodes_by[i], quota(stage)}}, 2).has_value();
    };
    std::size_t low = 0;
    while (low < times.size() && nodes_by[low] / 2 < quota(stage))
      ++low;
    while (low < times.size() && !possible(low))
      ++low;
    return low;
  }

  double area(const std::vector<std::size_t>& choice) const {
    std::vector<planned_exit> exits;
    for (std::size_t k = 0; k < choice.size(); ++k)
      exits.push_back({static_cast<double>(times[choice[k]]), stages[k]});
    return release_area(exits, world, tail);
  }

  std::optional<floor_plan> run(int floor) const {
    std::vector<std::size_t> start;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      start.push_back(earliest(k));
      if (start.back() == times.size()) return std::nullopt;
      if (k > 0) start[k] = std::max(start[k], start[k - 1]);
    }
    using entry = std::pair<double, std::vector<std::size_t>>;
    std::priority_queue<entry> open;
    std::set<std::vector<std::size_t>> seen{start};
    open.emplace(area(start), start);
    std::optional<floor_plan> best;
    wide_int best_cost = 0;
    for (int tries = 0; !open.empty() && tries < 400; ++tries) {
      auto [value, choice] = open.top();
      open.pop();
      if (best && value < best->area) break;
      if (static_cast<double>(times[choice.back()]) >= tail) continue;
      std::vector<pair_quota> quotas;
      for (std::size_t k = 0; k < choice.size(); ++k)
        quotas.push_back({nodes_by[choice[k]], quota(k)});
      if (auto found = cheapest_with_quotas(costs, quotas)) {
        auto cost = total_cost(costs, *found);
        if (best && cost >= best_cost) continue;
        best_cost = cost;
        best = finish(units, std::move(*found), floor);
        best->area = value;
        for (std::size_t k = 0; k < choice.size(); ++k)
          best->exits.push_back({static_cast<double>(times[choice[k]]), stages[k]});
        continue;
      }
      for (std::size_t k = 0; k < choice.size(); ++k) {
        auto next = choice;
        if (++next[k] == times.size()) continue;
        for (std::size_t j = k + 1; j < next.size(); ++j)
          next[j] = std::max(next[j], next[j - 1]);
        if (seen.insert(next).second) open.emplace(area(next), next);
      }
    }
    return best;
  }
};

// One unit per rank, or too many units for an exact search: the exits follow from the layout.
std::optional<floor_plan> plain_floor(const std::vector<layout_unit>& units, int world, int floor,
                                      const std::vector<int>& stages, milli_tokens capacity) {
  auto matching = match_units(units, static_cast<std::size_t>(world), capacity);
  if (!matching) return std::nullopt;
  auto plan = finish(units, std::move(*matching), floor);
  plan.exits = natural_exits(rank_tails(units, plan.matching), world, stages);
  if (plan.exits.empty() || plan.exits.back().at >= plan.tail) return std::nullopt;
  plan.area = release_area(plan.exits, world, plan.tail);
  return plan;
}

} // namespace

std::optional<floor_plan> paper_floor(const std::vector<layout_unit>& units, int world, int floor,
                                      const std::vector<int>& group_sizes, milli_tokens capacity) {
  auto stages = stage_sizes(group_sizes, world, floor);
  if (stages.empty() || units.empty()) return std::nullopt;
  if (units.size() <= static_cast<std::size_t>(world) || units.size() > exact_units_max)
    return plain_floor(units, world, floor, stages, capacity);
  threshold_search search{units, world, stages, layout_costs(units, capacity), {}, {}, 0};
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (i + 1 < units.size() && units[i + 1].tail == units[i].tail) continue;
    search.times.push_back(units[i].tail);
    search.nodes_by.push_back(i + 1);
  }
  search.tail = static_cast<double>(units.back().tail);
  return search.run(floor);
}

floor_plan full_world(const std::vector<layout_unit>& units, int world, milli_tokens capacity) {
  auto matching = match_units(units, static_cast<std::size_t>(world), capacity);
  if (!matching) {
    // More than the pool holds: as little as possible, and the engine will have to preempt.
    constexpr auto no_limit = std::numeric_limits<milli_tokens>::max() / 4;
    if (units.size() <= exact_units_max)
      matching = match_units(units, static_cast<std::size_t>(world),
                             smallest_peak(units, static_cast<std::size_t>(world)));
    if (!matching) matching = match_units(units, static_cast<std::size_t>(world), no_limit);
  }
  return finish(units, matching ? std::move(*matching) : mates{}, world);
}

floor_plan paper_choice(const std::vector<layout_unit>& units, int world,
                        const std::vector<int>& group_sizes,
                        const std::vector<group_capacity>& capacities, int requested) {
  std::optional<floor_plan> best;
  auto stages = stage_sizes(group_sizes, world, std::max(requested, 1));
  if (requested > 0) std::reverse(stages.begin(), stages.end());
  for (int floor : stages) {
    if (!capacities.empty()
        && std::none_of(capacities.begin(), capacities.end(),
                        [&](const group_capacity& c) { return c.ranks == floor; }))
      continue;
    auto plan =
        paper_floor(units, world, floor, group_sizes, capacity_at(capacities, floor) * 1000);
    if (!plan) continue;
    if (requested > 0) return std::move(*plan);
    // Floors come in falling order, so equal area and transitions keep the larger floor.
    if (!best || plan->area > best->area
        || (plan->area == best->area && plan->exits.size() < best->exits.size()))
      best = std::move(plan);
  }
  if (best) return std::move(*best);
  return full_world(units, world, capacity_at(capacities, world) * 1000);
}

} // namespace adafloor
