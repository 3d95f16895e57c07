#include "planner/protocol/membership.hpp"

namespace adafloor {
namespace {

void hear(membership_machine& m, const envelope& in, const heartbeat& beat, time_point now,
          effects& out) {
  const auto found = m.peers.find(in.from.rank);
  if (found == m.peers.end()) {
    ++m.drops.unexpected;
    return;
  }
  auto& peer = found->second;
  if (peer.incarnation == incarnation_id{}) peer.incarnation = beat.incarnation;
  if (peer.incarnation != beat.incarnation) {
    ++m.drops.stale_incarnation;
    return;
  }
  if (peer.lost) {
    peer.lost->incarnation = beat.incarnation;
    return post(m.who, in.from, *peer.lost, out);
  }
  peer.heard_at = now;
  peer.epoch = std::max(peer.epoch, beat.epoch);
  peer.step = beat.step;
  post(m.who, in.from, heartbeat_seen{beat.step, beat.sent_at, now.time_since_epoch()}, out);
}

std::string silence_text(rank_id rank, microseconds silence) {
  return "rank " + std::to_string(rank.value) + " was silent for "
         + std::to_string(silence.count() / 1000) + " ms";
}

} // namespace

membership_machine::membership_machine(membership_config c, term_id term, time_point now)
  : config(c) {
  own_pause.ticked_at = now;
  who.self = role_at(c.self, role_kind::membership);
  who.stamp.term = term;
  for (std::uint32_t r = 0; r < c.world_size; ++r)
    peers[rank_id{r}].heard_at = now;
}

void step(membership_machine& m, const envelope& in, time_point now, effects& out) {
  if (const auto* beat = std::get_if<heartbeat>(&in.body))
    hear(m, in, *beat, now, out);
  else
    ++m.drops.unexpected;
}

void tick(membership_machine& m, time_point now, effects& out) {
  const auto missed = m.own_pause.missed(now);
  for (auto& [rank, peer] : m.peers) {
    peer.heard_at += missed;
    const auto silence = now - peer.heard_at;
    const bool heard = peer.incarnation != incarnation_id{};
    const auto longest =
        heard ? m.config.silence_max : std::max(m.config.silence_max, m.config.first_max);
    if (peer.lost || silence <= longest) continue;
    peer.lost = member_lost{rank, peer.incarnation, silence_text(rank, silence), silence};
    post(m.who, role_at(m.config.self, role_kind::planner), *peer.lost, out);
    post(m.who, role_at(m.config.self, role_kind::broker), *peer.lost, out);
  }
}

} // namespace adafloor
