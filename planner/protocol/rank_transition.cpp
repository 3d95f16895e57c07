#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/rank_parts.hpp"

#include <algorithm>

namespace adafloor::rank_parts {
namespace {

using phase = rank_machine::transition_phase;

bool holds(const std::vector<rank_id>& ranks, rank_id rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void refuse(rank_machine& m, epoch_id epoch, refusal reason, const std::string& text,
            effects& out) {
  m.dead_epoch = std::max(m.dead_epoch, epoch);
  m.last_refusal =
      refused{epoch, reason, "rank " + std::to_string(m.config.self.value) + ": " + text};
  post(m.who, planner_of(m), *m.last_refusal, out);
}

/// Why this rank cannot take part in `plan`, or nothing.
struct objection {
  refusal reason;
  std::string text;
};
std::optional<objection> object_to(const rank_machine& m, const prepare_transition& plan) {
  const bool member = holds(plan.members, m.config.self);
  const bool leaver = holds(plan.leavers, m.config.self);
  const bool recovers = plan.kind == transition_kind::recover;
  if (m.transition || m.loading || (!m.settled_epoch && !recovers))
    return objection{refusal::busy, "another transition or a weight update is under way"};
  if (m.device_unclean)
    return objection{refusal::lease_active, "the end of a lease could not be proven"};
  if (m.lease) return objection{refusal::lease_active, "the rank is lent out"};
  if (m.in_group() && plan.from_epoch != m.who.stamp.epoch && !recovers)
    return objection{refusal::busy, "runs epoch " + std::to_string(m.who.stamp.epoch.value)
                                        + ", not " + std::to_string(plan.from_epoch.value)};
  if (expert_map_hash(plan.owners) != plan.map_hash)
    return objection{refusal::bad_map, "the expert map does not have the hash it came with"};
  if (auto ok = check_map(plan.owners, plan.members); !ok)
    return objection{refusal::bad_map, ok.error().text};
  if (member == leaver || (leaver && !m.in_group() && !recovers))
    return objection{refusal::bad_map, "is not exactly one of member and leaver"};
  if (leaver && owns_requests(m) && !(recovers && only_asks_engine(m)))
    return objection{refusal::owns_requests, std::to_string(m.rollout->progress.live_requests)
                                                 + " requests are live"
                                                 + (moves_open(m) ? ", and one is moving" : "")};
  return {};
}

/// Nobody decodes while the full world is formed again: that time is the transition's, in the
/// ledger of every rank. A contraction's pause comes from the engine, which decodes meanwhile.
void count_restoration(rank_machine& m, bool begins, time_point now) {
  if (m.transition->plan.kind == transition_kind::restore)
    note_engine(m.time, begins ? rank_state::transition : rank_state::idle, now.time_since_epoch());
}

} // namespace

namespace {

/// Ranks have died: what they took part in is over. A transition that was committed is finished by
/// the recovery, since every epoch's group is decided by the planner alone.
void abandon_for(rank_machine& m, const prepare_transition& plan, time_point now, effects& out) {
  m.dead.insert(plan.dead.begin(), plan.dead.end());
  if (m.failure && m.failure->peer_lost) m.failure.reset();
  if (m.transition) {
    count_restoration(m, false, now);
    m.dead_epoch = std::max(m.dead_epoch, m.transition->plan.epoch);
    m.transition.reset();
  }
  lose_peers(m, plan.ended, out);
}

} // namespace

void answer_if_prepared(rank_machine& m, effects& out) {
  if (!m.transition || m.transition->phase != phase::preparing || !m.transition->answer) return;
  auto& t = *m.transition;
  if (t.plan.kind == transition_kind::recover) {
    if (takes_from_dead(m)) return;
    t.answer->taken = taken_from_dead(m);
  }
  t.phase = phase::prepared;
  post(m.who, planner_of(m), *t.answer, out);
}

void handle(rank_machine& m, const envelope&, const prepare_transition& plan, time_point now,
            effects& out) {
  if (m.transition && m.transition->plan.epoch == plan.epoch) {
    if (m.transition->phase == phase::prepared)
      post(m.who, planner_of(m), *m.transition->answer, out);
    return;
  }
  if (m.last_refusal && m.last_refusal->epoch == plan.epoch)
    return post(m.who, planner_of(m), *m.last_refusal, out);
  const bool late = m.transition && plan.epoch < m.transition->plan.epoch; // Overtaken on its way.
  if (plan.epoch <= m.who.stamp.epoch || plan.epoch <= m.dead_epoch || late) {
    ++m.drops.stale_epoch;
    return;
  }
  if (m.stopping) return;
  const bool recovers = plan.kind == transition_kind::recover;
  if (recovers) abandon_for(m, plan, now, out);
  if (auto no = object_to(m, plan)) return refuse(m, plan.epoch, no->reason, no->text, out);
  m.transition.emplace();
  m.transition->plan = plan;
  count_restoration(m, true, now);
  post(m.who, engine_of(m),
       engine_prepare{plan.epoch, plan.members, plan.owners, recovers, plan.dead}, out);
}

void handle(rank_machine& m, const envelope&, const engine_prepared& done, time_point now,
            effects& out) {
  if (!m.transition || m.transition->plan.epoch != done.epoch
      || m.transition->phase != phase::preparing) {
    ++m.drops.stale_epoch;
    return;
  }
  auto& t = *m.transition;
  const auto due_here = experts_of(t.plan.owners, m.config.self);
  if (done.map_hash != t.plan.map_hash || done.experts_resident != due_here) {
    const auto text = "the engine holds " + std::to_string(done.experts_resident) + " of "
                      + std::to_string(due_here) + " experts, or follows another map";
    post(m.who, engine_of(m), engine_abort{done.epoch}, out);
    count_restoration(m, false, now);
    m.transition.reset();
    return refuse(m, done.epoch, refusal::bad_map, text, out);
  }
  t.answer = prepared{done.epoch, done.map_hash, done.experts_resident, done.bytes_pulled,
                      {},         done.address};
  answer_if_prepared(m, out);
}

void handle(rank_machine& m, const envelope&, const engine_refused& no, time_point now,
            effects& out) {
  if (!m.transition || m.transition->plan.epoch != no.epoch
      || m.transition->phase != phase::preparing) {
    ++m.drops.stale_epoch;
    return;
  }
  count_restoration(m, false, now);
  m.transition.reset();
  refuse(m, no.epoch, no.reason, no.text, out);
}

void handle(rank_machine& m, const envelope&, const abort_transition& order, time_point now,
            effects& out) {
  const bool current = m.transition && m.transition->plan.epoch == order.epoch;
  if (order.epoch <= m.who.stamp.epoch || (current && m.transition->phase == phase::committed)) {
    ++m.drops.stale_epoch;
    return;
  }
  if (current) {
    post(m.who, engine_of(m), engine_abort{order.epoch}, out);
    count_restoration(m, false, now);
    m.transition.reset();
  }
  m.dead_epoch = std::max(m.dead_epoch, order.epoch);
  post(m.who, planner_of(m), transition_aborted{order.epoch}, out);
}

void handle(rank_machine& m, const envelope&, const commit_transition& order, time_point,
            effects& out) {
  if (m.last_switch && m.last_switch->epoch == order.epoch)
    return post(m.who, planner_of(m), *m.last_switch, out);
  if (!m.transition || m.transition->plan.epoch != order.epoch
      || m.transition->phase == phase::preparing) {
    ++m.drops.stale_epoch;
    return;
  }
  if (m.transition->phase == phase::committed) return;
  m.transition->phase = phase::committed;
  const bool decodes = rollout_runs(m) && m.rollout->started && !m.rollout->ending;
  post(m.who, engine_of(m),
       engine_commit{order.epoch, m.transition->plan.decode && decodes, order.addresses}, out);
}

void handle(rank_machine& m, const envelope&, const switched& done, time_point now, effects& out) {
  if (!m.transition || m.transition->plan.epoch != done.epoch
      || m.transition->phase != phase::committed) {
    ++m.drops.stale_epoch;
    return;
  }
  m.who.stamp.epoch = done.epoch;
  m.dead_epoch = std::max(m.dead_epoch, done.epoch);
  m.members = m.transition->plan.members;
  m.settled_epoch = false;
  m.last_switch = done;
  count_restoration(m, false, now);
  m.transition.reset();
  post(m.who, planner_of(m), done, out);
}

void handle(rank_machine& m, const envelope&, const settle_transition& order, time_point,
            effects& out) {
  // A recovery that is being prepared may have brought experts that this epoch does not know.
  if (order.epoch != m.who.stamp.epoch || (!m.settled_epoch && m.transition)) {
    ++m.drops.stale_epoch;
    return;
  }
  if (!m.settled_epoch) {
    m.settled_epoch = true;
    post(m.who, engine_of(m), engine_settle{order.epoch}, out);
  }
  post(m.who, planner_of(m), settled{order.epoch, !m.in_group()}, out);
}

} // namespace adafloor::rank_parts
