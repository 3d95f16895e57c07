#pragma once
// Both ends of one move of a live request between two ranks (protocols.md section 4). Parts of the
// rank machine; they decide nothing about who moves where. messages/kv.hpp is the conversation.
#include "planner/protocol/machine.hpp"

#include <string>

namespace adafloor {

struct handoff_config {
  microseconds resend{50'000};
  /// From the order until the last round is ready, else the request stays. After that only the
  /// destination's answer ends the move.
  microseconds copy_max{10'000'000};
};

/// At the rank that gives the request away.
struct outbound_move {
  enum class phase : std::uint8_t {
    asking,       ///< the engine is to say how many pages the request needs
    offering,     ///< until the destination accepts or refuses
    copying,      ///< rounds, while the request decodes
    handing_over, ///< the last round is ready; who owns the request is for the destination to say
    cancelling,   ///< until the destination has freed what it reserved
    ending,       ///< the engine frees the request, or goes on with it
    ended,
  };
  move_key key;
  rank_id to;
  phase now_in = phase::asking;
  time_point began_at;
  time_point sent_at;            ///< of the message that is repeated in this phase
  std::uint32_t pages = 0;       ///< that the destination must reserve
  std::optional<kv_ready> ready; ///< the round that the destination has not taken yet
  bool at_engine = true;         ///< the engine has not said that the move is over for it
  std::uint64_t committed_at_step = 0;
  request_moved result; ///< complete once ended
};

/// At the rank that takes the request.
struct inbound_move {
  enum class phase : std::uint8_t {
    reserving,  ///< the engine is asked for room
    open,       ///< reserved; the next round is awaited
    taking,     ///< the engine pulls a round
    cancelling, ///< the engine gives back
    committed,  ///< over: the request is live here
    refused,    ///< over, as are the next two; nothing is reserved
    rejected,
    cancelled,
  };
  move_key key;
  rank_id from;
  phase now_in = phase::reserving;
  std::uint32_t rounds_taken = 0;
  bool last = false;         ///< the round that is being taken is the last
  std::uint64_t at_step = 0; ///< of the commit
  std::string text;          ///< of a refusal or rejection
  bool source_lost = false;  ///< the engine was asked to give back; a commit before that stands

  bool over() const { return now_in >= phase::committed; }
};

/// Starts what the planner ordered.
void begin(outbound_move&, const identity&, const move_request&, time_point now, effects&);
/// What the destination or the own engine says; anything else is ignored.
void step(outbound_move&, const identity&, const envelope&, time_point now, effects&);
void tick(outbound_move&, const identity&, const handoff_config&, time_point now, effects&);
/// The destination is dead by decision: the request goes on here, or, when it `ended` there, is
/// freed.
void lose_destination(outbound_move&, const identity&, bool ended, effects&);

/// Reserves what the source asks for.
void begin(inbound_move&, const identity&, rank_id from, const move_offer&, effects&);
/// What the source or the own engine says. A move that is over gives the same answer for ever: one
/// that was never begun here is made with the phase that it shall have.
void step(inbound_move&, const identity&, const envelope&, effects&);
/// The source is dead by decision: what is not committed is given back.
void lose_source(inbound_move&, const identity&, effects&);

} // namespace adafloor
