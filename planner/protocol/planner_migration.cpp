#include "planner/protocol/planner_parts.hpp"

#include <algorithm>

namespace adafloor {
namespace planner_parts {
namespace {

using open_move = planner_machine::open_move;

bool holds(const std::vector<rank_id>& ranks, rank_id rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void send_order(planner_machine& m, open_move& move, time_point now, effects& out) {
  move.sent_at = now;
  post(m.who, role_at(move.from, role_kind::rank), move_request{move.key, move.to}, out);
}

} // namespace

void rehome(planner_machine& m, planner_machine::request_part& request, rank_id to) {
  auto& ranks = m.rollout->ranks;
  const bool received = request.state != planner_machine::response_state::missing;
  auto& from = ranks[request.home];
  --from.requests;
  from.received -= received ? 1 : 0;
  ++ranks[to].requests;
  ranks[to].received += received ? 1 : 0;
  request.home = to;
}

void note_arrival(planner_machine& m, request_id request, rank_id rank) {
  const auto move = m.rollout->moves.find(request);
  auto& part = m.rollout->requests[request];
  if (move != m.rollout->moves.end() && move->second.to == rank && part.home != rank)
    rehome(m, part, rank);
}

void hear_moved(planner_machine& m, const envelope& in, const request_moved& done, time_point now,
                effects& out) {
  if (!m.rollout || m.rollout->id != done.key.rollout) {
    ++m.drops.stale_rollout;
    return;
  }
  auto& r = *m.rollout;
  const auto found = r.moves.find(done.key.request);
  if (found == r.moves.end() || !(found->second.key == done.key)
      || found->second.from != in.from.rank)
    return; // A repeat.
  auto& request = r.requests[done.key.request];
  if (done.outcome != move_outcome::moved)
    ++request.moves_failed;
  else if (request.home != found->second.to)
    rehome(m, request, found->second.to);
  r.moves.erase(found);
  out.push_back({in.from, local(m, role_kind::trainer), in.incarnation, in.stamp, done});
  go_on_with_recovery(m, now, out);
  advance(m, now, out);
}

void tick_moves(planner_machine& m, time_point now, effects& out) {
  if (!m.rollout || m.now_in == phase::failed) return;
  for (auto& [request, move] : m.rollout->moves)
    if (!m.lost.count(move.from) && now - move.sent_at >= m.config.resend)
      send_order(m, move, now, out);
}

} // namespace planner_parts

bool order_move(planner_machine& m, request_id id, rank_id to, time_point now, effects& out) {
  if (m.now_in != planner_machine::phase::running || m.stopping || m.recovery) return false;
  auto& r = *m.rollout;
  const auto found = r.requests.find(id);
  if (found == r.requests.end() || r.moves.count(id) != 0) return false;
  const auto& request = found->second;
  const auto& t = m.transition;
  const bool leaves =
      t.now_in != transition_coordinator::phase::none && !planner_parts::holds(t.plan.members, to);
  if (request.state != planner_machine::response_state::missing || request.home == to || leaves
      || !planner_parts::holds(m.members, to))
    return false;
  auto& move = r.moves[id];
  move = {{r.id, id, ++m.moves_ordered}, request.home, to, now};
  planner_parts::send_order(m, move, now, out);
  return true;
}

bool moving(const planner_machine& m, rank_id rank) {
  if (!m.rollout) return false;
  const auto& moves = m.rollout->moves;
  return std::any_of(moves.begin(), moves.end(), [&](const auto& move) {
    return move.second.from == rank || move.second.to == rank;
  });
}

bool moves_open(const planner_machine& m) {
  return m.rollout && !m.rollout->moves.empty();
}

} // namespace adafloor
