#include "planner/protocol/rank_parts.hpp"

#include <algorithm>

namespace adafloor::rank_parts {
namespace {

bool holds(const std::vector<rank_id>& ranks, rank_id rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// `rank` is in the group and is not about to leave it.
bool stays(const rank_machine& m, rank_id rank) {
  return holds(m.members, rank) && !m.dead.count(rank)
         && !(m.transition && holds(m.transition->plan.leavers, rank));
}

/// Why the request of another rank is not taken, or empty.
std::string objection_to_offer(const rank_machine& m, rank_id from) {
  const auto own = "rank " + std::to_string(m.config.self.value);
  if (m.stopping || m.orphaned || m.failure) return own + ": the job ends";
  if (!stays(m, m.config.self)) return own + " leaves the group";
  if (!holds(m.members, from))
    return own + ": rank " + std::to_string(from.value) + " is not in the group";
  return {};
}

void tell_planner(const rank_machine& m, const outbound_move& move, effects& out) {
  if (move.now_in == outbound_move::phase::ended) post(m.who, planner_of(m), move.result, out);
}

void step_outbound(rank_machine& m, outbound_move& move, const envelope& in, time_point now,
                   effects& out) {
  const bool was_over = move.now_in == outbound_move::phase::ended;
  step(move, m.who, in, now, out);
  if (was_over || move.now_in != outbound_move::phase::ended) return;
  if (move.result.outcome == move_outcome::moved) --m.rollout->requests;
  tell_planner(m, move, out);
}

void step_inbound(rank_machine& m, inbound_move& move, const envelope& in, effects& out) {
  const bool was_over = move.over();
  step(move, m.who, in, out);
  if (!was_over && move.now_in == inbound_move::phase::committed) ++m.rollout->requests;
}

/// The source speaks about a move that is not known here.
void meet(rank_machine& m, const envelope& in, const move_key& key, effects& out) {
  inbound_move move;
  move.key = key;
  move.from = in.from.rank;
  const auto* offer = std::get_if<move_offer>(&in.body);
  if (offer) {
    move.text = objection_to_offer(m, move.from);
    move.now_in = inbound_move::phase::refused;
  } else if (std::get_if<kv_ready>(&in.body)) {
    move.text = "rank " + std::to_string(m.config.self.value) + " knows of no such move";
    move.now_in = inbound_move::phase::rejected;
  } else if (std::get_if<move_cancel>(&in.body)) {
    move.now_in = inbound_move::phase::cancelled; // The offer may still come.
  } else {
    ++m.drops.unexpected;
    return;
  }
  auto& kept = m.rollout->inbound[key] = move;
  if (!offer || !move.text.empty()) return step(kept, m.who, in, out);
  kept.now_in = inbound_move::phase::reserving;
  begin(kept, m.who, move.from, *offer, out);
}

bool runs(rank_machine& m, rollout_id rollout) {
  if (m.rollout && m.rollout->id == rollout && m.rollout->started && !m.rollout->report)
    return true;
  ++m.drops.stale_rollout;
  return false;
}

} // namespace

bool moves_open(const rank_machine& m) {
  if (!m.rollout) return false;
  const auto& r = *m.rollout;
  return std::any_of(r.outbound.begin(), r.outbound.end(),
                     [](const auto& x) { return x.second.now_in != outbound_move::phase::ended; })
         || std::any_of(r.inbound.begin(), r.inbound.end(),
                        [](const auto& x) { return !x.second.over(); });
}

bool only_asks_engine(const rank_machine& m) {
  if (!m.rollout || m.rollout->progress.live_requests > 0) return false;
  const auto& r = *m.rollout;
  return r.progress.finished_requests >= r.requests
         && std::all_of(r.outbound.begin(), r.outbound.end(),
                        [](const auto& x) {
                          return x.second.now_in == outbound_move::phase::ended
                                 || x.second.now_in == outbound_move::phase::asking;
                        })
         && std::all_of(r.inbound.begin(), r.inbound.end(),
                        [](const auto& x) { return x.second.over(); });
}

void lose_peers(rank_machine& m, const std::vector<request_id>& ended, effects& out) {
  if (!m.rollout) return;
  for (auto& [key, move] : m.rollout->outbound) {
    if (!m.dead.count(move.to) || move.now_in == outbound_move::phase::ended) continue;
    const bool has_ended = std::find(ended.begin(), ended.end(), key.request) != ended.end();
    lose_destination(move, m.who, has_ended, out);
    tell_planner(m, move, out);
  }
  for (auto& [key, move] : m.rollout->inbound)
    if (m.dead.count(move.from)) lose_source(move, m.who, out);
}

bool takes_from_dead(const rank_machine& m) {
  if (!m.rollout) return false;
  const auto& all = m.rollout->inbound;
  return std::any_of(all.begin(), all.end(), [&](const auto& x) {
    return m.dead.count(x.second.from) && !x.second.over();
  });
}

std::vector<request_id> taken_from_dead(const rank_machine& m) {
  std::vector<request_id> taken;
  if (!m.rollout) return taken;
  const auto left_again = [&](const move_key& taken_by) {
    const auto& all = m.rollout->outbound;
    return std::any_of(all.begin(), all.end(), [&](const auto& x) {
      return x.first.request == taken_by.request && taken_by.move < x.first.move
             && x.second.result.outcome == move_outcome::moved
             && x.second.now_in >= outbound_move::phase::ending;
    });
  };
  for (const auto& [key, move] : m.rollout->inbound)
    if (m.dead.count(move.from) && move.now_in == inbound_move::phase::committed
        && !left_again(key))
      taken.push_back(key.request);
  return taken;
}

void handle(rank_machine& m, const envelope&, const move_request& order, time_point now,
            effects& out) {
  if (!runs(m, order.key.rollout)) return;
  auto& known = m.rollout->outbound;
  if (const auto found = known.find(order.key); found != known.end())
    return tell_planner(m, found->second, out);
  if (m.stopping) return;
  auto& move = known[order.key];
  if (stays(m, order.to)) return begin(move, m.who, order, now, out);
  move.now_in = outbound_move::phase::ended;
  move.result.key = order.key;
  move.result.to = order.to;
  move.result.outcome = move_outcome::refused;
  move.result.text = "rank " + std::to_string(order.to.value) + " leaves the group";
  tell_planner(m, move, out);
}

void hear_move(rank_machine& m, const envelope& in, const move_key& key, time_point now,
               effects& out) {
  if (!runs(m, key.rollout)) return;
  auto& r = *m.rollout;
  if (const auto outbound = r.outbound.find(key); outbound != r.outbound.end())
    step_outbound(m, outbound->second, in, now, out);
  else if (const auto inbound = r.inbound.find(key); inbound != r.inbound.end())
    step_inbound(m, inbound->second, in, out);
  else if (in.from.role == role_kind::rank)
    meet(m, in, key, out);
  else
    ++m.drops.unexpected;
  answer_if_prepared(m, out);
}

void tick_moves(rank_machine& m, time_point now, effects& out) {
  if (!rollout_runs(m) || m.stopping) return;
  for (auto& [key, move] : m.rollout->outbound)
    tick(move, m.who, m.config.handoff, now, out);
}

} // namespace adafloor::rank_parts
