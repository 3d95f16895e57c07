#include "planner/protocol/sidecar.hpp"

#include <algorithm>

namespace adafloor {
namespace {

using phase = sidecar_machine::phase;

address gate(const sidecar_machine& m) {
  return role_at(m.config.self, role_kind::rank);
}
address broker(const sidecar_machine& m) {
  return role_at(m.config.broker_rank, role_kind::broker);
}
address worker(const sidecar_machine& m) {
  return role_at(m.config.self, role_kind::worker);
}

void give_back(sidecar_machine& m, effects& out) {
  post(m.who, gate(m),
       lease_returned{m.lease, m.forced, m.clean, m.units_done, std::move(m.died_at),
                      std::move(m.partial)},
       out);
  m.results.clear();
  m.running.clear();
  m.now_in = m.clean ? phase::idle : phase::unclean;
}

/// Within grace, results are made durable before the lease goes back; after it, nothing is waited
/// for but the proof that the worker is gone.
void give_back_if_done(sidecar_machine& m, effects& out) {
  const bool ending = m.now_in == phase::stopping || m.now_in == phase::killing;
  if (ending && m.worker_gone && (m.results.empty() || m.now_in == phase::killing))
    give_back(m, out);
}

void begin_stopping(sidecar_machine& m, microseconds grace, time_point now, effects& out) {
  m.now_in = phase::stopping;
  m.stop_before = now + grace;
  m.ready.clear();
  m.asked.reset();
  m.ask_again_at.reset();
  if (!m.worker_gone) post(m.who, worker(m), stop_worker{m.lease, false}, out);
  give_back_if_done(m, out);
}

/// Units held ahead of the worker: enough for the way to the broker and back, and not so many that
/// long ones wait here while other ranks have none.
std::uint32_t prefetch(const sidecar_machine& m) {
  const auto& c = m.config;
  if (m.unit_time <= microseconds{0}) return c.prefetch;
  const auto fit = std::min<std::int64_t>(c.ahead / m.unit_time, c.prefetch_max);
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(fit));
}

void note_result(sidecar_machine& m, time_point now) {
  if (m.result_at) {
    const auto took = std::max(now - *m.result_at, microseconds{1});
    m.unit_time = m.unit_time > microseconds{0} ? m.unit_time + (took - m.unit_time) / 8 : took;
  }
  m.result_at = now;
}

void ask(sidecar_machine& m, time_point now, effects& out) {
  const auto ahead = prefetch(m);
  const auto held = static_cast<std::uint32_t>(m.ready.size());
  if (m.now_in != phase::holding || m.asked || m.ask_again_at || 2 * held > ahead) return;
  const auto count = ahead - held + (m.running.empty() ? 1 : 0);
  m.asked = take_work{m.lease, ++m.batch, count};
  m.asked_at = now;
  post(m.who, broker(m), *m.asked, out);
}

bool may_run(const sidecar_machine& m, const work_unit& next) {
  if (m.results.size() >= m.config.results_max) return false;
  if (m.running.empty()) return true;
  return runs_together(next.kind) && next.kind == m.running.begin()->second
         && m.running.size() < m.config.together;
}

void run_next(sidecar_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::holding) return;
  if (now >= m.ends_at) return begin_stopping(m, m.grace, now, out);
  while (!m.ready.empty() && may_run(m, m.ready.front())) {
    auto& next = m.ready.front();
    m.running[next.unit] = next.kind;
    m.worker_gone = false;
    post(m.who, worker(m),
         run_unit{m.lease, std::move(next), std::max(m.needed_at - now, microseconds{0})}, out);
    m.ready.pop_front();
  }
  ask(m, now, out);
}

void deny(sidecar_machine& m, lease_id id, std::string text, effects& out) {
  post(m.who, gate(m), lease_denied{id, std::move(text)}, out);
}

bool concerns(sidecar_machine& m, lease_id id) {
  if (m.now_in != phase::idle && m.now_in != phase::unclean && m.lease == id) return true;
  ++m.drops.stale_lease;
  return false;
}

void handle(sidecar_machine& m, const lease_grant& grant, time_point now, effects& out) {
  if (m.now_in == phase::holding && m.lease == grant.lease)
    return post(m.who, gate(m), lease_accepted{grant.lease}, out);
  if (m.job_ended) return deny(m, grant.lease, "the job ends", out);
  if (m.now_in == phase::unclean)
    return deny(m, grant.lease, "the end of an earlier lease could not be proven", out);
  if (m.now_in != phase::idle) return deny(m, grant.lease, "an earlier lease is ending", out);
  m.now_in = phase::holding;
  m.lease = grant.lease;
  m.grace = grant.grace;
  m.ends_at = now + grant.duration;
  m.needed_at = now + grant.window;
  m.worker_gone = true;
  m.forced = false;
  m.clean = true;
  m.batch = 0;
  m.units_done = 0;
  m.died_at.clear();
  m.partial.clear();
  m.unit_time = microseconds{0};
  m.result_at.reset();
  post(m.who, gate(m), lease_accepted{grant.lease}, out);
  ask(m, now, out);
}

void handle(sidecar_machine& m, const lease_renew& renew, time_point now, effects&) {
  if (!concerns(m, renew.lease) || m.now_in != phase::holding) return;
  m.ends_at = std::max(m.ends_at, now + renew.duration);
  m.needed_at = now + renew.window;
}

void handle(sidecar_machine& m, const lease_revoke& revoke, time_point now, effects& out) {
  if (concerns(m, revoke.lease) && m.now_in == phase::holding)
    begin_stopping(m, revoke.grace, now, out);
}

void handle(sidecar_machine& m, const stop&, time_point now, effects& out) {
  m.job_ended = true;
  if (m.now_in == phase::holding) begin_stopping(m, m.grace, now, out);
}

void handle(sidecar_machine& m, const work_units& answer, time_point now, effects& out) {
  if (!concerns(m, answer.lease) || !m.asked || m.asked->batch != answer.batch) return;
  m.asked.reset();
  if (answer.units.empty()) m.ask_again_at = now + m.config.empty_pause;
  m.ready.insert(m.ready.end(), answer.units.begin(), answer.units.end());
  run_next(m, now, out);
}

void handle(sidecar_machine& m, const work_kept& kept, time_point now, effects& out) {
  if (!concerns(m, kept.lease) || m.results.erase(kept.unit) == 0) return;
  ++m.units_done;
  run_next(m, now, out);
  give_back_if_done(m, out);
}

void handle(sidecar_machine& m, const work_result& done, time_point now, effects& out) {
  if (!concerns(m, done.lease) || m.running.erase(done.unit) == 0) return;
  note_result(m, now);
  m.results[done.unit] = {done, now};
  post(m.who, broker(m), done, out);
  run_next(m, now, out);
}

/// A worker that ended by itself may be starting anew for a unit that was on its way, so it is told
/// to stop like any other, and gone when it has answered that.
void handle(sidecar_machine& m, const worker_stopped& gone, time_point now, effects& out) {
  if (!concerns(m, gone.lease)) return;
  m.forced = m.forced || gone.forced;
  m.clean = m.clean && gone.clean;
  m.partial.insert(m.partial.end(), gone.partial.begin(), gone.partial.end());
  if (m.now_in == phase::holding && gone.forced)
    for (const auto& [unit, kind] : m.running)
      m.died_at.push_back(unit);
  m.running.clear();
  if (m.now_in == phase::holding) return begin_stopping(m, m.grace, now, out);
  if (m.now_in == phase::stopping && gone.forced) return; // By itself, as it was told to stop.
  m.worker_gone = true;
  give_back_if_done(m, out);
}

/// The only role that may say M to a sidecar; `trainer` for messages that nobody says to it.
template <class M>
constexpr role_kind speaker_of() {
  if constexpr (one_of<M, lease_grant, lease_renew, lease_revoke, stop>)
    return role_kind::rank;
  else if constexpr (one_of<M, work_units, work_kept>)
    return role_kind::broker;
  else if constexpr (one_of<M, work_result, worker_stopped>)
    return role_kind::worker;
  else
    return role_kind::trainer;
}

void resend(sidecar_machine& m, time_point now, effects& out) {
  if (m.asked && due(m.asked_at, now, m.config.resend)) post(m.who, broker(m), *m.asked, out);
  for (auto& [unit, r] : m.results)
    if (due(r.sent_at, now, m.config.resend)) post(m.who, broker(m), r.result, out);
}

} // namespace

sidecar_machine::sidecar_machine(sidecar_config c, fence stamp) : config(c) {
  who = {role_at(c.self, role_kind::sidecar), stamp};
}

void step(sidecar_machine& m, const envelope& in, time_point now, effects& out) {
  std::visit(
      [&](const auto& body) {
        constexpr auto speaker = speaker_of<std::decay_t<decltype(body)>>();
        if constexpr (speaker == role_kind::trainer) {
          ++m.drops.unexpected;
        } else {
          const auto from =
              role_at(speaker == role_kind::broker ? m.config.broker_rank : m.config.self, speaker);
          if (in.from == from)
            handle(m, body, now, out);
          else
            ++m.drops.unexpected;
        }
      },
      in.body);
}

void tick(sidecar_machine& m, time_point now, effects& out) {
  const auto missed = m.own_pause.missed(now);
  if (m.now_in == phase::killing) m.stop_before += missed;
  switch (m.now_in) {
  case phase::idle:
  case phase::unclean:
    return;
  case phase::holding:
    if (now >= m.ends_at) return begin_stopping(m, m.grace, now, out);
    if (m.ask_again_at && now >= *m.ask_again_at) {
      m.ask_again_at.reset();
      ask(m, now, out);
    }
    break;
  case phase::stopping:
    if (now < m.stop_before) break;
    if (m.worker_gone) return give_back(m, out);
    m.now_in = phase::killing;
    m.forced = true;
    m.stop_before = now + m.config.kill_max;
    post(m.who, worker(m), stop_worker{m.lease, true}, out);
    break;
  case phase::killing:
    if (now < m.stop_before) break;
    m.clean = false;
    return give_back(m, out);
  }
  resend(m, now, out);
}

} // namespace adafloor
