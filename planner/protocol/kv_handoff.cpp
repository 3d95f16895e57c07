#include "planner/protocol/kv_handoff.hpp"

namespace adafloor {
namespace {

using source_phase = outbound_move::phase;
using taker_phase = inbound_move::phase;

// --- the source

address engine_of(const identity& who) {
  return role_at(who.self.rank, role_kind::engine);
}

template <class Message>
void say(outbound_move& m, const identity& who, Message body, time_point now, effects& out) {
  m.sent_at = now;
  post(who, role_at(m.to, role_kind::rank), std::move(body), out);
}

/// The destination has nothing of the request any more, or owns it.
void end_at_engine(outbound_move& m, const identity& who, effects& out) {
  if (!m.at_engine) {
    m.now_in = source_phase::ended;
    return;
  }
  m.now_in = source_phase::ending;
  post(who, engine_of(who), engine_move_end{m.key, m.result.outcome}, out);
}

void cancel(outbound_move& m, const identity& who, move_outcome why, time_point now, effects& out) {
  m.result.outcome = why;
  m.now_in = source_phase::cancelling;
  say(m, who, move_cancel{m.key}, now, out);
}

void hear(outbound_move& m, const identity& who, const engine_move_offer& offer, time_point now,
          effects& out) {
  if (m.now_in != source_phase::asking) return;
  m.pages = offer.pages;
  m.now_in = source_phase::offering;
  say(m, who, move_offer{m.key, m.pages}, now, out);
}

/// A round that comes when the move is being cancelled already is not passed on, so the destination
/// never sees a last round that is taken back.
void hear(outbound_move& m, const identity& who, const kv_ready& round, time_point now,
          effects& out) {
  if (m.now_in != source_phase::copying) return;
  m.ready = round;
  if (round.last) m.now_in = source_phase::handing_over;
  say(m, who, round, now, out);
}

void hear(outbound_move& m, const identity& who, const engine_move_ended& end, time_point now,
          effects& out) {
  if (m.now_in == source_phase::ended || !m.at_engine) return;
  m.at_engine = false;
  m.result.outcome = end.outcome;
  m.result.pages = end.pages;
  m.result.bytes = end.bytes;
  m.result.rounds = end.rounds;
  const bool missed =
      end.outcome == move_outcome::moved && m.committed_at_step > end.stopped_at_step;
  m.result.missed_steps =
      missed ? static_cast<std::uint32_t>(m.committed_at_step - end.stopped_at_step) : 0;
  if (m.now_in == source_phase::offering || m.now_in == source_phase::copying)
    cancel(m, who, end.outcome, now, out);
  else if (m.now_in != source_phase::cancelling)
    m.now_in = source_phase::ended;
}

void hear(outbound_move& m, const identity& who, const move_accepted&, time_point, effects& out) {
  if (m.now_in != source_phase::offering) return;
  m.now_in = source_phase::copying;
  post(who, engine_of(who), engine_move_round{m.key, 0}, out);
}

void hear(outbound_move& m, const identity& who, const kv_taken& taken, time_point, effects& out) {
  if (m.now_in != source_phase::copying || !m.ready || m.ready->round != taken.round) return;
  m.ready.reset();
  post(who, engine_of(who), engine_move_round{m.key, taken.round + 1}, out);
}

void hear(outbound_move& m, const identity& who, const move_committed& done, time_point,
          effects& out) {
  if (m.now_in != source_phase::handing_over) return;
  m.committed_at_step = done.at_step;
  m.result.outcome = move_outcome::moved;
  end_at_engine(m, who, out);
}

/// The destination has freed what it had, and says so for good.
void not_taken(outbound_move& m, const identity& who, move_outcome how, const std::string& text,
               effects& out) {
  if (m.now_in < source_phase::offering || m.now_in > source_phase::cancelling) return;
  if (m.now_in != source_phase::cancelling) m.result.outcome = how;
  m.result.text = text;
  end_at_engine(m, who, out);
}

void hear(outbound_move& m, const identity& who, const move_refused& no, time_point, effects& out) {
  not_taken(m, who, move_outcome::refused, no.text, out);
}

void hear(outbound_move& m, const identity& who, const move_rejected& no, time_point,
          effects& out) {
  not_taken(m, who, move_outcome::given_up, no.text, out);
}

void hear(outbound_move& m, const identity& who, const move_cancelled&, time_point, effects& out) {
  if (m.now_in == source_phase::cancelling) end_at_engine(m, who, out);
}

// --- the destination

template <class Message>
void answer(const inbound_move& m, const identity& who, Message body, effects& out) {
  post(who, role_at(m.from, role_kind::rank), std::move(body), out);
}

/// What became of the move, as often as it is asked.
void tell_outcome(const inbound_move& m, const identity& who, effects& out) {
  switch (m.now_in) {
  case taker_phase::committed:
    return answer(m, who, move_committed{m.key, m.at_step}, out);
  case taker_phase::refused:
    return answer(m, who, move_refused{m.key, m.text}, out);
  case taker_phase::rejected:
    return answer(m, who, move_rejected{m.key, m.text}, out);
  case taker_phase::cancelled:
    return answer(m, who, move_cancelled{m.key}, out);
  case taker_phase::reserving:
  case taker_phase::open:
  case taker_phase::taking:
  case taker_phase::cancelling:
    break;
  }
}

void hear(inbound_move& m, const identity& who, const move_offer&, effects& out) {
  if (m.now_in == taker_phase::open || m.now_in == taker_phase::taking)
    answer(m, who, move_accepted{m.key}, out);
  else
    tell_outcome(m, who, out);
}

void hear(inbound_move& m, const identity& who, const kv_ready& round, effects& out) {
  if (m.over()) return tell_outcome(m, who, out);
  if (round.round < m.rounds_taken) return answer(m, who, kv_taken{m.key, round.round}, out);
  if (m.now_in != taker_phase::open || round.round != m.rounds_taken) return;
  m.now_in = taker_phase::taking;
  m.last = round.last;
  post(who, engine_of(who), engine_receive_round{round, m.from}, out);
}

void hear(inbound_move& m, const identity& who, const move_cancel&, effects& out) {
  if (m.over()) {
    // Whatever it was, it is nothing now; only a commit is never taken back.
    if (m.now_in != taker_phase::committed) answer(m, who, move_cancelled{m.key}, out);
    return;
  }
  if (m.now_in == taker_phase::cancelling || (m.now_in == taker_phase::taking && m.last)) return;
  m.now_in = taker_phase::cancelling;
  post(who, engine_of(who), engine_receive_cancel{m.key}, out);
}

void hear(inbound_move& m, const identity& who, const move_accepted& yes, effects& out) {
  if (m.now_in != taker_phase::reserving) return;
  m.now_in = taker_phase::open;
  answer(m, who, yes, out);
}

void hear(inbound_move& m, const identity& who, const move_refused& no, effects& out) {
  if (m.now_in != taker_phase::reserving) return;
  m.now_in = taker_phase::refused;
  m.text = no.text;
  tell_outcome(m, who, out);
}

void hear(inbound_move& m, const identity& who, const kv_taken& taken, effects& out) {
  if (m.now_in != taker_phase::taking || m.last || taken.round != m.rounds_taken) return;
  m.now_in = taker_phase::open;
  ++m.rounds_taken;
  answer(m, who, taken, out);
}

void hear(inbound_move& m, const identity& who, const move_committed& done, effects& out) {
  if (m.now_in != taker_phase::taking || !m.last) return;
  m.now_in = taker_phase::committed;
  m.at_step = done.at_step;
  tell_outcome(m, who, out);
}

void hear(inbound_move& m, const identity& who, const move_rejected& no, effects& out) {
  if (m.now_in != taker_phase::taking) return;
  m.now_in = taker_phase::rejected;
  m.text = no.text;
  tell_outcome(m, who, out);
}

void hear(inbound_move& m, const identity& who, const move_cancelled&, effects& out) {
  if (m.now_in != taker_phase::cancelling && (!m.source_lost || m.over())) return;
  m.now_in = taker_phase::cancelled;
  tell_outcome(m, who, out);
}

template <class M>
constexpr bool ends_or_advances =
    one_of<M, move_accepted, move_refused, kv_taken, move_committed, move_rejected, move_cancelled>;

} // namespace

void begin(outbound_move& m, const identity& who, const move_request& order, time_point now,
           effects& out) {
  m.key = order.key;
  m.to = order.to;
  m.began_at = now;
  m.result.key = order.key;
  m.result.to = order.to;
  post(who, engine_of(who), engine_move_begin{order.key}, out);
}

void step(outbound_move& m, const identity& who, const envelope& in, time_point now, effects& out) {
  const bool from_engine = in.from.role == role_kind::engine;
  if (!from_engine && in.from.rank != m.to) return;
  std::visit(
      [&](const auto& body) {
        using M = std::decay_t<decltype(body)>;
        if constexpr (one_of<M, engine_move_offer, kv_ready, engine_move_ended>) {
          if (from_engine) hear(m, who, body, now, out);
        } else if constexpr (ends_or_advances<M>) {
          if (!from_engine) hear(m, who, body, now, out);
        }
      },
      in.body);
}

void tick(outbound_move& m, const identity& who, const handoff_config& config, time_point now,
          effects& out) {
  const bool copies = m.now_in == source_phase::offering || m.now_in == source_phase::copying;
  if (copies && now - m.began_at > config.copy_max) {
    m.result.text = "rank " + std::to_string(m.to.value) + " did not take the request within "
                    + std::to_string(config.copy_max.count() / 1000) + " ms";
    return cancel(m, who, move_outcome::given_up, now, out);
  }
  if (now - m.sent_at < config.resend) return;
  if (m.now_in == source_phase::offering)
    say(m, who, move_offer{m.key, m.pages}, now, out);
  else if ((m.now_in == source_phase::copying || m.now_in == source_phase::handing_over) && m.ready)
    say(m, who, *m.ready, now, out);
  else if (m.now_in == source_phase::cancelling)
    say(m, who, move_cancel{m.key}, now, out);
}

void lose_destination(outbound_move& m, const identity& who, bool ended, effects& out) {
  if (m.now_in >= source_phase::ending) return;
  const bool gone = ended && m.now_in == source_phase::handing_over;
  if (m.at_engine) m.result.outcome = gone ? move_outcome::moved : move_outcome::given_up;
  m.result.text = "rank " + std::to_string(m.to.value) + " is lost";
  end_at_engine(m, who, out);
}

void begin(inbound_move& m, const identity& who, rank_id from, const move_offer& offer,
           effects& out) {
  m.key = offer.key;
  m.from = from;
  post(who, engine_of(who), engine_receive_begin{offer.key, offer.pages}, out);
}

void step(inbound_move& m, const identity& who, const envelope& in, effects& out) {
  const bool from_engine = in.from.role == role_kind::engine;
  if (!from_engine && in.from.rank != m.from) return;
  std::visit(
      [&](const auto& body) {
        using M = std::decay_t<decltype(body)>;
        if constexpr (one_of<M, move_offer, kv_ready, move_cancel>) {
          if (!from_engine) hear(m, who, body, out);
        } else if constexpr (ends_or_advances<M>) {
          if (from_engine) hear(m, who, body, out);
        }
      },
      in.body);
}

/// The engine's word on the last round may be on its way, so a commit that comes first counts.
void lose_source(inbound_move& m, const identity& who, effects& out) {
  if (m.over()) return;
  m.source_lost = true;
  if (m.now_in != taker_phase::taking || !m.last) m.now_in = taker_phase::cancelling;
  post(who, engine_of(who), engine_receive_cancel{m.key}, out);
}

} // namespace adafloor
