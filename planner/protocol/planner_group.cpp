#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/planner_parts.hpp"

#include <algorithm>

namespace adafloor::planner_parts {
namespace {

using coordinator = transition_coordinator;

bool all_kept(const planner_machine& m) {
  return m.rollout->kept == m.rollout->requests.size();
}

/// Time until the ranks are needed again: the steps to the predicted tail at the pace so far; at
/// least a tenth of the time that has passed, since a rollout beyond its predicted tail has a
/// remainder that grows with its age (response lengths are heavy-tailed).
microseconds predicted_window(const planner_machine& m, time_point now) {
  const auto& r = *m.rollout;
  const auto elapsed = now.time_since_epoch() - r.began_at;
  const auto step = std::max<std::int64_t>(static_cast<std::int64_t>(r.last_step), 1);
  const auto left = std::max<std::int64_t>(r.predicted_tail - step, 0);
  return std::max(elapsed / step * left, elapsed / 10);
}

prepare_transition plan_towards(planner_machine& m, transition_kind kind,
                                std::vector<rank_id> members, std::vector<rank_id> owners) {
  prepare_transition plan;
  plan.epoch = m.highest_epoch = epoch_id{m.highest_epoch.value + 1};
  plan.from_epoch = m.who.stamp.epoch;
  plan.kind = kind;
  std::set_difference(m.members.begin(), m.members.end(), members.begin(), members.end(),
                      std::back_inserter(plan.leavers));
  plan.members = std::move(members);
  plan.owners = std::move(owners);
  plan.map_hash = expert_map_hash(plan.owners);
  return plan;
}

void begin_restoration(planner_machine& m, time_point now, effects& out) {
  begin(m.transition, m.who,
        plan_towards(m, transition_kind::restore, m.world,
                     home_owners(m.config.experts, m.config.world_size)),
        m.world, static_cast<std::uint32_t>(m.members.size()), now, out);
}

void contract_if_due(planner_machine& m, time_point now, effects& out) {
  const auto survivors = due_group(m, now, out);
  if (!survivors) return;
  begin(
      m.transition, m.who,
      plan_towards(m, transition_kind::contract, *survivors, contract_owners(m.owners, *survivors)),
      m.members, static_cast<std::uint32_t>(m.members.size()), now, out);
}

void give_up_size(planner_machine& m) {
  auto& exits = m.rollout->decision.plan.exits;
  const auto size = static_cast<int>(m.transition.plan.members.size());
  exits.erase(std::remove_if(exits.begin(), exits.end(),
                             [&](const planned_exit& x) { return x.to == size; }),
              exits.end());
}

void after_abort(planner_machine& m, time_point now, effects& out) {
  auto& r = *m.rollout;
  ++r.aborted_transitions;
  r.decision.memory.refused_group = 0; // The exit was taken, as far as the decision knows.
  const bool last_try = ++r.attempts >= m.config.attempts_max;
  if (m.now_in == phase::restoring) {
    if (last_try)
      return fail_world(m,
                        "the full world could not be restored in " + std::to_string(r.attempts)
                            + " tries; the last: " + m.transition.reason,
                        false, out);
    r.retry_at = now + m.config.retry_pause;
    return;
  }
  if (last_try) {
    give_up_size(m);
    r.attempts = 0;
  } else {
    r.retry_at = now + m.config.retry_pause;
  }
  advance(m, now, out);
}

void conclude(planner_machine& m, coordinator::outcome how, time_point now, effects& out) {
  const auto& plan = m.transition.plan;
  const bool began = plan.epoch != epoch_id{};
  if (began && m.who.stamp.epoch == plan.epoch && m.members != plan.members) {
    m.members = plan.members;
    m.owners = plan.owners;
  }
  switch (how) {
  case coordinator::outcome::pending:
    break;
  case coordinator::outcome::failed:
    fail_world(m, m.transition.reason, false, out);
    break;
  case coordinator::outcome::aborted:
    after_abort(m, now, out);
    break;
  case coordinator::outcome::settled:
    m.rollout->transitions.push_back(m.transition.record);
    post(m.who, local(m, role_kind::trainer), m.transition.record, out);
    m.rollout->attempts = 0;
    if (m.now_in == phase::restoring)
      close_books(m, now, out);
    else
      advance(m, now, out);
    break;
  }
}

/// A leaver's first `settled`: from here on it may be lent, unless the ranks are needed at once.
bool frees_rank(const planner_machine& m, const envelope& in) {
  const auto* done = std::get_if<settled>(&in.body);
  const auto& t = m.transition;
  if (!done || !done->detached || t.now_in != coordinator::phase::settling
      || done->epoch != t.plan.epoch)
    return false;
  const auto found = t.participants.find(in.from.rank);
  return found != t.participants.end() && !found->second.settled && !all_kept(m);
}

} // namespace

void advance(planner_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::running || m.stopping) return;
  auto& r = *m.rollout;
  if (all_kept(m)) abandon(m.transition, m.who, "all responses are complete", now, out);
  if (m.transition.now_in != coordinator::phase::none) return;
  if (!all_kept(m)) {
    if (!r.retry_at) contract_if_due(m, now, out);
    return;
  }
  if (moves_open(m)) return; // Of a request that has just ended: both ranks must be free again.
  r.retry_at.reset();
  r.attempts = 0;
  if (m.members == m.world) return close_books(m, now, out);
  enter(m, phase::recalling, now);
  post(m.who, local(m, role_kind::broker), recall_leases{r.id}, out);
}

void hear_transition(planner_machine& m, const envelope& in, time_point now, effects& out) {
  if (!m.rollout || m.transition.now_in == coordinator::phase::none) {
    ++m.drops.stale_epoch;
    return;
  }
  if (frees_rank(m, in))
    post(m.who, local(m, role_kind::broker),
         rank_available{in.from.rank, m.transition.plan.epoch, predicted_window(m, now)}, out);
  conclude(m, step(m.transition, m.who, in, now, out), now, out);
}

void hear_recalled(planner_machine& m, const leases_recalled& back, time_point now, effects& out) {
  if (m.now_in != phase::recalling || back.rollout != m.rollout->id) {
    ++m.drops.stale_rollout;
    return;
  }
  if (!back.unreturned.empty())
    return fail_world(m,
                      name_ranks(back.unreturned)
                          + ": the end of the lease could not be proven, so the full world is not "
                            "restored; end the auxiliary work there and start again",
                      false, out);
  enter(m, phase::restoring, now);
  begin_restoration(m, now, out);
}

void tick_group(planner_machine& m, time_point now, effects& out) {
  if (!m.rollout) return;
  if (m.now_in == phase::recalling && now - m.phase_began_at > m.config.recall_max)
    return fail_world(m,
                      "the broker did not get every lease back within "
                          + std::to_string(m.config.recall_max.count() / 1000) + " ms",
                      false, out);
  conclude(m, tick(m.transition, m.who, now, out), now, out);
  if (m.now_in == phase::failed || !m.rollout) return;
  auto& r = *m.rollout;
  if (!r.retry_at || now < *r.retry_at) return;
  r.retry_at.reset();
  if (m.now_in == phase::restoring)
    begin_restoration(m, now, out);
  else
    advance(m, now, out);
}

} // namespace adafloor::planner_parts
