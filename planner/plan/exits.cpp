#include "planner/plan/exits.hpp"

#include <algorithm>
#include <map>

namespace adafloor {
namespace {

bool migrates(const plan_options& options) {
  return options.migrate != migrate_kind::off;
}

std::vector<rank_id> unfinished_ranks(const exit_view& view) {
  std::vector<rank_id> out;
  for (const auto& request : view.live)
    out.push_back(request.rank);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

} // namespace

bool may_exit(const step_plan& plan, const plan_options& options, int group, int active, int live,
              const exit_memory& memory) {
  if (plan.exits.empty()) return false;
  int needed = active;
  if (migrates(options)) {
    needed = std::min(active, (live + options.max_num_seqs - 1) / options.max_num_seqs);
    bool same = memory.refused_group == group;
    if (same && live > memory.refused_live - std::max(1, memory.refused_live / 64)) return false;
  }
  return next_group(plan.exits, group, needed).has_value();
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

std::optional<exit_choice> packed_exit(const step_plan& plan, const plan_options& options,
                                       const std::vector<predicted_prompt>& predicted,
                                       const exit_view& view) {
  auto group = static_cast<int>(view.members.size());
  auto live = static_cast<int>(view.live.size());
  int needed = (live + options.max_num_seqs - 1) / options.max_num_seqs;
  auto finals = predicted_finals(options, predicted, view.live, plan.guard_cap);
  std::vector<live_request> requests;
  for (std::size_t i = 0; i < view.live.size(); ++i) {
    const auto& r = view.live[i];
    requests.push_back({r.request, r.rank, r.tokens + r.held_prompt, finals[i] + r.held_prompt});
  }
  for (auto to = next_group(plan.exits, group, needed, true); to;
       to = next_group(plan.exits, group, *to + 1, true)) {
    pack_limits limits;
    limits.max_num_seqs = options.max_num_seqs;
    limits.capacity_tokens = static_cast<double>(
        options.resize_pool ? capacity_at(options.capacities, *to, options.experts)
                            : plan.capacity_tokens);
    auto packed = pack_live(requests, view.members, *to, limits);
    if (!packed) continue;
    if (options.migrate == migrate_kind::stragglers
        && static_cast<int>(packed->moves.size()) > options.stragglers_max)
      continue;
    return exit_choice{*to, std::move(packed->survivors), std::move(packed->moves)};
  }
  return std::nullopt;
}

} // namespace

std::optional<exit_choice> decide_exit(const step_plan& plan, const plan_options& options,
                                       const std::vector<predicted_prompt>& predicted,
                                       const exit_view& view, exit_memory& memory) {
  if (plan.exits.empty() || view.live.empty()) return std::nullopt;
  if (!migrates(options))
    return options.residency == residency_kind::planned ? planned_exit_now(plan, view)
                                                        : natural_exit(plan, view);
  auto choice = packed_exit(plan, options, predicted, view);
  if (!choice) {
    memory.refused_group = static_cast<int>(view.members.size());
    memory.refused_live = static_cast<int>(view.live.size());
  }
  return choice;
}

} // namespace adafloor
