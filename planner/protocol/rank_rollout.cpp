#include "planner/protocol/rank_parts.hpp"

#include <algorithm>

namespace adafloor::rank_parts {
namespace {

void send_responses(rank_machine& m, time_point now, effects& out) {
  auto& r = *m.rollout;
  for (; r.in_flight < r.outbox.size() && r.in_flight < m.config.response_window; ++r.in_flight) {
    auto& next = r.outbox[r.in_flight];
    next.sent_at = now;
    post(m.who, planner_of(m), next.body, out);
  }
}

void send_tokens(rank_machine& m, time_point now, effects& out) {
  auto& r = *m.rollout;
  while (r.tokens_in_flight < r.tokens.size() && r.tokens_in_flight < m.config.token_window) {
    auto& next = r.tokens[r.tokens_in_flight++];
    next.sent_at = now;
    post(m.who, planner_of(m), next.body, out);
  }
}

/// The report also says that the engine is done and every token is in the log: the next rollout is
/// admitted only then.
void close_books_if_idle(rank_machine& m, effects& out) {
  auto& r = *m.rollout;
  if (!r.engine_ran || m.time.engine != rank_state::idle || !r.tokens.empty()) return;
  r.report = rollout_report{r.id, finish(m.time, r.began_at, r.ending->ended_at, m.clock_shift),
                            r.progress.step, r.progress.generated_tokens};
  post(m.who, planner_of(m), *r.report, out);
}

bool concerns(rank_machine& m, rollout_id id) {
  if (m.rollout && m.rollout->id == id) return true;
  ++m.drops.stale_rollout;
  return false;
}

} // namespace

void handle(rank_machine& m, const envelope&, const admit_requests& order, time_point now,
            effects& out) {
  const bool known = m.rollout && m.rollout->id == order.rollout;
  if (!known) {
    const bool newer = !m.rollout || (m.rollout->id < order.rollout && !rollout_runs(m));
    const bool changes = m.transition && m.transition->plan.kind != transition_kind::recover;
    if (!newer || m.stopping || changes || m.loading || !m.in_group()) {
      ++m.drops.stale_rollout;
      return;
    }
    m.rollout.emplace();
    m.rollout->id = order.rollout;
    m.rollout->parts_expected = order.parts;
    if (!is_known_to_live(m)) beat(m, now, out); // Before it has anything to lose.
  }
  auto& r = *m.rollout;
  if (r.parts.insert(order.part).second) {
    r.requests += static_cast<std::uint32_t>(order.requests.size());
    post(m.who, engine_of(m), engine_admit{order.rollout, order.requests, order.resumed}, out);
  }
  post(m.who, planner_of(m), requests_admitted{order.rollout, order.part}, out);
}

void handle(rank_machine& m, const envelope&, const start_rollout& order, time_point now,
            effects& out) {
  if (!concerns(m, order.rollout)) return;
  auto& r = *m.rollout;
  if (r.parts.size() < r.parts_expected) {
    ++m.drops.unexpected;
    return;
  }
  if (!r.started) {
    r.started = true;
    r.began_at = order.began_at;
    r.progress_sent_at = now;
    begin(m.time, now.time_since_epoch());
    post(m.who, engine_of(m), engine_start{order.rollout}, out);
  }
  post(m.who, planner_of(m), rollout_started{order.rollout}, out);
}

void handle(rank_machine& m, const envelope&, const response& done, time_point now, effects& out) {
  if (!concerns(m, done.rollout)) return;
  m.rollout->outbox.push_back({done, now});
  send_responses(m, now, out);
}

void handle(rank_machine& m, const envelope&, const response_kept& kept, time_point now,
            effects& out) {
  if (!concerns(m, kept.rollout)) return;
  auto& r = *m.rollout;
  const auto sent_end = r.outbox.begin() + static_cast<std::ptrdiff_t>(r.in_flight);
  const auto found = std::find_if(r.outbox.begin(), sent_end,
                                  [&](const auto& x) { return x.body.request == kept.request; });
  if (found == sent_end) return;
  r.outbox.erase(found);
  --r.in_flight;
  post(m.who, engine_of(m), kept, out);
  send_responses(m, now, out);
}

void handle(rank_machine& m, const envelope&, const token_batch& batch, time_point now,
            effects& out) {
  if (!concerns(m, batch.rollout)) return;
  m.rollout->tokens.push_back({batch, now});
  send_tokens(m, now, out);
}

/// The engine counts its unacknowledged batches, too, so it hears of it.
void handle(rank_machine& m, const envelope&, const tokens_kept& kept, time_point now,
            effects& out) {
  if (!concerns(m, kept.rollout)) return;
  auto& r = *m.rollout;
  bool news = false;
  for (; r.tokens_in_flight > 0 && r.tokens.front().body.sequence <= kept.sequence; news = true) {
    r.tokens.pop_front();
    --r.tokens_in_flight;
  }
  if (!news) return;
  post(m.who, engine_of(m), kept, out);
  send_tokens(m, now, out);
  if (r.ending && !r.report) close_books_if_idle(m, out);
}

void handle(rank_machine& m, const envelope&, const rank_progress& progress, time_point now,
            effects& out) {
  if (!concerns(m, progress.rollout)) return;
  auto& r = *m.rollout;
  if (progress.step < r.progress.step) return;
  r.progress = progress;
  r.progress_sent_at = now;
  post(m.who, planner_of(m), progress, out);
}

void handle(rank_machine& m, const envelope&, const engine_state& state, time_point, effects& out) {
  note_engine(m.time, state.state, state.at);
  if (!rollout_runs(m) || !m.rollout->started) return;
  auto& r = *m.rollout;
  r.engine_ran = r.engine_ran || state.state != rank_state::idle;
  if (r.ending) close_books_if_idle(m, out);
}

void handle(rank_machine& m, const envelope&, const end_rollout& order, time_point, effects& out) {
  if (!concerns(m, order.rollout)) return;
  auto& r = *m.rollout;
  if (!r.started) {
    ++m.drops.unexpected;
    return;
  }
  if (r.report) return post(m.who, planner_of(m), *r.report, out);
  r.outbox.clear();
  r.in_flight = 0;
  r.ending = order;
  close_books_if_idle(m, out);
}

void tick_rollout(rank_machine& m, time_point now, effects& out) {
  if (!rollout_runs(m) || m.stopping) return;
  auto& r = *m.rollout;
  for (std::size_t i = 0; i < r.in_flight; ++i)
    if (due(r.outbox[i].sent_at, now, m.config.resend))
      post(m.who, planner_of(m), r.outbox[i].body, out);
  for (std::size_t i = 0; i < r.tokens_in_flight; ++i)
    if (due(r.tokens[i].sent_at, now, m.config.resend))
      post(m.who, planner_of(m), r.tokens[i].body, out);
  const bool heard_engine = r.progress.rollout == r.id && r.started;
  if (heard_engine && due(r.progress_sent_at, now, m.config.progress_resend))
    post(m.who, planner_of(m), r.progress, out);
}

} // namespace adafloor::rank_parts
