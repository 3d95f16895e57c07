#include "planner/protocol/broker_parts.hpp"

#include <limits>

namespace adafloor::broker_parts {
namespace {

/// The part of the first result's time that is start-up.
microseconds start_up_of(const queue_state& q) {
  return std::max(microseconds{0}, q.first_result.value - q.unit.value);
}

bool fits(const queue_state& q, microseconds left) {
  return q.first_result.value <= left && q.unit.value <= left;
}

bool short_for(const queue_state& q, microseconds left) {
  return start_up_of(q) * 4 > left;
}

/// Of two that fit, whether `a` goes before `b`.
bool goes_before(const queue_state& a, const queue_state& b, microseconds left) {
  if (a.policy.priority != b.policy.priority) return a.policy.priority > b.policy.priority;
  if (short_for(a, left) != short_for(b, left)) return short_for(b, left);
  if (a.served != b.served) return a.served < b.served;
  return start_up_of(a) > start_up_of(b);
}

microseconds per_weight(const queue_state& q, microseconds time) {
  return time / std::max<std::int64_t>(q.policy.weight, 1);
}

queue_state& queue_of(broker_machine& m, std::uint32_t number) {
  auto& q = m.queues[number];
  q.policy.queue = number;
  return q;
}

/// A queue that was empty does not claim the time in which it was.
void wake(broker_machine& m, queue_state& woken) {
  if (!woken.waiting.empty() || woken.leases > 0) return;
  std::optional<microseconds> least;
  for (const auto& [number, q] : m.queues)
    if (&q != &woken && (!q.waiting.empty() || q.leases > 0))
      least = std::min(least.value_or(q.served), q.served);
  if (least) woken.served = std::max(woken.served, *least);
}

/// Work of a higher priority waits that nobody does and that could be done here.
bool must_give_way(broker_machine& m, const rank_state& r, const queue_state& q, time_point now) {
  const auto* better = choose_queue(m, r, now);
  return better && better->policy.priority > q.policy.priority && better->leases == 0;
}

/// Null unless the lease has the unit and has not answered it.
unit_entry* taken_by(broker_machine& m, const lease_state& l, std::uint64_t number) {
  const auto found = m.units.find(number);
  const bool taken = found != m.units.end() && found->second.state == unit_state::taken
                     && found->second.lease == l.id;
  return taken ? &found->second : nullptr;
}

/// What the lease gets next: see broker_machine.
std::optional<std::uint64_t> next_unit(const broker_machine& m, const lease_state& l,
                                       const queue_state& q) {
  const auto killed = [&](std::uint64_t number) { return m.units.at(number).deaths > 0; };
  if (l.taken.size() == 1 && killed(*l.taken.begin())) return {}; // It is alone.
  const auto fresh = std::find_if_not(q.waiting.begin(), q.waiting.end(), killed);
  if (fresh != q.waiting.end()) return *fresh;
  if (q.waiting.empty() || !l.taken.empty()) return {};
  return *q.waiting.begin();
}

void take_units(broker_machine& m, lease_state& l, queue_state& q, std::size_t most) {
  while (l.batch_units.size() < most) {
    const auto number = next_unit(m, l, q);
    if (!number) return;
    q.waiting.erase(*number);
    auto& unit = m.units[*number];
    unit.state = unit_state::taken;
    unit.lease = l.id;
    l.taken.insert(*number);
    l.batch_units.push_back(*number);
  }
}

/// Units that can be done in what is left of the window.
std::size_t units_for(const rank_state& r, const queue_state& q, time_point now) {
  const auto left = left_of(r, now);
  const bool working = r.lease->working_at > microseconds{0};
  const auto spent = now - r.lease->progress_at;
  const auto first = working ? q.unit.value : q.first_result.value - spent;
  if (first > left || q.unit.value > left) return 0;
  if (q.unit.value <= microseconds{0}) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(1 + (left - first) / q.unit.value);
}

void learn_from_result(queue_state& q, lease_state& l, const work_result& done, time_point now) {
  const auto took = std::max(now - l.progress_at, microseconds{0});
  if (l.working_at == microseconds{0}) {
    q.first_result.add(took);
    l.working_at = std::max(l.granted_at, now.time_since_epoch() - std::min(q.unit.value, took));
  } else {
    q.unit.add(took);
  }
  l.progress_at = now;
  ++l.units_done;
  l.tokens += done.tokens.size();
}

} // namespace

microseconds left_of(const rank_state& r, time_point now) {
  const auto age = now - r.told_at;
  return std::max(r.window - age, age / 10);
}

queue_state* choose_queue(broker_machine& m, const rank_state& r, time_point now) {
  const auto left = left_of(r, now);
  queue_state* best = nullptr;
  if (left < m.config.window_min) return best;
  for (auto& [number, q] : m.queues)
    if (!q.waiting.empty() && fits(q, left) && (!best || goes_before(q, *best, left))) best = &q;
  return best;
}

void open_account(broker_machine& m, lease_state& l) {
  auto& q = m.queues.at(l.queue);
  ++q.leases;
  l.charged = per_weight(q, l.window);
  q.served += l.charged;
}

void close_account(broker_machine& m, lease_state& l, time_point now) {
  auto& q = m.queues.at(l.queue);
  const auto at = now.time_since_epoch();
  --q.leases;
  q.served -= l.charged;
  if (l.phase == lease_phase::offered) return;
  q.served += per_weight(q, at - l.granted_at);
  if (l.revoked_at > microseconds{0}) q.stop.add(at - l.revoked_at);
  if (l.working_at == microseconds{0} && !l.taken.empty())
    q.first_result.at_least((l.revoked_at > microseconds{0} ? l.revoked_at : at) - l.granted_at);
}

void requeue(broker_machine& m, lease_state& l) {
  for (auto number : l.taken)
    if (auto* unit = taken_by(m, l, number)) {
      unit->state = unit_state::waiting;
      m.queues[unit->work.queue].waiting.insert(number);
    }
  l.taken.clear();
}

void note_deaths(broker_machine& m, const lease_state& l, rank_id rank,
                 const std::vector<std::uint64_t>& units, effects& out) {
  const auto most = m.config.unit_attempts_max;
  for (const auto number : units) {
    auto* unit = taken_by(m, l, number);
    if (!unit || ++unit->deaths < most || most == 0) continue;
    unit->state = unit_state::storing;
    work_result given_up;
    given_up.lease = l.id;
    given_up.unit = number;
    given_up.error = "given up: its worker died " + std::to_string(unit->deaths)
                     + " times at it, the last time on rank " + std::to_string(rank.value)
                     + "; lease.max_unit_attempts bounds that";
    post(m.who, local(m, role_kind::recorder), std::move(given_up), out);
  }
}

void keep_partial(broker_machine& m, const lease_state& l,
                  const std::vector<partial_answer>& parts) {
  for (const auto& part : parts)
    if (auto* unit = taken_by(m, l, part.unit)) {
      unit->work.response = part.tokens;
      unit->work.logprobs = part.logprobs;
    }
}

void fade_estimates(broker_machine& m, const rank_state& r, time_point now) {
  const auto left = left_of(r, now);
  for (auto& [number, q] : m.queues) {
    if (q.waiting.empty() || fits(q, left)) continue;
    q.first_result.value -= q.first_result.value / 16;
    q.unit.value -= q.unit.value / 16;
  }
}

void hear_policy(broker_machine& m, const queue_policy& policy) {
  auto& q = queue_of(m, policy.queue);
  q.policy = policy;
  if (q.unit.seen == 0) q.unit.value = policy.unit_guess;
  if (q.first_result.seen == 0) q.first_result.value = policy.start_up_guess + policy.unit_guess;
}

void hear_work(broker_machine& m, const queue_work& more, time_point now, effects& out) {
  for (const auto& work : more.units) {
    if (m.units.count(work.unit)) continue;
    if (m.units.size() >= m.config.queue_max) {
      ++m.units_refused;
      continue;
    }
    auto& q = queue_of(m, work.queue);
    wake(m, q);
    m.units[work.unit].work = work;
    q.waiting.insert(work.unit);
  }
  offer(m, now, out);
}

void hear_take(broker_machine& m, const envelope& in, const take_work& ask, time_point now,
               effects& out) {
  auto* r = holder(m, in.from.rank, ask.lease);
  if (!r || ask.batch < r->lease->batch) return;
  auto& l = *r->lease;
  auto& q = m.queues.at(l.queue);
  note_accepted(l, now);
  const bool repeated = ask.batch == l.batch;
  const bool gives_way = must_give_way(m, *r, q, now);
  const auto can_do = gives_way ? 0 : units_for(*r, q, now);
  if (!repeated) {
    l.batch = ask.batch;
    l.batch_units.clear();
    if (l.phase == lease_phase::granted)
      take_units(m, l, q, std::min<std::size_t>({ask.count, m.config.take_max, can_do}));
  }
  work_units answer{ask.lease, ask.batch, {}};
  for (auto number : l.batch_units)
    if (const auto& unit = m.units[number];
        unit.state == unit_state::taken && unit.lease == ask.lease)
      answer.units.push_back(unit.work);
  post(m.who, in.from, std::move(answer), out);
  if (l.taken.empty() && (q.waiting.empty() || can_do == 0)) revoke(m, in.from.rank, l, now, out);
}

void hear_result(broker_machine& m, const envelope& in, const work_result& done, time_point now,
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
  auto& q = m.queues.at(r->lease->queue);
  learn_from_result(q, *r->lease, done, now);
  m.queues.at(unit.work.queue).waiting.erase(done.unit);
  unit.state = unit_state::storing;
  unit.lease = done.lease;
  post(m.who, local(m, role_kind::recorder), done, out);
}

void hear_kept(broker_machine& m, const work_kept& kept, effects& out) {
  const auto found = m.units.find(kept.unit);
  if (found == m.units.end() || found->second.state != unit_state::storing) {
    ++m.drops.unexpected;
    return;
  }
  auto& unit = found->second;
  unit.state = unit_state::kept;
  unit.work = {unit.work.unit, {}, 0, unit.work.queue};
  for (const auto& [rank, r] : m.ranks)
    if (r.lease && r.lease->id == unit.lease)
      post(m.who, role_at(rank, role_kind::sidecar), work_kept{unit.lease, kept.unit}, out);
}

} // namespace adafloor::broker_parts
