#include "planner/protocol/planner_parts.hpp"

#include <algorithm>
#include <utility>

namespace adafloor::planner_parts {
namespace {

using decision_part = planner_machine::decision_part;

bool needs_forecasts(const exit_rules& rules) {
  return rules.adaptive || rules.migrate != migrate_kind::off;
}

/// Requests without a response of each member, of those that may still have something to generate.
/// One that moves counts at both ends until the move is over.
std::vector<int> unfinished_counts(const planner_machine& m) {
  std::vector<int> counts;
  for (auto member : m.members) {
    const auto& rank = m.rollout->ranks.at(member);
    int count = rank.finished() ? 0 : static_cast<int>(rank.requests - rank.received);
    for (const auto& [id, move] : m.rollout->moves)
      count += move.from == member || move.to == member ? 1 : 0;
    counts.push_back(count);
  }
  return counts;
}

/// The same requests. Tokens are counted as decode steps since the request got its place: those of
/// prefill are taken for tokens too.
exit_view view_of(const planner_machine& m) {
  const auto& r = *m.rollout;
  const auto& d = r.decision;
  exit_view view;
  view.members = m.members;
  view.step = static_cast<double>(r.last_step);
  for (const auto& id : d.requests) {
    const auto& request = r.requests.at(id);
    const auto move = r.moves.find(id);
    const bool over = request.state != planner_machine::response_state::missing
                      || r.ranks.at(request.home).finished();
    if (over && move == r.moves.end()) continue;
    exit_request live;
    live.request = request.index;
    live.rank = move == r.moves.end() ? request.home : move->second.from;
    if (!request.waits)
      live.tokens = static_cast<double>(r.last_step - std::min(r.last_step, request.started_at));
    if (!d.prompts.empty()) {
      live.prompt = d.prompts[request.index];
      if (d.options.kv.count_prompt_tokens)
        live.held_prompt = d.predicted[live.prompt].prompt_tokens;
    }
    view.live.push_back(live);
    if (move == r.moves.end()) continue;
    live.rank = move->second.to;
    view.live.push_back(live);
  }
  return view;
}

bool all_within(const exit_view& view, const std::vector<rank_id>& survivors) {
  return std::all_of(view.live.begin(), view.live.end(), [&](const exit_request& r) {
    return std::binary_search(survivors.begin(), survivors.end(), r.rank);
  });
}

bool some_stayed(const exit_view& view, const exit_choice& chosen) {
  for (const auto& move : chosen.moves)
    for (const auto& r : view.live)
      if (r.request == move.request && r.rank != move.to) return true;
  return false;
}

/// What could not be moved now is not tried again before something has changed.
void remember_refusal(decision_part& d, const exit_view& view) {
  d.memory.refused_group = static_cast<int>(view.members.size());
  d.memory.refused_live = d.memory.repacked_live = static_cast<int>(view.live.size());
}

bool order_moves(planner_machine& m, const exit_choice& chosen, time_point now, effects& out) {
  bool ordered = false;
  for (const auto& move : chosen.moves) {
    const auto id = m.rollout->decision.requests[move.request];
    ordered = order_move(m, id, move.to, now, out) || ordered;
  }
  return ordered;
}

} // namespace

std::string objection_to_rules(const begin_rollout& order) {
  const auto& rules = order.rules;
  if (rules.prompts.empty() && !needs_forecasts(rules)) return {};
  if (rules.prompts.size() != order.requests.size())
    return std::to_string(rules.prompts.size()) + " prompts named for "
           + std::to_string(order.requests.size())
           + " requests; exits that are weighed or move requests need the prompt of each";
  for (auto prompt : rules.prompts)
    if (prompt >= rules.forecasts.size())
      return "prompt " + std::to_string(prompt) + " of " + std::to_string(rules.forecasts.size())
             + " forecasts";
  return {};
}

void take_rules(planner_machine& m, const begin_rollout& order) {
  auto& d = m.rollout->decision;
  const auto& rules = order.rules;
  for (const auto& exit : order.exits)
    if (exit.to < m.world.size())
      d.plan.exits.push_back({static_cast<double>(exit.at), static_cast<int>(exit.to)});
  d.plan.capacity_tokens = rules.capacity_tokens > 0
                               ? static_cast<std::int64_t>(rules.capacity_tokens)
                               : capacity_at({}, 1); // no limit
  d.plan.guard_cap = static_cast<std::int32_t>(rules.response_cap);
  d.options = m.config.weighing;
  d.options.policy = rules.adaptive ? plan_policy::adaptive : plan_policy::paper;
  d.options.residency = rules.residency;
  d.options.migrate = rules.migrate;
  d.options.world = static_cast<int>(m.world.size());
  d.options.experts = static_cast<int>(m.config.experts);
  for (std::size_t i = 0; i < rules.forecasts.size(); ++i) {
    const auto& known = rules.forecasts[i];
    predicted_prompt p;
    p.prompt_tokens = static_cast<std::int32_t>(known.prompt_tokens);
    p.lengths = known.lengths;
    p.pool = known.pool;
    p.known = known.known;
    d.predicted.push_back(std::move(p));
    d.plan.prompts.push_back(i);
  }
  for (const auto& request : order.requests) {
    m.rollout->requests[request.id].index = d.requests.size();
    d.requests.push_back(request.id);
  }
  d.prompts.assign(rules.prompts.begin(), rules.prompts.end());
}

void start_next(planner_machine& m, rank_id rank, std::uint64_t step) {
  auto& r = *m.rollout;
  auto& waiting = r.ranks[rank].waiting;
  while (!waiting.empty()) {
    auto& request = r.requests[waiting.front()];
    waiting.pop_front();
    if (!request.waits || request.home != rank) continue; // Moved meanwhile.
    request.waits = false;
    request.started_at = step;
    return;
  }
}

std::optional<std::vector<rank_id>> due_group(planner_machine& m, time_point now, effects& out) {
  auto& d = m.rollout->decision;
  if (d.chosen && moves_open(m)) return std::nullopt;
  if (const auto chosen = std::exchange(d.chosen, std::nullopt)) {
    const auto view = view_of(m);
    const bool leaves = chosen->to < static_cast<int>(m.members.size());
    if (leaves && !view.live.empty() && all_within(view, chosen->survivors))
      return chosen->survivors;
    if (some_stayed(view, *chosen)) {
      remember_refusal(d, view);
      return std::nullopt;
    }
    if (leaves) d.memory.refused_group = 0;
  }
  if (!may_exit(d.plan, d.options, unfinished_counts(m), d.memory)) return std::nullopt;
  const auto view = view_of(m);
  auto choice = decide_exit(d.plan, d.options, d.predicted, view, d.memory);
  if (!choice) return std::nullopt;
  if (choice->moves.empty()) return choice->survivors;
  if (order_moves(m, *choice, now, out))
    d.chosen = std::move(choice);
  else
    remember_refusal(d, view);
  return std::nullopt;
}

} // namespace adafloor::planner_parts
