#include "planner/protocol/broker_parts.hpp"

namespace adafloor {
namespace broker_parts {
namespace {

void send_grant(broker_machine& m, rank_id rank, lease_state& l, time_point now, effects& out) {
  l.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank),
       lease_grant{l.id, m.config.duration, m.config.grace, m.config.memory_bytes,
                   left_of(m.ranks.at(rank), now)},
       out);
}

void send_revoke(broker_machine& m, rank_id rank, lease_state& l, time_point now, effects& out) {
  l.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank), lease_revoke{l.id, m.config.grace}, out);
}

/// Leases that run or end; with `offered`, those that may begin, too.
std::uint32_t count_leases(const broker_machine& m, bool offered) {
  std::uint32_t count = 0;
  for (const auto& [rank, r] : m.ranks)
    count += r.lease && (offered || r.lease->phase != lease_phase::offered) ? 1 : 0;
  return count;
}

/// Free ranks, the one with the longest window first.
std::vector<std::pair<microseconds, rank_id>> free_ranks(const broker_machine& m, time_point now) {
  std::vector<std::pair<microseconds, rank_id>> free;
  for (const auto& [rank, r] : m.ranks)
    if (r.available && !r.lease && !r.unreturned) free.emplace_back(-left_of(r, now), rank);
  std::sort(free.begin(), free.end());
  return free;
}

/// Told in the order of the slowest expected stop, all at once: they stop at the same time, so the
/// last of them, which the restoration waits for, has the earliest start.
void revoke_all(broker_machine& m, time_point now, effects& out) {
  std::vector<std::pair<microseconds, rank_id>> order;
  for (const auto& [rank, r] : m.ranks)
    if (r.lease) order.emplace_back(-m.queues.at(r.lease->queue).stop.value, rank);
  std::sort(order.begin(), order.end());
  for (const auto& [stop, rank] : order)
    revoke(m, rank, *m.ranks.at(rank).lease, now, out);
}

/// The newest leases have the least to lose.
void revoke_beyond(broker_machine& m, std::uint32_t most, time_point now, effects& out) {
  std::vector<std::pair<std::uint32_t, rank_id>> order;
  for (const auto& [rank, r] : m.ranks)
    if (r.lease && r.lease->phase != lease_phase::revoking)
      order.emplace_back(r.lease->id.counter, rank);
  std::sort(order.begin(), order.end());
  for (std::size_t i = most; i < order.size(); ++i)
    revoke(m, order[i].second, *m.ranks.at(order[i].second).lease, now, out);
}

/// `record`: whether the lease ever ran.
void end_lease(broker_machine& m, rank_id rank, rank_state& r, bool record, bool forced,
               time_point now, effects& out) {
  auto& l = *r.lease;
  close_account(m, l, now);
  requeue(m, l);
  lease_record told;
  told.lease = l.id;
  told.rank = rank;
  told.queue = l.queue;
  told.window = l.window;
  told.granted_at = l.granted_at;
  told.working_at = l.working_at;
  told.revoked_at = l.revoked_at;
  told.returned_at = now.time_since_epoch();
  told.forced = forced;
  told.clean = !r.unreturned;
  told.units_done = l.units_done;
  told.tokens = l.tokens;
  if (record) post(m.who, local(m, role_kind::trainer), std::move(told), out);
  r.lease.reset();
}

lending_state lending_of(const broker_machine& m) {
  lending_state told;
  told.steps_lent = m.pace.steps_lent;
  told.steps_alone = m.pace.steps_alone;
  told.slowdown_ppm = static_cast<std::int32_t>(slowdown(m.pace).value_or(0) * 1e6);
  told.limited = m.pace.ranks_max.has_value();
  told.ranks_max = m.pace.ranks_max.value_or(0);
  told.cuts = m.pace.cuts;
  return told;
}

void answer_recall_if_done(broker_machine& m, effects& out) {
  if (!m.recall) return;
  std::vector<unreturned_lease> unreturned;
  for (const auto& [rank, r] : m.ranks) {
    if (r.unreturned)
      unreturned.push_back({rank, r.last_lease, r.why});
    else if (r.lease)
      return;
  }
  post(m.who, local(m, role_kind::trainer), lending_of(m), out);
  post(m.who, local(m, role_kind::planner), leases_recalled{*m.recall, std::move(unreturned)}, out);
  m.recall.reset();
}

} // namespace

rank_state* holder(broker_machine& m, rank_id rank, lease_id id) {
  const auto found = m.ranks.find(rank);
  if (found != m.ranks.end() && found->second.lease && found->second.lease->id == id)
    return &found->second;
  ++m.drops.stale_lease;
  return nullptr;
}

void offer(broker_machine& m, time_point now, effects& out) {
  if (m.recalled || measuring(m.pace, now)) return;
  for (const auto& [left, rank] : free_ranks(m, now)) {
    if (m.pace.ranks_max && count_leases(m, true) >= *m.pace.ranks_max) return;
    auto& r = m.ranks.at(rank);
    const auto* queue = choose_queue(m, r, now);
    if (!queue) continue;
    auto& l = r.lease.emplace();
    l.id = r.last_lease = lease_id{r.epoch, ++m.lease_counter};
    l.queue = queue->policy.queue;
    l.window = left_of(r, now);
    l.granted_at = now.time_since_epoch();
    l.progress_at = now;
    open_account(m, l);
    send_grant(m, rank, l, now, out);
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
  l.renewed_at = l.progress_at = now;
}

namespace {

void handle(broker_machine& m, const envelope&, const rank_available& news, time_point now,
            effects& out) {
  m.recalled = false;
  m.who.stamp.epoch = std::max(m.who.stamp.epoch, news.epoch);
  auto& r = m.ranks[news.rank];
  const bool is_new = !r.available || r.epoch != news.epoch;
  r.epoch = news.epoch;
  r.available = true;
  r.told_at = now;
  r.window = news.window;
  // A pause must not make the window too short to be lent.
  const auto spare = news.window - m.config.window_min;
  if (is_new) note_stage(m.pace, news.members, spare, now);
  offer(m, now, out);
  if (is_new) fade_estimates(m, r, now);
}

void handle(broker_machine& m, const envelope&, const recall_leases& order, time_point now,
            effects& out) {
  m.recall = order.rollout;
  m.recalled = true;
  for (auto& [rank, r] : m.ranks)
    r.available = false;
  revoke_all(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope&, const member_lost& news, time_point now,
            effects& out) {
  auto& r = m.ranks[news.rank];
  r.available = false;
  r.unreturned = true;
  r.why = news.reason;
  if (r.lease) end_lease(m, news.rank, r, r.lease->phase != lease_phase::offered, true, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope&, const decode_pace& pace, time_point now, effects&) {
  note_pace(m.pace, pace, now);
}

void handle(broker_machine& m, const envelope&, const queue_policy& policy, time_point, effects&) {
  hear_policy(m, policy);
}

void handle(broker_machine& m, const envelope&, const queue_work& more, time_point now,
            effects& out) {
  hear_work(m, more, now, out);
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
  r->why = "its work was killed, but is not known to be gone";
  r->available = r->available && report.clean;
  note_deaths(m, *r->lease, in.from.rank, report.died_at, out);
  keep_partial(m, *r->lease, report.partial);
  const bool ran = r->lease->phase != lease_phase::offered || report.units_done > 0;
  end_lease(m, in.from.rank, *r, ran, report.forced, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

void handle(broker_machine& m, const envelope& in, const take_work& ask, time_point now,
            effects& out) {
  hear_take(m, in, ask, now, out);
}

void handle(broker_machine& m, const envelope& in, const work_result& done, time_point now,
            effects& out) {
  hear_result(m, in, done, now, out);
}

void handle(broker_machine& m, const envelope&, const work_kept& kept, time_point, effects& out) {
  hear_kept(m, kept, out);
}

/// The only role that may say M to the broker; `engine` for messages that nobody says to it.
template <class M>
constexpr role_kind speaker_of() {
  if constexpr (one_of<M, rank_available, recall_leases, decode_pace>)
    return role_kind::planner;
  else if constexpr (one_of<M, member_lost>)
    return role_kind::membership;
  else if constexpr (one_of<M, queue_work, queue_policy>)
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
      post(m.who, role_at(rank, role_kind::rank), lease_renew{l.id, c.duration, left_of(r, now)},
           out);
    break;
  case lease_phase::revoking:
    if (!r.unreturned && now - l.revoked_since > c.grace + c.return_margin) {
      r.unreturned = true;
      r.why = "it did not return within "
              + std::to_string((c.grace + c.return_margin).count() / 1000) + " ms";
      r.available = false;
      requeue(m, l);
    }
    if (now - l.sent_at >= c.resend) send_revoke(m, rank, l, now, out);
    break;
  }
}

} // namespace
} // namespace broker_parts

broker_machine::broker_machine(broker_config c, term_id term) : config(c) {
  who.self = role_at(c.self, role_kind::broker);
  who.stamp.term = term;
  pace.config = c.pace;
}

std::size_t broker_machine::units_waiting() const {
  std::size_t count = 0;
  for (const auto& [number, q] : queues)
    count += q.waiting.size();
  return count;
}

void step(broker_machine& m, const envelope& in, time_point now, effects& out) {
  using namespace broker_parts;
  std::visit(
      [&](const auto& body) {
        using M = std::decay_t<decltype(body)>;
        if constexpr (speaker_of<M>() == role_kind::engine)
          ++m.drops.unexpected;
        else if (may_speak<M>(m, in))
          handle(m, in, body, now, out);
      },
      in.body);
  note_lent(m.pace, count_leases(m, false), now);
}

void tick(broker_machine& m, time_point now, effects& out) {
  using namespace broker_parts;
  const auto missed = m.own_pause.missed(now);
  for (auto& [rank, r] : m.ranks) {
    if (!r.lease) continue;
    r.lease->revoked_since += missed;
    tick_lease(m, rank, r, now, out);
  }
  const auto lent = count_leases(m, false);
  note_lent(m.pace, lent, now);
  if (adapt(m.pace, lent, now)) revoke_beyond(m, *m.pace.ranks_max, now, out);
  offer(m, now, out);
  answer_recall_if_done(m, out);
}

} // namespace adafloor
