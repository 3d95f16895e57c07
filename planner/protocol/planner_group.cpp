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

void tell_available(planner_machine& m, rank_id rank, time_point now, effects& out) {
  post(m.who, local(m, role_kind::broker),
       rank_available{rank, m.rollout->freed.at(rank), predicted_window(m, now),
                      static_cast<std::uint32_t>(m.members.size())},
       out);
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
  take_over_group(m);
  switch (how) {
  case coordinator::outcome::pending:
    break;
  case coordinator::outcome::failed:
    fail_world(m, m.transition.reason, false, out);
    break;
  case coordinator::outcome::aborted:
    if (m.recovery)
      retry_recovery(m, now, out);
    else
      after_abort(m, now, out);
    break;
  case coordinator::outcome::settled:
    if (m.recovery) return conclude_recovery(m, now, out);
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

/// The rank is outside of the group, or it could not have been lent: the others can do without it.
void put_in_quarantine(planner_machine& m, const unreturned_lease& back, effects& out) {
  m.quarantine.insert(back.rank);
  m.world.erase(std::remove(m.world.begin(), m.world.end(), back.rank), m.world.end());
  const auto left = static_cast<std::uint32_t>(m.world.size());
  const auto text = "rank " + std::to_string(back.rank.value) + ": the end of lease "
                    + std::to_string(back.lease.epoch.value) + "."
                    + std::to_string(back.lease.counter) + " could not be proven (" + back.text
                    + "), so the rank does not come back and the job goes on with "
                    + std::to_string(left)
                    + "; for all of them end the auxiliary work there and start again";
  post(m.who, local(m, role_kind::trainer), rank_quarantined{back.rank, back.lease, left, text},
       out);
}

/// A leaver's first `settled`: from here on it may be lent, unless the ranks are needed at once.
bool frees_rank(const planner_machine& m, const envelope& in) {
  const auto* done = std::get_if<settled>(&in.body);
  const auto& t = m.transition;
  if (!done || !done->detached || t.now_in != coordinator::phase::settling
      || done->epoch != t.plan.epoch)
    return false;
  const auto found = t.participants.find(in.from.rank);
  return found != t.participants.end() && !found->second.settled && m.rollout && !all_kept(m);
}

} // namespace

/// Every expert at home, where it never left. Those of ranks in quarantine stay where they are: a
/// rank that comes back does not know who holds them.
std::vector<rank_id> restored_owners(const planner_machine& m) {
  auto owners = home_owners(m.config.experts, m.config.world_size);
  for (std::size_t e = 0; e < owners.size(); ++e)
    if (m.quarantine.count(owners[e])) owners[e] = m.owners[e];
  return owners;
}

void begin_restoration(planner_machine& m, time_point now, effects& out) {
  begin(m.transition, m.who, plan_towards(m, transition_kind::restore, m.world, restored_owners(m)),
        m.world, static_cast<std::uint32_t>(m.members.size()), now, out);
}

void take_over_group(planner_machine& m) {
  const auto& plan = m.transition.plan;
  if (plan.epoch == epoch_id{} || m.who.stamp.epoch != plan.epoch) return;
  m.members = plan.members;
  m.owners = plan.owners;
}

void tell_windows(planner_machine& m, time_point now, effects& out) {
  for (const auto& [rank, epoch] : m.rollout->freed)
    tell_available(m, rank, now, out);
}

void advance(planner_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::running || m.stopping || m.recovery) return;
  auto& r = *m.rollout;
  if (all_kept(m)) abandon(m.transition, m.who, "all responses are complete", now, out);
  if (m.transition.now_in != coordinator::phase::none) return;
  if (!all_kept(m)) {
    if (!in_step(m)) return;
    if (!r.retry_at) contract_if_due(m, now, out);
    const bool decided = m.transition.now_in == coordinator::phase::none && !moves_open(m);
    if (decided) let_time_pass(m, out);
    return;
  }
  let_time_pass(m, out);
  if (moves_open(m)) return; // Of a request that has just ended: both ranks must be free again.
  r.retry_at.reset();
  r.attempts = 0;
  if (m.members == m.world) return close_books(m, now, out);
  enter(m, phase::recalling, now);
  post(m.who, local(m, role_kind::broker), recall_leases{r.id}, out);
}

void hear_transition(planner_machine& m, const envelope& in, time_point now, effects& out) {
  if ((!m.rollout && !m.recovery) || m.transition.now_in == coordinator::phase::none) {
    ++m.drops.stale_epoch;
    return;
  }
  if (const auto* done = std::get_if<prepared>(&in.body)) hear_taken(m, in.from.rank, *done);
  if (frees_rank(m, in)) {
    m.rollout->freed[in.from.rank] = m.transition.plan.epoch;
    tell_available(m, in.from.rank, now, out);
  }
  conclude(m, step(m.transition, m.who, in, now, out), now, out);
  go_on_with_recovery(m, now, out);
}

void hear_recalled(planner_machine& m, const leases_recalled& back, time_point now, effects& out) {
  if (m.now_in != phase::recalling || back.rollout != m.rollout->id) {
    ++m.drops.stale_rollout;
    return;
  }
  for (const auto& lost : back.unreturned)
    if (!m.quarantine.count(lost.rank)) put_in_quarantine(m, lost, out);
  if (m.recovery) return enter(m, phase::restoring, now); // When the dead are seen to.
  if (m.members == m.world) return close_books(m, now, out);
  enter(m, phase::restoring, now);
  begin_restoration(m, now, out);
}

void tick_group(planner_machine& m, time_point now, effects& out) {
  if (!m.rollout && !m.recovery) return;
  if (m.now_in == phase::recalling && now - m.phase_began_at > m.config.recall_max)
    return fail_world(m,
                      "the broker did not get every lease back within "
                          + std::to_string(m.config.recall_max.count() / 1000) + " ms",
                      false, out);
  conclude(m, tick(m.transition, m.who, now, out), now, out);
  if (m.now_in == phase::failed || !m.rollout || m.recovery) return;
  auto& r = *m.rollout;
  if (!r.retry_at || now < *r.retry_at) return;
  r.retry_at.reset();
  if (m.now_in == phase::restoring)
    begin_restoration(m, now, out);
  else
    advance(m, now, out);
}

} // namespace adafloor::planner_parts
