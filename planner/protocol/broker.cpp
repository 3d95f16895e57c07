#include "planner/protocol/broker.hpp"

#include <algorithm>

namespace adafloor {
namespace {

using lease_phase = broker_machine::lease_phase;
using lease_state = broker_machine::lease_state;
using rank_state = broker_machine::rank_state;
using unit_state = broker_machine::unit_state;
using unit_entry = broker_machine::unit_entry;

address local(const broker_machine& m, role_kind role) {
  return role_at(m.config.self, role);
}

void send_grant(broker_machine& m, rank_id rank, lease_state& l, time_point now, effects& out) {
  l.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank),
       lease_grant{l.id, m.config.duration, m.config.grace, m.config.memory_bytes}, out);
}

void send_revoke(broker_machine& m, rank_id rank, lease_state& l, time_point now, effects& out) {
  l.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank), lease_revoke{l.id, m.config.grace}, out);
}

/// Lends every free rank as long as there is work.
void offer(broker_machine& m, time_point now, effects& out) {
  if (m.recalled) return;
  for (auto& [rank, r] : m.ranks) {
    if (m.waiting.empty()) return;
    if (!r.available || r.lease || r.unreturned) continue;
    r.lease.emplace();
    r.lease->id = lease_id{r.epoch, ++m.lease_counter};
    r.lease->granted_at = now.time_since_epoch();
    send_grant(m, rank, *r.lease, now, out);
  }
}

void revoke(broker_machine& m, rank_id rank, lease_state& l, time_point now, effects& out) {
  if (l.phase == lease_phase::revoking) return;
  l.phase = lease_phase::revoking;
  l.revoked_at = now.time_since_epoch();
  l.revoked_since = now;
  send_revoke(m, rank, l, now, out);
}

void note_accepted(lease_state& l, time_point now) {
  if (l.phase != lease_phase::offered) return;
  l.phase = lease_phase::granted;
  l.granted_at = now.time_since_epoch();
  l.renewed_at = now;
}

/// Units that the lease took and did not answer go back to the queue.
void requeue(broker_machine& m, lease_state& l) {
  for (auto number : l.taken) {
    auto& unit = m.units[number];
    if (unit.state != unit_state::taken || !(unit.lease == l.id)) continue;
    unit.state = unit_state::waiting;
    m.waiting.insert(number);
  }
  l.taken.clear();
}

/// `record`: whether the lease ever ran.
void end_lease(broker_machine& m, rank_id rank, rank_state& r, bool record, bool forced,
               time_point now, effects& out) {
  auto& l = *r.lease;
  requeue(m, l);
  if (record)
    post(m.who, local(m, role_kind::trainer),
         lease_record{l.id, rank, l.granted_at, l.revoked_at, now.time_since_epoch(), forced,
                      l.units_done},
         out);
  r.lease.reset();
}

void answer_recall_if_done(broker_machine& m, effects& out) {
  if (!m.recall) return;
  std::vector<rank_id> unreturned;
  for (const auto& [rank, r] : m.ranks) {
    if (r.unreturned)
      unreturned.push_back(rank);
    else if (r.lease)
      return;
  }
  post(m.who, local(m, role_kind::planner), leases_recalled{*m.recall, std::move(unreturned)}, out);
  m.recall.reset();
}

/// The state of the rank if `id` is its lease; counts the message if not.
rank_state* holder(broker_machine& m, rank_id rank, lease_id id) {
  const auto found = m.ranks.find(rank);
  if (found != m.ranks.end() && found->second.lease && found->second.lease->id == id)
    return &found->second;
  ++m.drops.stale_lease;
  return nullptr;
}

void handle(broker_machine& m, const envelope&, const rank_available& news, time_point now,
            effects& out) {
  m.recalled = false;
  m.who.stamp.epoch = std::max(m.who.stamp.epoch, news.epoch);
  auto& r = m.ranks[news.rank];
  r.epoch = news.epoch;
  r.available = news.window >= m.config.window_min;
  offer(m, now, out);
}

void handle(broker_machine& m, const envelope&, const recall_leases& order, time_point now,
            effects& out) {
  m.recall = order.rollout;
  m.recalled = true;
  for (auto& [rank, r] : m.ranks) {
    r.available = false;
    if (r.lease) revoke(m, rank, *r.lease, now, out);
  }
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope&, const member_lost& news, time_point now,
            effects& out) {
  auto& r = m.ranks[news.rank];
  r.available = false;
  r.unreturned = true;
  if (r.lease) end_lease(m, news.rank, r, r.lease->phase != lease_phase::offered, true, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope&, const queue_work& more, time_point now,
            effects& out) {
  for (const auto& work : more.units) {
    if (m.units.count(work.unit)) continue;
    if (m.units.size() >= m.config.queue_max) {
      ++m.units_refused;
      continue;
    }
    m.units[work.unit].work = work;
    m.waiting.insert(work.unit);
  }
  offer(m, now, out);
}

void handle(broker_machine& m, const envelope& in, const lease_accepted& yes, time_point now,
            effects&) {
  if (auto* r = holder(m, in.from.rank, yes.lease)) note_accepted(*r->lease, now);
}

void handle(broker_machine& m, const envelope& in, const lease_denied& no, time_point now,
            effects& out) {
  auto* r = holder(m, in.from.rank, no.lease);
  if (!r) return;
  r->available = false; // until the planner says again that it is free
  end_lease(m, in.from.rank, *r, false, false, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope& in, const lease_returned& report, time_point now,
            effects& out) {
  post(m.who, in.from, lease_closed{report.lease}, out);
  auto* r = holder(m, in.from.rank, report.lease);
  if (!r) return;
  r->unreturned = !report.clean;
  r->available = r->available && report.clean;
  const bool ran = r->lease->phase != lease_phase::offered || report.units_done > 0;
  end_lease(m, in.from.rank, *r, ran, report.forced, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope& in, const take_work& ask, time_point now,
            effects& out) {
  auto* r = holder(m, in.from.rank, ask.lease);
  if (!r || ask.batch < r->lease->batch) return;
  auto& l = *r->lease;
  note_accepted(l, now);
  const bool repeated = ask.batch == l.batch;
  work_units answer{ask.lease, ask.batch, {}};
  if (!repeated) {
    l.batch = ask.batch;
    l.batch_units.clear();
    const auto most = std::min(ask.count, m.config.take_max);
    while (l.phase == lease_phase::granted && l.batch_units.size() < most && !m.waiting.empty()) {
      const auto number = *m.waiting.begin();
      m.waiting.erase(m.waiting.begin());
      m.units[number].state = unit_state::taken;
      m.units[number].lease = l.id;
      l.taken.insert(number);
      l.batch_units.push_back(number);
    }
  }
  for (auto number : l.batch_units)
    if (const auto& unit = m.units[number];
        unit.state == unit_state::taken && unit.lease == ask.lease)
      answer.units.push_back(unit.work);
  post(m.who, in.from, std::move(answer), out);
  if (l.taken.empty() && m.waiting.empty()) revoke(m, in.from.rank, l, now, out);
}

void handle(broker_machine& m, const envelope& in, const work_result& done, time_point,
            effects& out) {
  auto* r = holder(m, in.from.rank, done.lease);
  const auto found = m.units.find(done.unit);
  if (!r) return;
  if (found == m.units.end()) {
    ++m.drops.unexpected;
    return;
  }
  auto& unit = found->second;
  const bool ours = unit.lease == done.lease;
  r->lease->taken.erase(done.unit);
  if (unit.state == unit_state::storing) return;
  if (unit.state == unit_state::kept) {
    if (!ours) ++m.duplicates;
    return post(m.who, in.from, work_kept{done.lease, done.unit}, out);
  }
  m.waiting.erase(done.unit);
  unit.state = unit_state::storing;
  unit.lease = done.lease;
  ++r->lease->units_done;
  post(m.who, local(m, role_kind::recorder), done, out);
}

void handle(broker_machine& m, const envelope&, const work_kept& kept, time_point, effects& out) {
  const auto found = m.units.find(kept.unit);
  if (found == m.units.end() || found->second.state != unit_state::storing) {
    ++m.drops.unexpected;
    return;
  }
  auto& unit = found->second;
  unit.state = unit_state::kept;
  unit.work.prompt = {};
  for (const auto& [rank, r] : m.ranks)
    if (r.lease && r.lease->id == unit.lease)
      post(m.who, role_at(rank, role_kind::sidecar), work_kept{unit.lease, kept.unit}, out);
}

/// The only role that may say M to the broker; `engine` for messages that nobody says to it.
template <class M>
constexpr role_kind speaker_of() {
  if constexpr (one_of<M, rank_available, recall_leases>)
    return role_kind::planner;
  else if constexpr (one_of<M, member_lost>)
    return role_kind::membership;
  else if constexpr (one_of<M, queue_work>)
    return role_kind::trainer;
  else if constexpr (one_of<M, work_kept>)
    return role_kind::recorder;
  else if constexpr (one_of<M, lease_accepted, lease_denied, lease_returned>)
    return role_kind::rank;
  else if constexpr (one_of<M, take_work, work_result>)
    return role_kind::sidecar;
  else
    return role_kind::engine;
}

template <class M>
bool may_speak(broker_machine& m, const envelope& in) {
  constexpr auto speaker = speaker_of<M>();
  constexpr bool remote = speaker == role_kind::rank || speaker == role_kind::sidecar;
  if (in.from.role != speaker || (!remote && in.from.rank != m.config.self))
    return ++m.drops.unexpected, false;
  if (!remote) return true;
  if (!m.incarnations.accepts(in.from.rank, in.incarnation))
    return ++m.drops.stale_incarnation, false;
  if (in.stamp.term != m.who.stamp.term) return ++m.drops.stale_term, false;
  return true;
}

void tick_lease(broker_machine& m, rank_id rank, rank_state& r, time_point now, effects& out) {
  auto& l = *r.lease;
  const auto& c = m.config;
  switch (l.phase) {
  case lease_phase::offered:
    if (now - l.sent_at >= c.resend) send_grant(m, rank, l, now, out);
    break;
  case lease_phase::granted:
    if (due(l.renewed_at, now, c.renew))
      post(m.who, role_at(rank, role_kind::rank), lease_renew{l.id, c.duration}, out);
    break;
  case lease_phase::revoking:
    if (!r.unreturned && now - l.revoked_since > c.grace + c.return_margin) {
      r.unreturned = true;
      r.available = false;
      requeue(m, l);
    }
    if (now - l.sent_at >= c.resend) send_revoke(m, rank, l, now, out);
    break;
  }
}

} // namespace

broker_machine::broker_machine(broker_config c, term_id term) : config(c) {
  who.self = role_at(c.self, role_kind::broker);
  who.stamp.term = term;
}

void step(broker_machine& m, const envelope& in, time_point now, effects& out) {
  std::visit(
      [&](const auto& body) {
        using M = std::decay_t<decltype(body)>;
        if constexpr (speaker_of<M>() == role_kind::engine)
          ++m.drops.unexpected;
        else if (may_speak<M>(m, in))
          handle(m, in, body, now, out);
      },
      in.body);
}

void tick(broker_machine& m, time_point now, effects& out) {
  const auto missed = m.own_pause.missed(now);
  for (auto& [rank, r] : m.ranks) {
    if (!r.lease) continue;
    r.lease->revoked_since += missed;
    tick_lease(m, rank, r, now, out);
  }
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

} // namespace adafloor
