#include "planner/protocol/planner_parts.hpp"

#include <algorithm>
#include <utility>

namespace adafloor::planner_parts {
namespace {

using rollout_part = planner_machine::rollout_part;
using rank_part = planner_machine::rank_part;
using response_state = planner_machine::response_state;

/// Why the order cannot be obeyed, or empty.
std::string objection_to(const planner_machine& m, const begin_rollout& order) {
  if (m.now_in == phase::failed) return m.failure;
  if (m.stopping) return "the job is being stopped";
  if (m.rollout) return "rollout " + std::to_string(m.rollout->id.value) + " is running";
  if (m.weights) return "a weight update is running";
  if (m.weights_mixed)
    return "the ranks hold different weights since an update failed; update them again";
  if (order.rollout <= m.last_rollout)
    return "rollout numbers grow; the last was " + std::to_string(m.last_rollout.value);
  if (order.requests.empty()) return "there are no requests";
  if (order.requests.size() > m.config.requests_max)
    return std::to_string(order.requests.size()) + " requests; at most "
           + std::to_string(m.config.requests_max) + " fit one rollout";
  if (order.homes.size() != order.requests.size())
    return std::to_string(order.homes.size()) + " homes for "
           + std::to_string(order.requests.size()) + " requests";
  for (auto home : order.homes)
    if (home.value >= m.config.world_size)
      return "home rank " + std::to_string(home.value) + " is not in the world of "
             + std::to_string(m.config.world_size);
  for (const auto& exit : order.exits)
    if (exit.to < 1 || exit.to >= m.config.world_size)
      return "exit to " + std::to_string(exit.to) + " ranks; allowed: 1.."
             + std::to_string(m.config.world_size - 1);
  if (auto text = objection_to_rules(order); !text.empty()) return text;
  std::map<request_id, std::uint32_t> longest;
  for (const auto& request : order.requests)
    if (!longest.emplace(request.id, request.max_tokens).second)
      return "request " + std::to_string(request.id.value) + " is there twice";
  for (const auto& run : order.resumed) {
    const auto found = longest.find(run.request);
    if (found == longest.end() || run.first != 0 || run.tokens.size() > found->second
        || run.tokens.size() != run.logprobs.size())
      return "request " + std::to_string(run.request.value)
             + " cannot be resumed: it is not in the order, or what it has is not the beginning of "
               "its response";
  }
  return {};
}

void send_part(planner_machine& m, rank_id rank, planner_machine::admission& part, time_point now,
               effects& out) {
  part.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank), part.body, out);
}

/// Where a request starts: what was ordered, or the least loaded rank if that one is not there.
rank_id home_of(const rollout_part& r, rank_id ordered) {
  if (r.ranks.count(ordered)) return ordered;
  return std::min_element(
             r.ranks.begin(), r.ranks.end(),
             [](const auto& a, const auto& b) { return a.second.requests < b.second.requests; })
      ->first;
}

void cut_into_parts(const planner_machine& m, rollout_part& r, const begin_rollout& order) {
  for (auto rank : m.world)
    r.ranks[rank];
  std::map<request_id, const token_run*> resumed;
  for (const auto& run : order.resumed)
    resumed.emplace(run.request, &run);
  std::map<rank_id, std::size_t> tokens; // of what is resumed, in the newest part
  for (std::size_t i = 0; i < order.requests.size(); ++i) {
    const auto id = order.requests[i].id;
    const auto home = home_of(r, order.homes[i]);
    auto& part = r.ranks[home];
    auto& request = r.requests[id];
    request.home = home;
    if (m.config.recover) request.spec = order.requests[i];
    request.waits = part.requests >= static_cast<std::uint32_t>(m.config.weighing.max_num_seqs);
    if (request.waits) part.waiting.push_back(id);
    ++part.requests;
    const auto known = resumed.find(id);
    const auto more = known == resumed.end() ? 0 : known->second->tokens.size();
    if (part.parts.empty() || part.parts.back().body.requests.size() >= m.config.part_requests_max
        || tokens[home] + more > m.config.part_tokens_max) {
      part.parts.emplace_back();
      tokens[home] = 0;
    }
    tokens[home] += more;
    auto& body = part.parts.back().body;
    body.requests.push_back(order.requests[i]);
    if (more == 0) continue;
    body.resumed.push_back(*known->second);
    if (m.config.recover) request.known.emplace(0, *known->second);
  }
  for (auto& [rank, part] : r.ranks) {
    if (part.parts.empty()) part.parts.emplace_back();
    for (std::uint32_t i = 0; i < part.parts.size(); ++i) {
      auto& body = part.parts[i].body;
      body.rollout = order.rollout;
      body.part = i;
      body.parts = static_cast<std::uint32_t>(part.parts.size());
    }
  }
}

void send_start(planner_machine& m, rank_id rank, rank_part& r, time_point now, effects& out) {
  r.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank), start_rollout{m.rollout->id, m.rollout->began_at},
       out);
}

void send_end(planner_machine& m, rank_id rank, rank_part& r, time_point now, effects& out) {
  r.sent_at = now;
  post(m.who, role_at(rank, role_kind::rank), end_rollout{m.rollout->id, m.rollout->ended_at}, out);
}

/// Whether `id` is the rollout that is under way; counts the message if not.
bool concerns(planner_machine& m, rollout_id id) {
  if (m.rollout && m.rollout->id == id) return true;
  ++m.drops.stale_rollout;
  return false;
}

template <class Predicate>
std::vector<rank_id> ranks_where(const planner_machine& m, Predicate predicate) {
  std::vector<rank_id> out;
  for (const auto& [rank, r] : m.rollout->ranks)
    if (predicate(r)) out.push_back(rank);
  return out;
}

void fail_late(planner_machine& m, const std::vector<rank_id>& late, const char* verb,
               microseconds limit, effects& out) {
  fail_world(m,
             name_ranks(late) + " did not " + verb + " within "
                 + std::to_string(limit.count() / 1000) + " ms",
             false, out);
}

void acknowledge(planner_machine& m, request_id id, effects& out) {
  auto& r = *m.rollout;
  post(m.who, role_at(r.requests.at(id).home, role_kind::rank), response_kept{r.id, id}, out);
}

/// Only of a smaller group that stays as it is: nobody is lent otherwise.
void tell_pace(planner_machine& m, time_point now, effects& out) {
  auto& r = *m.rollout;
  const bool steady = m.now_in == phase::running && m.members.size() < m.world.size()
                      && m.transition.now_in == transition_coordinator::phase::none;
  const auto steps = r.last_step - r.pace_step;
  if (steady && r.pace.epoch == m.who.stamp.epoch && steps < m.config.pace_steps) return;
  if (steady && r.pace.epoch == m.who.stamp.epoch) {
    r.pace.steps = static_cast<std::uint32_t>(steps);
    r.pace.elapsed = now - r.pace_began_at;
    post(m.who, local(m, role_kind::broker), r.pace, out);
    tell_windows(m, now, out);
  }
  r.pace = decode_pace{steady ? m.who.stamp.epoch : epoch_id{}};
  r.pace.members = static_cast<std::uint32_t>(m.members.size());
  for (const auto& [rank, part] : r.ranks)
    r.pace.live += part.progress.live_requests;
  r.pace_step = r.last_step;
  r.pace_began_at = now;
}

} // namespace

void send_parts(planner_machine& m, rank_id rank, rank_part& r, time_point now, effects& out) {
  for (; r.parts_sent < r.parts.size() && r.parts_sent < r.parts_admitted + m.config.part_window;
       ++r.parts_sent)
    send_part(m, rank, r.parts[r.parts_sent], now, out);
}

bool all_admitted(const rank_part& r) {
  return r.parts_admitted == r.parts.size();
}

bool in_step(const planner_machine& m) {
  if (!m.config.lockstep) return true;
  const auto& r = *m.rollout;
  return std::all_of(m.members.begin(), m.members.end(), [&](rank_id member) {
    const auto& rank = r.ranks.at(member);
    return rank.progress.step == r.last_step && rank.received >= rank.progress.finished_requests;
  });
}

void let_time_pass(planner_machine& m, effects& out) {
  if (const auto id = std::exchange(m.rollout->held, std::nullopt)) acknowledge(m, *id, out);
}

void begin_admission(planner_machine& m, const begin_rollout& order, time_point now, effects& out) {
  if (m.rollout && m.rollout->id == order.rollout) return;
  if (auto text = objection_to(m, order); !text.empty())
    return post(m.who, local(m, role_kind::trainer),
                rollout_failed{order.rollout, m.failed_by_loss,
                               "rollout " + std::to_string(order.rollout.value) + ": " + text},
                out);
  m.rollout.emplace();
  auto& r = *m.rollout;
  r.id = order.rollout;
  r.predicted_tail = order.predicted_tail;
  cut_into_parts(m, r, order);
  take_rules(m, order);
  enter(m, phase::admitting, now);
  for (auto& [rank, part] : r.ranks)
    send_parts(m, rank, part, now, out);
}

void hear_admitted(planner_machine& m, rank_id rank, const requests_admitted& done, time_point now,
                   effects& out) {
  if (m.now_in != phase::admitting && !m.recovery) return;
  if (!concerns(m, done.rollout)) return;
  auto& r = *m.rollout;
  auto& part = r.ranks[rank];
  if (done.part >= part.parts_sent || part.parts[done.part].admitted) return;
  part.parts[done.part].admitted = true;
  part.parts[done.part].body.requests.clear();
  part.parts[done.part].body.resumed.clear();
  ++part.parts_admitted;
  send_parts(m, rank, part, now, out);
  go_on_with_recovery(m, now, out);
  start_if_admitted(m, now, out);
}

void start_if_admitted(planner_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::admitting || m.recovery) return;
  if (!ranks_where(m, [](const auto& x) { return !all_admitted(x); }).empty()) return;
  m.rollout->began_at = now.time_since_epoch();
  enter(m, phase::starting, now);
  for (auto& [to, x] : m.rollout->ranks)
    send_start(m, to, x, now, out);
}

void hear_started(planner_machine& m, rank_id rank, const rollout_started& done, time_point now,
                  effects& out) {
  if (m.now_in != phase::starting || !concerns(m, done.rollout)) return;
  m.rollout->ranks[rank].started = true;
  run_if_started(m, now, out);
}

void run_if_started(planner_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::starting || m.recovery) return;
  if (!ranks_where(m, [](const auto& x) { return !x.started; }).empty()) return;
  enter(m, phase::running, now);
  advance(m, now, out);
}

void hear_response(planner_machine& m, rank_id rank, const response& done, time_point now,
                   effects& out) {
  const response_kept kept{done.rollout, done.request};
  if (done.rollout <= m.last_rollout) return post(m.who, role_at(rank, role_kind::rank), kept, out);
  if (!concerns(m, done.rollout)) return;
  auto& r = *m.rollout;
  const auto found = r.requests.find(done.request);
  if (found != r.requests.end()) note_arrival(m, done.request, rank);
  const bool known = found != r.requests.end();
  // Of a rank that is dead by now: finished there, and again where it was moved from or rebuilt.
  const bool again = known && !m.lost.empty() && found->second.state == response_state::kept;
  if (!known || (found->second.home != rank && !again)) {
    ++m.drops.unexpected;
    return;
  }
  auto& request = found->second;
  if (request.state == response_state::kept && r.held != done.request)
    return post(m.who, role_at(rank, role_kind::rank), kept, out);
  if (request.state != response_state::missing) return;
  request.state = response_state::storing;
  request.spec = {};
  request.known.clear();
  ++r.ranks[rank].received;
  r.last_step = std::max(r.last_step, done.at_step);
  start_next(m, rank, done.at_step);
  post(m.who, local(m, role_kind::recorder), done, out);
  advance(m, now, out);
}

void hear_kept(planner_machine& m, const response_kept& kept, time_point now, effects& out) {
  if (!concerns(m, kept.rollout)) return;
  auto& r = *m.rollout;
  const auto found = r.requests.find(kept.request);
  if (found == r.requests.end() || found->second.state != response_state::storing) {
    ++m.drops.unexpected;
    return;
  }
  found->second.state = response_state::kept;
  ++r.kept;
  let_time_pass(m, out);
  r.held = kept.request;
  r.held_at = now;
  if (!m.config.lockstep) let_time_pass(m, out);
  advance(m, now, out);
}

namespace {

/// Runs mostly continue each other, but for those of a request that moved.
void note_tokens(rollout_part& r, const token_run& run) {
  const auto found = r.requests.find(run.request);
  if (found == r.requests.end() || found->second.state != response_state::missing) return;
  auto& known = found->second.known;
  auto before = known.upper_bound(run.first);
  if (before != known.begin()) {
    auto& last = std::prev(before)->second;
    const auto at = last.first + last.tokens.size();
    if (at >= run.first + run.tokens.size()) return; // All of it is known.
    if (at >= run.first) {
      const auto fresh = static_cast<std::ptrdiff_t>(at - run.first);
      last.tokens.insert(last.tokens.end(), run.tokens.begin() + fresh, run.tokens.end());
      last.logprobs.insert(last.logprobs.end(), run.logprobs.begin() + fresh, run.logprobs.end());
      return;
    }
  }
  known[run.first] = run;
}

} // namespace

/// Batches go on in order, so the log needs no book of its own; one that comes too early is sent
/// again by its rank.
void hear_tokens(planner_machine& m, const envelope& in, const token_batch& batch, effects& out) {
  const auto rank = in.from.rank;
  const auto answer = [&](std::uint64_t sequence) {
    post(m.who, role_at(rank, role_kind::rank), tokens_kept{batch.rollout, rank, sequence}, out);
  };
  if (batch.rollout <= m.last_rollout) return answer(batch.sequence);
  if (!concerns(m, batch.rollout)) return;
  auto& part = m.rollout->ranks[rank];
  if (batch.sequence <= part.tokens_kept) return answer(part.tokens_kept);
  if (batch.sequence != part.tokens_taken + 1) return;
  part.tokens_taken = batch.sequence;
  if (m.config.recover)
    for (const auto& run : batch.runs)
      note_tokens(*m.rollout, run);
  out.push_back(envelope{in.from, local(m, role_kind::recorder), in.incarnation, in.stamp, batch});
}

void hear_tokens_kept(planner_machine& m, const tokens_kept& kept, effects& out) {
  if (!concerns(m, kept.rollout)) return;
  const auto found = m.rollout->ranks.find(kept.rank);
  if (found == m.rollout->ranks.end() || m.lost.count(kept.rank)) return; // It died meanwhile.
  auto& known = found->second.tokens_kept;
  known = std::max(known, kept.sequence);
  post(m.who, role_at(kept.rank, role_kind::rank), kept, out);
}

void hear_progress(planner_machine& m, rank_id rank, const rank_progress& progress, time_point now,
                   effects& out) {
  if (!concerns(m, progress.rollout)) return;
  auto& r = *m.rollout;
  auto& known = r.ranks[rank].progress;
  const auto order = [](const rank_progress& p) { return std::pair(p.step, p.finished_requests); };
  if (order(progress) < order(known)) return;
  known = progress;
  r.last_step = std::max(r.last_step, progress.step);
  tell_pace(m, now, out);
  advance(m, now, out);
}

void close_books(planner_machine& m, time_point now, effects& out) {
  m.rollout->ended_at = now.time_since_epoch();
  enter(m, phase::reporting, now);
  for (auto& [rank, r] : m.rollout->ranks)
    send_end(m, rank, r, now, out);
}

void hear_report(planner_machine& m, const envelope& in, const rollout_report& report,
                 time_point now, effects& out) {
  if (m.now_in != phase::reporting || !concerns(m, report.rollout)) return;
  auto& part = m.rollout->ranks[in.from.rank];
  if (part.reported) return;
  part.reported = true;
  const auto trainer = local(m, role_kind::trainer);
  out.push_back(envelope{in.from, trainer, in.incarnation, in.stamp, report});
  end_if_reported(m, now, out);
}

void end_if_reported(planner_machine& m, time_point now, effects& out) {
  if (m.now_in != phase::reporting || m.recovery) return;
  if (!ranks_where(m, [](const auto& x) { return !x.reported; }).empty()) return;
  const auto& r = *m.rollout;
  post(m.who, local(m, role_kind::trainer),
       rollout_done{r.id, r.began_at, r.ended_at, r.transitions, r.aborted_transitions}, out);
  m.last_rollout = r.id;
  m.rollout.reset();
  enter(m, phase::idle, now);
}

void tick_rollout(planner_machine& m, time_point now, effects& out) {
  if (!m.rollout) return;
  const auto& c = m.config;
  const auto waited = now - m.phase_began_at;
  if (m.now_in == phase::admitting || m.recovery)
    for (auto& [rank, r] : m.rollout->ranks)
      for (std::size_t i = 0; i < r.parts_sent && !m.lost.count(rank); ++i)
        if (!r.parts[i].admitted && now - r.parts[i].sent_at >= c.resend)
          send_part(m, rank, r.parts[i], now, out);
  if (m.recovery) return; // It has its own deadlines.
  if (m.now_in == phase::admitting) {
    if (waited > c.admit_max)
      return fail_late(m, ranks_where(m, [](const auto& x) { return !all_admitted(x); }),
                       "admit its requests", c.admit_max, out);
  } else if (m.now_in == phase::starting) {
    if (waited > c.start_max)
      return fail_late(m, ranks_where(m, [](const auto& x) { return !x.started; }), "start",
                       c.start_max, out);
    for (auto& [rank, r] : m.rollout->ranks)
      if (!r.started && now - r.sent_at >= c.resend) send_start(m, rank, r, now, out);
  } else if (m.now_in == phase::running) {
    if (m.rollout->held && now - m.rollout->held_at > c.lockstep_max) let_time_pass(m, out);
    if (waited > c.rollout_max)
      return fail_late(m, ranks_where(m, [](const auto& x) { return !x.finished(); }),
                       "finish its requests", c.rollout_max, out);
  } else if (m.now_in == phase::reporting) {
    if (waited > c.report_max)
      return fail_late(m, ranks_where(m, [](const auto& x) { return !x.reported; }),
                       "report its time line", c.report_max, out);
    for (auto& [rank, r] : m.rollout->ranks)
      if (!r.reported && now - r.sent_at >= c.resend) send_end(m, rank, r, now, out);
  }
}

} // namespace adafloor::planner_parts
