#include "planner/protocol/planner.hpp"

#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/planner_parts.hpp"

namespace adafloor {
namespace planner_parts {

void fail_world(planner_machine& m, std::string text, bool peer_lost, effects& out) {
  if (m.now_in == phase::failed || m.stopping) return;
  if (m.rollout)
    post(m.who, local(m, role_kind::trainer), rollout_failed{m.rollout->id, peer_lost, text}, out);
  if (m.weights)
    post(m.who, local(m, role_kind::trainer), weights_refused{m.weights->order.version, text}, out);
  m.weights.reset();
  m.recovery.reset();
  m.deferred.clear();
  m.transition.now_in = transition_coordinator::phase::none;
  m.transition.participants.clear();
  m.failure = std::move(text);
  m.failed_by_loss = peer_lost;
  m.now_in = phase::failed;
}

std::string name_ranks(const std::vector<rank_id>& ranks) {
  std::string text;
  for (auto rank : ranks)
    text += (text.empty() ? "rank " : ", ") + std::to_string(rank.value);
  return text;
}

namespace {

std::string_view fallback(const std::string& text) {
  return text.empty() ? std::string_view{"no reason given"} : text;
}

void hear_failed(planner_machine& m, const envelope& in, const engine_failed& failed,
                 time_point now, effects& out) {
  const auto rank = in.from.rank;
  auto text = "engine of rank " + std::to_string(rank.value) + " failed";
  if (failed.peer != rank) text += " waiting for rank " + std::to_string(failed.peer.value);
  text += ": " + std::string(fallback(failed.text));
  if (failed.peer_lost && m.config.recover) return suspect(m, in, std::move(text), now);
  fail_world(m, std::move(text), failed.peer_lost, out);
}

void hear_rank(planner_machine& m, const envelope& in, time_point now, effects& out) {
  const auto rank = in.from.rank;
  std::visit(
      [&](const auto& body) {
        using M = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<M, requests_admitted>)
          hear_admitted(m, rank, body, now, out);
        else if constexpr (std::is_same_v<M, rollout_started>)
          hear_started(m, rank, body, now, out);
        else if constexpr (std::is_same_v<M, response>)
          hear_response(m, rank, body, now, out);
        else if constexpr (std::is_same_v<M, token_batch>)
          hear_tokens(m, in, body, out);
        else if constexpr (std::is_same_v<M, rank_progress>)
          hear_progress(m, rank, body, now, out);
        else if constexpr (std::is_same_v<M, request_moved>)
          hear_moved(m, in, body, now, out);
        else if constexpr (std::is_same_v<M, rollout_report>)
          hear_report(m, in, body, now, out);
        else if constexpr (std::is_same_v<M, weights_updated> || std::is_same_v<M, weights_refused>)
          hear_weights(m, rank, body, out);
        else if constexpr (std::is_same_v<M, engine_failed>)
          hear_failed(m, in, body, now, out);
        else if constexpr (std::is_same_v<M, stopped>)
          hear_stopped(m, rank, out);
        else
          hear_transition(m, in, now, out);
      },
      in.body);
}

/// In quarantine, and not part of the running rollout any more.
bool is_outside(const planner_machine& m, rank_id rank) {
  return m.quarantine.count(rank) && !(m.rollout && m.rollout->ranks.count(rank));
}

bool passes_fence(planner_machine& m, const envelope& in) {
  if (in.from.rank.value >= m.config.world_size) return ++m.drops.unexpected, false;
  if (!m.incarnations.accepts(in.from.rank, in.incarnation))
    return ++m.drops.stale_incarnation, false;
  if (m.lost.count(in.from.rank)) return ++m.drops.stale_incarnation, false;
  if (in.stamp.term != m.who.stamp.term) return ++m.drops.stale_term, false;
  if (is_outside(m, in.from.rank) && !std::get_if<stopped>(&in.body))
    return ++m.drops.unexpected, false;
  return true;
}

} // namespace

void hear_local(planner_machine& m, const envelope& in, time_point now, effects& out) {
  const auto is_from = [&](role_kind role) { return in.from.role == role; };
  const bool order = std::get_if<begin_rollout>(&in.body) || std::get_if<update_weights>(&in.body);
  if (order && m.recovery) return m.deferred.push_back(in);
  if (const auto* begin = std::get_if<begin_rollout>(&in.body);
      begin && is_from(role_kind::trainer))
    begin_admission(m, *begin, now, out);
  else if (const auto* update = std::get_if<update_weights>(&in.body);
           update && is_from(role_kind::trainer))
    begin_weights(m, *update, now, out);
  else if (const auto* end = std::get_if<stop>(&in.body); end && is_from(role_kind::trainer))
    begin_stop(m, *end, now, out);
  else if (const auto* kept = std::get_if<response_kept>(&in.body);
           kept && is_from(role_kind::recorder))
    hear_kept(m, *kept, now, out);
  else if (const auto* logged = std::get_if<tokens_kept>(&in.body);
           logged && is_from(role_kind::recorder))
    hear_tokens_kept(m, *logged, out);
  else if (const auto* back = std::get_if<leases_recalled>(&in.body);
           back && is_from(role_kind::broker))
    hear_recalled(m, *back, now, out);
  else if (const auto* lost = std::get_if<member_lost>(&in.body);
           lost && is_from(role_kind::membership))
    lose_rank(m, *lost, now, out);
  else
    ++m.drops.unexpected;
}

} // namespace planner_parts

planner_machine::planner_machine(planner_config c, fence stamp, time_point now)
  : config(c), phase_began_at(now), highest_epoch(stamp.epoch) {
  who = {role_at(c.self, role_kind::planner), stamp};
  for (std::uint32_t r = 0; r < c.world_size; ++r)
    world.emplace_back(r);
  members = world;
  owners = home_owners(c.experts, c.world_size);
  transition.config = c.transition;
  own_pause.ticked_at = now;
}

bool planner_machine::rank_part::finished() const {
  return received == requests
         || (progress.finished_requests == requests && progress.live_requests == 0);
}

void step(planner_machine& m, const envelope& in, time_point now, effects& out) {
  if (in.from.role == role_kind::rank) {
    if (planner_parts::passes_fence(m, in)) planner_parts::hear_rank(m, in, now, out);
  } else if (in.from.rank == m.config.self) {
    planner_parts::hear_local(m, in, now, out);
  } else {
    ++m.drops.unexpected;
  }
}

void tick(planner_machine& m, time_point now, effects& out) {
  const auto missed = m.own_pause.missed(now);
  m.phase_began_at += missed;
  m.transition.phase_began_at += missed;
  if (m.weights) m.weights->began_at += missed;
  if (m.suspected) m.suspected->since += missed;
  if (m.stopping) m.stopping->began_at += missed;
  planner_parts::tick_orders(m, now, out);
  if (m.stopping || m.now_in == planner_machine::phase::failed) return;
  planner_parts::tick_rollout(m, now, out);
  planner_parts::tick_moves(m, now, out);
  planner_parts::tick_group(m, now, out);
  planner_parts::tick_recovery(m, now, out);
}

} // namespace adafloor
