#pragma once
// Conversation: one live request moves from its rank to another with its KV cache (protocols.md
// section 4). `move` names one attempt; numbers grow within a job and are never used twice.
#include "messages/ids.hpp"

#include <string>
#include <vector>

namespace adafloor {

/// Names one attempt to move one request. The destination keeps what became of it until the rollout
/// ends, so a repeated question gets the same answer.
struct move_key {
  rollout_id rollout;
  request_id request;
  std::uint64_t move = 0;
  FIELDS(move_key, rollout, request, move)
  friend bool operator<(const move_key& a, const move_key& b) { return a.fields() < b.fields(); }
};

enum class move_outcome : std::uint8_t {
  moved = 1,    ///< the destination owns the request
  refused = 2,  ///< the destination has no room; nothing changed
  finished = 3, ///< the request ended at its source before it could move
  given_up = 4, ///< deadline or damage; the request goes on at its source
};
constexpr move_outcome enum_max(move_outcome) {
  return move_outcome::given_up;
}
const char* name_of(move_outcome);

/// planner -> source: move the request to `to`. Resent until `request_moved`.
struct move_request {
  move_key key;
  rank_id to;
  FIELDS(move_request, key, to)
};
/// source -> planner: how it ended. Also the answer to a repeated order.
struct request_moved {
  move_key key;
  rank_id to;
  move_outcome outcome = move_outcome::moved;
  std::uint32_t pages = 0;        ///< copied, those that were copied twice counted twice
  std::uint64_t bytes = 0;        ///< copied
  std::uint32_t rounds = 0;       ///< of copying, the remainder included
  std::uint32_t missed_steps = 0; ///< decode steps of the group without this request
  std::string text;               ///< of a refusal
  FIELDS(request_moved, key, to, outcome, pages, bytes, rounds, missed_steps, text)
};

/// source -> destination: reserve so many KV pages. Resent until accepted or refused.
struct move_offer {
  move_key key;
  std::uint32_t pages = 0; ///< for the prompt and the longest response
  FIELDS(move_offer, key, pages)
};
struct move_accepted {
  move_key key;
  FIELDS(move_accepted, key)
};
struct move_refused {
  move_key key;
  std::string text;
  FIELDS(move_refused, key, text)
};

/// source -> destination: round `round` is ready to be pulled. With `last` it holds everything that
/// is missing, the request stands still and the destination takes it over. Resent until
/// `kv_taken`, with `last` until `move_committed` or `move_rejected`.
struct kv_ready {
  move_key key;
  std::uint32_t round = 0; ///< 0-based
  std::uint32_t pages = 0;
  std::uint64_t bytes = 0;
  bool last = false;
  FIELDS(kv_ready, key, round, pages, bytes, last)
};
/// destination -> source: the pages of this round are in place.
struct kv_taken {
  move_key key;
  std::uint32_t round = 0;
  FIELDS(kv_taken, key, round)
};
/// destination -> source: the request is live here; the source frees its pages. Idempotent.
struct move_committed {
  move_key key;
  std::uint64_t at_step = 0; ///< of the destination's rollout, before its first step here
  FIELDS(move_committed, key, at_step)
};
/// destination -> source: not taken over and never will be; nothing is reserved any more.
struct move_rejected {
  move_key key;
  std::string text;
  FIELDS(move_rejected, key, text)
};

/// source -> destination: give back what the offer reserved. Never sent after the last round is
/// ready. Resent until `move_cancelled`.
struct move_cancel {
  move_key key;
  FIELDS(move_cancel, key)
};
struct move_cancelled {
  move_key key;
  FIELDS(move_cancelled, key)
};

// --- with the engine of the same process; never on the wire
// ---------------------------------------

/// rank -> engine (source): how many pages would the request need elsewhere? Answered by
/// `engine_move_offer` or, when it is not live here, by `engine_move_ended`.
struct engine_move_begin {
  move_key key;
  FIELDS(engine_move_begin, key)
};
struct engine_move_offer {
  move_key key;
  std::uint32_t pages = 0;
  FIELDS(engine_move_offer, key, pages)
};
/// rank -> engine (source): the destination has room (round 0) or has taken the round before: put
/// round `round` on the shelf at the next step boundary. Answered by `kv_ready`.
struct engine_move_round {
  move_key key;
  std::uint32_t round = 0;
  FIELDS(engine_move_round, key, round)
};
/// rank -> engine (source): `moved` frees the request, everything else lets it go on here.
/// Answered by `engine_move_ended`; also said unasked when the request ends at its source.
struct engine_move_end {
  move_key key;
  move_outcome outcome = move_outcome::moved;
  FIELDS(engine_move_end, key, outcome)
};
struct engine_move_ended {
  move_key key;
  move_outcome outcome = move_outcome::moved;
  std::uint32_t pages = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint64_t stopped_at_step = 0; ///< of the rollout, when the last round was made
  FIELDS(engine_move_ended, key, outcome, pages, bytes, rounds, stopped_at_step)
};

/// rank -> engine (destination): reserve. Answered by `move_accepted` or `move_refused`.
struct engine_receive_begin {
  move_key key;
  std::uint32_t pages = 0;
  FIELDS(engine_receive_begin, key, pages)
};
/// rank -> engine (destination): pull this round from `from` and take it in. Answered by
/// `kv_taken`, with `last` by `move_committed`; `move_rejected` when it cannot be had.
struct engine_receive_round {
  kv_ready what;
  rank_id from;
  FIELDS(engine_receive_round, what, from)
};
/// rank -> engine (destination): give back. Answered by `move_cancelled`.
struct engine_receive_cancel {
  move_key key;
  FIELDS(engine_receive_cancel, key)
};

} // namespace adafloor
