#include "planner/plan/exits.hpp"

#include "planner/plan/future.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace adafloor {
namespace {

bool migrates(const plan_options& options) {
  return options.migrate != migrate_kind::off;
}

std::vector<rank_id> unfinished_ranks(const exit_view& view) {
  std::vector<bool> has_work;
  for (const auto& request : view.live) {
    if (request.rank.value >= has_work.size()) has_work.resize(request.rank.value + 1);
    has_work[request.rank.value] = true;
  }
  std::vector<rank_id> out;
  for (std::uint32_t rank = 0; rank < has_work.size(); ++rank)
    if (has_work[rank]) out.emplace_back(rank);
  return out;
}

// Whether packing onto fewer ranks of the same group is worth a look.
bool may_repack(const plan_options& options, const std::vector<int>& counts, int live,
                const exit_memory& memory) {
  if (options.policy != plan_policy::adaptive || options.migrate != migrate_kind::consolidate)
    return false;
  if (live > memory.repacked_live - std::max(4, memory.repacked_live / 32)) return false;
  auto active =
      static_cast<int>(std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; }));
  if (active < 2 || live > (active - 1) * options.max_num_seqs) return false;
  auto group = static_cast<int>(counts.size());
  return decode_cost(options.costs, group, active - 1, options.max_num_seqs, live).constant_ms
         < decode_cost(options.costs, group, active, options.max_num_seqs, live).constant_ms;
}

bool may_leave(const step_plan& plan, const plan_options& options, std::vector<int> counts,
               int live, const exit_memory& memory) {
  auto group = static_cast<int>(counts.size());
  bool same = memory.refused_group == group;
  if (same && live > memory.refused_live - std::max(1, memory.refused_live / memory.patience))
    return false;
  int movable = 0;
  if (migrates(options))
    movable = options.migrate == migrate_kind::stragglers ? options.stragglers_max : live;
  std::sort(counts.begin(), counts.end());
  int needed = group;
  for (int moved = 0; needed > 0; --needed) {
    moved += counts[static_cast<std::size_t>(group - needed)];
    if (moved > movable || (moved > 0 && live > (needed - 1) * options.max_num_seqs)) break;
  }
  return next_group(plan.exits, group, needed).has_value();
}

} // namespace

bool may_exit(const step_plan& plan, const plan_options& options, const std::vector<int>& counts,
              const exit_memory& memory) {
  if (plan.exits.empty()) return false;
  int live = std::accumulate(counts.begin(), counts.end(), 0);
  return may_repack(options, counts, live, memory)
         || may_leave(plan, options, counts, live, memory);
}

std::vector<double> predicted_finals(const plan_options& options,
                                     const std::vector<predicted_prompt>& predicted,
                                     const std::vector<exit_request>& live, std::int32_t cap) {
  double limit = options.kv.max_response_length;
  if (cap > 0) limit = std::min<double>(limit, cap);
  std::map<std::size_t, std::size_t> taken;
  std::vector<double> out;
  out.reserve(live.size());
  for (const auto& request : live) {
    const auto& lengths = predicted[request.prompt].lengths;
    auto k = taken[request.prompt]++;
    double length = lengths.empty() ? limit : lengths[std::min(k, lengths.size() - 1)];
    double final = std::min(length * options.kv.margin_milli / 1000.0, limit);
    out.push_back(std::max(final, request.tokens + 1));
  }
  return out;
}

namespace {

std::optional<exit_choice> natural_exit(const step_plan& plan, const exit_view& view) {
  auto unfinished = unfinished_ranks(view);
  auto to = next_group(plan.exits, static_cast<int>(view.members.size()),
                       static_cast<int>(unfinished.size()));
  if (!to) return std::nullopt;
  auto survivors = survivors_for(unfinished, view.members, *to);
  if (!survivors) return std::nullopt;
  return exit_choice{*to, std::move(*survivors), {}};
}

std::optional<exit_choice> planned_exit_now(const step_plan& plan, const exit_view& view) {
  auto to = next_group(plan.exits, static_cast<int>(view.members.size()), 0);
  if (!to) return std::nullopt;
  auto survivors = planned_survivors(view.members, *to);
  if (!survivors) return std::nullopt;
  for (auto rank : unfinished_ranks(view))
    if (!std::binary_search(survivors->begin(), survivors->end(), rank)) return std::nullopt;
  return exit_choice{*to, std::move(*survivors), {}};
}

std::optional<packing> packed(int to, double capacity, const step_plan& plan,
                              const plan_options& options,
                              const std::vector<predicted_prompt>& predicted,
                              const exit_view& view) {
  auto finals = predicted_finals(options, predicted, view.live, plan.guard_cap);
  std::vector<packed_request> requests;
  requests.reserve(view.live.size());
  for (std::size_t i = 0; i < view.live.size(); ++i) {
    const auto& r = view.live[i];
    requests.push_back({r.request, r.rank, r.tokens + r.held_prompt, finals[i] + r.held_prompt});
  }
  bool planned = options.residency == residency_kind::planned;
  return pack_live(requests, view.members, to, {options.max_num_seqs, capacity, planned});
}

double capacity_of(int group, const step_plan& plan, const plan_options& options) {
  return static_cast<double>(options.resize_pool
                                 ? capacity_at(options.capacities, group, options.experts)
                                 : plan.capacity_tokens);
}

// The exit to one size, if the requests allow it.
std::optional<exit_choice> exit_to(int to, const step_plan& plan, const plan_options& options,
                                   const std::vector<predicted_prompt>& predicted,
                                   const exit_view& view) {
  if (!migrates(options)) {
    auto survivors = options.residency == residency_kind::planned
                         ? planned_survivors(view.members, to)
                         : survivors_for(unfinished_ranks(view), view.members, to);
    if (!survivors) return std::nullopt;
    for (auto rank : unfinished_ranks(view))
      if (!std::binary_search(survivors->begin(), survivors->end(), rank)) return std::nullopt;
    return exit_choice{to, std::move(*survivors), {}};
  }
  auto found = packed(to, capacity_of(to, plan, options), plan, options, predicted, view);
  if (!found) return std::nullopt;
  if (options.migrate == migrate_kind::stragglers
      && static_cast<int>(found->moves.size()) > options.stragglers_max)
    return std::nullopt;
  return exit_choice{to, std::move(found->survivors), std::move(found->moves)};
}

// Policies that do not weigh: what blocks an exit that is due moves, or, to consolidate, whatever
// packs into fewer ranks does; the deepest exit that works.
std::optional<exit_choice> assisted_exit(const step_plan& plan, const plan_options& options,
                                         const std::vector<predicted_prompt>& predicted,
                                         const exit_view& view) {
  std::optional<exit_choice> best;
  for (const auto& exit : plan.exits) {
    if (exit.to >= static_cast<int>(view.members.size()) || (best && exit.to >= best->to)) continue;
    if (options.migrate == migrate_kind::stragglers && view.step < exit.at) continue;
    if (auto choice = exit_to(exit.to, plan, options, predicted, view)) best = std::move(choice);
  }
  return best;
}

// Largest resident tokens of a rank after the moves.
double widest_after(const exit_view& view, const std::vector<request_move>& moves) {
  std::map<std::uint64_t, rank_id> target;
  for (const auto& move : moves)
    target.emplace(move.request, move.to);
  std::vector<double> held;
  double widest = 0;
  for (const auto& r : view.live) {
    auto moved = target.empty() ? target.end() : target.find(r.request);
    auto rank = moved == target.end() ? r.rank : moved->second;
    if (rank.value >= held.size()) held.resize(rank.value + 1, 0);
    auto& tokens = held[rank.value];
    tokens += r.tokens + r.held_prompt;
    widest = std::max(widest, tokens);
  }
  return widest;
}

// Empties one rank within the same group if the cheaper decode steps pay for the copies. The gain
// counts until the emptied ranks would have drained by themselves, by the median of the futures.
std::optional<exit_choice> repack(const step_plan& plan, const plan_options& options,
                                  const std::vector<predicted_prompt>& predicted,
                                  const exit_view& view, exit_memory& memory, double limit) {
  auto unfinished = unfinished_ranks(view);
  auto group = static_cast<int>(view.members.size());
  auto active = static_cast<int>(unfinished.size());
  auto live = static_cast<int>(view.live.size());
  auto found =
      packed(active - 1, capacity_of(group, plan, options), plan, options, predicted, view);
  if (!found || found->moves.empty()) return std::nullopt;
  std::vector<std::size_t> emptied; // requests on ranks that do not stay
  for (std::size_t i = 0; i < view.live.size(); ++i)
    if (!std::binary_search(found->survivors.begin(), found->survivors.end(), view.live[i].rank))
      emptied.push_back(i);
  std::vector<double> drained;
  for (const auto& finals :
       sample_finals(memory, *memory.survival, view.live, limit, options.seed, 5)) {
    double longest = 0;
    for (auto i : emptied)
      longest = std::max(longest, finals[i] - view.live[i].tokens);
    drained.push_back(longest);
  }
  std::nth_element(drained.begin(), drained.begin() + 2, drained.end());
  auto ms = [&](int ranks, double widest) {
    auto cost = decode_cost(options.costs, group, ranks, options.max_num_seqs, live);
    return cost.constant_ms + cost.per_max_kv_ms * widest;
  };
  double saved =
      ms(active, widest_after(view, {})) - ms(active - 1, widest_after(view, found->moves));
  std::map<rank_id, double> received;
  double most = 0;
  for (const auto& move : found->moves)
    for (const auto& r : view.live)
      if (r.request == move.request)
        most = std::max(most, received[move.to] += r.tokens + r.held_prompt);
  double pause = options.costs.blackout_seconds + copy_seconds(options.costs, most);
  if (saved * drained[2] / 1000 <= 2 * pause) return std::nullopt;
  return exit_choice{group, view.members, std::move(found->moves)};
}

// The best exit by expectation, if it beats staying. Packing is tried before any future is drawn.
std::optional<exit_choice> expected_exit(const step_plan& plan, const plan_options& options,
                                         const std::vector<predicted_prompt>& predicted,
                                         const exit_view& view, exit_memory& memory, double limit) {
  auto rules = rules_for(plan, options, static_cast<int>(view.members.size()));
  std::vector<std::optional<exit_choice>> choices(rules.sizes.size());
  bool any = false;
  for (std::size_t i = 1; i < choices.size(); ++i) {
    choices[i] = exit_to(rules.sizes[i], plan, options, predicted, view);
    any = any || choices[i];
  }
  memory.refused_group = static_cast<int>(view.members.size());
  memory.refused_live = static_cast<int>(view.live.size());
  memory.patience = 64;
  if (!any) return std::nullopt;
  // Many requests average each other out: fewer futures do.
  int count = std::max(1, view.live.size() > 128 ? options.scenarios / 2 : options.scenarios);
  auto worth = expected_values(
      view, rules, sample_finals(memory, *memory.survival, view.live, limit, options.seed, count),
      options);
  double wait = *std::min_element(worth.wait.begin(), worth.wait.end());
  std::size_t best = 0;
  for (std::size_t i = 1; i < choices.size(); ++i)
    if (choices[i] && (best == 0 || worth.now[i] < worth.now[best])) best = i;
  memory.patience = 20;
  if (best == 0 || worth.now[best] > wait) return std::nullopt;
  return std::move(choices[best]);
}

} // namespace

std::optional<exit_choice> decide_exit(const step_plan& plan, const plan_options& options,
                                       const std::vector<predicted_prompt>& predicted,
                                       const exit_view& view, exit_memory& memory) {
  if (plan.exits.empty() || view.live.empty()) return std::nullopt;
  if (options.policy != plan_policy::adaptive) {
    if (migrates(options))
      if (auto choice = assisted_exit(plan, options, predicted, view)) return choice;
    return options.residency == residency_kind::planned ? planned_exit_now(plan, view)
                                                        : natural_exit(plan, view);
  }
  std::vector<int> counts(view.members.size());
  for (const auto& r : view.live) {
    auto place = std::lower_bound(view.members.begin(), view.members.end(), r.rank);
    if (place != view.members.end())
      ++counts[static_cast<std::size_t>(place - view.members.begin())];
  }
  if (!memory.survival) memory.survival = std::make_shared<survival_model>(predicted, plan.prompts);
  double limit = options.kv.max_response_length;
  if (plan.guard_cap > 0) limit = std::min<double>(limit, plan.guard_cap);
  auto live = static_cast<int>(view.live.size());
  bool repackable = may_repack(options, counts, live, memory);
  // A call for the sake of packing alone need not weigh exits again.
  bool exits = may_leave(plan, options, counts, live, memory);
  auto choice = exits ? expected_exit(plan, options, predicted, view, memory, limit) : std::nullopt;
  if (choice) return choice;
  if (!repackable) return std::nullopt;
  choice = repack(plan, options, predicted, view, memory, limit);
  memory.repacked_live = choice ? live + 1 : live;
  return choice;
}

} // namespace adafloor
