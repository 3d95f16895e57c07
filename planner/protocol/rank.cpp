#include "planner/protocol/rank.hpp"

#include "planner/protocol/rank_parts.hpp"

#include <algorithm>

namespace adafloor {
namespace rank_parts {
namespace {

/// The only role that may say M to a rank; `trainer` for messages that nobody says to it.
template <class M>
constexpr role_kind speaker_of() {
  if constexpr (one_of<M, stop, update_weights, admit_requests, start_rollout, response_kept,
                       tokens_kept, end_rollout, move_request, prepare_transition, abort_transition,
                       commit_transition, settle_transition>)
    return role_kind::planner;
  else if constexpr (one_of<M, lease_grant, lease_renew, lease_revoke, lease_closed>)
    return role_kind::broker;
  else if constexpr (one_of<M, heartbeat_seen, member_lost>)
    return role_kind::membership;
  else if constexpr (one_of<M, engine_prepared, engine_refused, engine_state, engine_failed,
                            switched, response, token_batch, rank_progress, weights_updated,
                            weights_refused>)
    return role_kind::engine;
  else if constexpr (one_of<M, lease_accepted, lease_denied, lease_returned>)
    return role_kind::sidecar;
  else
    return role_kind::trainer;
}

/// Said by the own engine, or by the rank at the other end of the move.
template <class M>
constexpr bool about_a_move =
    one_of<M, move_offer, move_accepted, move_refused, kv_ready, kv_taken, move_committed,
           move_rejected, move_cancel, move_cancelled, engine_move_offer, engine_move_ended>;

template <class M>
constexpr bool needs_equal_weights =
    one_of<M, admit_requests, start_rollout, move_request, prepare_transition>;

/// Whether a message from the planner's process may be obeyed; counts it if not.
template <class M>
bool passes_fence(rank_machine& m, const envelope& in, time_point now) {
  auto& own = m.who.stamp;
  if (in.from.rank != m.config.planner_rank) return ++m.drops.unexpected, false;
  if (!m.incarnations.accepts(in.from.rank, in.incarnation))
    return ++m.drops.stale_incarnation, false;
  if (in.stamp.term < own.term) return ++m.drops.stale_term, false;
  own.term = in.stamp.term;
  m.planner_heard_at = now;
  if (in.from.role == role_kind::planner && in.stamp.epoch < own.epoch)
    return ++m.drops.stale_epoch, false;
  if (needs_equal_weights<M> && in.stamp.weights != own.weights)
    return ++m.drops.stale_weights, false;
  return true;
}

/// The same for a message from another rank. Epochs may differ for a moment around a switch; what
/// fences a move is its key, which is never used twice.
bool passes_peer_fence(rank_machine& m, const envelope& in) {
  if (in.from.role != role_kind::rank || in.from.rank == m.config.self)
    return ++m.drops.unexpected, false;
  if (m.dead.count(in.from.rank)) return ++m.drops.stale_incarnation, false;
  if (!m.incarnations.accepts(in.from.rank, in.incarnation))
    return ++m.drops.stale_incarnation, false;
  if (in.stamp.term < m.who.stamp.term) return ++m.drops.stale_term, false;
  if (in.stamp.weights != m.who.stamp.weights) return ++m.drops.stale_weights, false;
  return true;
}

template <class M>
void receive(rank_machine& m, const envelope& in, const M& body, time_point now, effects& out) {
  constexpr auto speaker = speaker_of<M>();
  if constexpr (about_a_move<M>) {
    const bool own = in.from == engine_of(m);
    if (own || passes_peer_fence(m, in)) hear_move(m, in, body.key, now, out);
  } else if constexpr (speaker == role_kind::trainer) {
    ++m.drops.unexpected;
  } else {
    const bool local = speaker == role_kind::engine || speaker == role_kind::sidecar;
    if (in.from.role != speaker || (local && in.from.rank != m.config.self))
      ++m.drops.unexpected;
    else if (local || passes_fence<M>(m, in, now))
      handle(m, in, body, now, out);
  }
}

void refuse_weights(rank_machine& m, weights_id version, std::string text, effects& out) {
  text = "rank " + std::to_string(m.config.self.value) + ": " + std::move(text);
  post(m.who, planner_of(m), weights_refused{version, std::move(text)}, out);
}

} // namespace

bool rollout_runs(const rank_machine& m) {
  return m.rollout && !m.rollout->report;
}

bool owns_requests(const rank_machine& m) {
  if (!rollout_runs(m)) return false;
  const auto& r = *m.rollout;
  return r.progress.live_requests > 0 || r.progress.finished_requests < r.requests || moves_open(m);
}

void beat(rank_machine& m, time_point now, effects& out) {
  m.heartbeat_at = now;
  post(m.who, role_at(m.config.planner_rank, role_kind::membership),
       heartbeat{m.config.incarnation, m.who.stamp.epoch, m.rollout ? m.rollout->progress.step : 0,
                 now.time_since_epoch()},
       out);
}

void handle(rank_machine& m, const envelope&, const heartbeat_seen& seen, time_point now,
            effects&) {
  const auto round_trip = now.time_since_epoch() - seen.sent_at;
  const bool first = m.clock_round_trip == microseconds{0};
  if (round_trip < microseconds{0} || (!first && round_trip >= m.clock_round_trip)) return;
  m.clock_round_trip = std::max(round_trip, microseconds{1});
  m.clock_shift = seen.seen_at - (seen.sent_at + round_trip / 2);
}

/// This process was silent for too long, and the others have gone on without it. Whatever it holds
/// is somebody else's now.
void handle(rank_machine& m, const envelope&, const member_lost& news, time_point, effects& out) {
  if (news.rank != m.config.self || news.incarnation != m.config.incarnation || m.stopping) return;
  m.stopping = true;
  post(m.who, engine_of(m), news, out);
  post(m.who, sidecar_of(m), stop{news.reason + " and is out of the job"}, out);
}

void handle(rank_machine& m, const envelope&, const stop& order, time_point, effects& out) {
  if (!m.stopping) {
    m.stopping = true;
    post(m.who, engine_of(m), order, out);
    post(m.who, sidecar_of(m), order, out);
  }
  post(m.who, planner_of(m), stopped{m.config.incarnation}, out);
}

void handle(rank_machine& m, const envelope&, const update_weights& order, time_point,
            effects& out) {
  if (m.stopping) return;
  if (m.last_weights && m.last_weights->version == order.version)
    return post(m.who, planner_of(m), *m.last_weights, out);
  if (order.version <= m.who.stamp.weights)
    return refuse_weights(m, order.version,
                          "weights " + std::to_string(order.version.value)
                              + " are not newer than the loaded "
                              + std::to_string(m.who.stamp.weights.value),
                          out);
  if (m.loading) {
    if (m.loading->version != order.version)
      refuse_weights(m, order.version, "another update is running", out);
    return;
  }
  if (rollout_runs(m) || m.transition || m.lease)
    return refuse_weights(m, order.version, "a rollout, a transition or a lease is running", out);
  m.loading = order;
  post(m.who, engine_of(m), order, out);
}

void handle(rank_machine& m, const envelope&, const weights_updated& done, time_point,
            effects& out) {
  if (!m.loading || m.loading->version != done.version) {
    ++m.drops.unexpected;
    return;
  }
  m.loading.reset();
  m.who.stamp.weights = done.version;
  m.last_weights = done;
  post(m.who, planner_of(m), done, out);
}

void handle(rank_machine& m, const envelope&, const weights_refused& no, time_point, effects& out) {
  if (!m.loading || m.loading->version != no.version) {
    ++m.drops.unexpected;
    return;
  }
  m.loading.reset();
  refuse_weights(m, no.version, no.text, out);
}

void handle(rank_machine& m, const envelope&, const engine_failed& failed, time_point now,
            effects& out) {
  if (m.failure) return;
  m.failure = failed;
  m.failure_sent_at = now;
  post(m.who, planner_of(m), failed, out);
}

} // namespace rank_parts

rank_machine::rank_machine(rank_config c, fence stamp, time_point now)
  : config(c), heartbeat_at(now - c.heartbeat), planner_heard_at(now) {
  own_pause.ticked_at = now;
  who = {role_at(c.self, role_kind::rank), stamp};
  for (std::uint32_t r = 0; r < c.world_size; ++r)
    members.emplace_back(r);
  dead_epoch = stamp.epoch;
}

bool rank_machine::in_group() const {
  return std::binary_search(members.begin(), members.end(), config.self);
}

void step(rank_machine& m, const envelope& in, time_point now, effects& out) {
  std::visit([&](const auto& body) { rank_parts::receive(m, in, body, now, out); }, in.body);
}

void tick(rank_machine& m, time_point now, effects& out) {
  m.planner_heard_at += m.own_pause.missed(now);
  const auto every = rank_parts::is_known_to_live(m)
                         ? m.config.heartbeat
                         : std::min(m.config.heartbeat, m.config.resend);
  if (!m.stopping && now - m.heartbeat_at >= every) rank_parts::beat(m, now, out);
  if (m.failure && !m.stopping && due(m.failure_sent_at, now, m.config.resend))
    post(m.who, rank_parts::planner_of(m), *m.failure, out);
  rank_parts::tick_rollout(m, now, out);
  rank_parts::tick_moves(m, now, out);
  rank_parts::tick_lease(m, now, out);
  const auto silence = now - m.planner_heard_at;
  const auto longest = rank_parts::is_known_to_live(m)
                           ? m.config.planner_silence_max
                           : std::max(m.config.planner_silence_max, m.config.planner_first_max);
  if (!m.orphaned && !m.stopping && silence > longest) {
    m.orphaned = true;
    const auto text =
        "the planner was silent for " + std::to_string(silence.count() / 1000) + " ms";
    post(m.who, rank_parts::engine_of(m), member_lost{m.config.planner_rank, {}, text, silence},
         out);
    post(m.who, rank_parts::sidecar_of(m), stop{text}, out);
  }
}

} // namespace adafloor
