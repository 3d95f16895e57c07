// How the engine of a simulated rank gives requests away and takes them: a "page" is the KV of four
// tokens, and what arrives is what was on the source's shelf.
#include "planner/sim/models.hpp"

#include <algorithm>

namespace adafloor::sim {

constexpr std::uint32_t model_page_tokens = 4, model_round_pages = 3;

engine_model::running_request* engine_model::find(request_id id) {
  for (auto& r : requests_)
    if (r.spec.id == id && !r.done) return &r;
  return nullptr;
}

/// Whether it was about a move.
bool engine_model::handle_move(const any_message& order) {
  if (auto* round = std::get_if<engine_receive_round>(&order)) {
    world_.fetch_round(self_, round->from, round->what,
                       [this, what = round->what](const std::optional<kv_blob>& blob) {
                         if (broken_) return;
                         const auto work = [this, what, blob] { take(what, blob); };
                         quiescent_ ? work() : deferred_.push_back(work);
                       });
    return true;
  }
  const auto work = [this, order] { at_boundary(order); };
  quiescent_ ? work() : deferred_.push_back(work);
  return true;
}

void engine_model::at_boundary(const any_message& order) {
  if (auto* begin = std::get_if<engine_move_begin>(&order))
    offer(begin->key);
  else if (auto* next = std::get_if<engine_move_round>(&order))
    make_round(*next);
  else if (auto* end = std::get_if<engine_move_end>(&order))
    end_move(*end);
  else if (auto* room = std::get_if<engine_receive_begin>(&order))
    reserve(*room);
  else if (auto* back = std::get_if<engine_receive_cancel>(&order))
    give_back(back->key);
}

// --- the source

void engine_model::offer(const move_key& key) {
  leaving_[key].figures.key = key;
  const auto* r = find(key.request);
  if (!r) return conclude_move(key, move_outcome::finished);
  demand(!r->held, "I3", "a request is offered twice at once");
  say(engine_move_offer{key, r->spec.max_tokens / model_page_tokens + 1});
}

void engine_model::make_round(const engine_move_round& order) {
  const auto found = leaving_.find(order.key);
  if (found == leaving_.end()) return; // has ended here
  auto& move = found->second;
  auto& r = *find(order.key.request);
  const auto tokens = static_cast<std::uint32_t>(r.generated.size());
  const auto missing = tokens / model_page_tokens - move.sent / model_page_tokens;
  const bool last = missing <= 1;
  const auto end =
      last ? tokens : move.sent + std::min(missing, model_round_pages) * model_page_tokens;
  const auto at = r.generated.begin();
  kv_blob blob{last, r.spec, move.sent, {at + move.sent, at + end}};
  const auto pages = (end - move.sent + model_page_tokens - 1) / model_page_tokens;
  move.sent = end;
  move.figures.pages += pages;
  move.figures.bytes += blob.tokens.size();
  ++move.figures.rounds;
  if (last) {
    r.held = true;
    move.figures.stopped_at_step = step_;
  }
  say(kv_ready{order.key, order.round, pages, blob.tokens.size(), last});
  shelf_[order.key] = {order.round, std::move(blob)};
}

std::optional<kv_blob> engine_model::shelved(const kv_ready& round) const {
  const auto found = shelf_.find(round.key);
  if (found == shelf_.end() || found->second.first != round.round) return {};
  return found->second.second;
}

void engine_model::end_move(const engine_move_end& order) {
  if (leaving_.count(order.key) == 0) return; // has ended here
  auto* r = find(order.key.request);
  const auto before = live_;
  if (order.outcome == move_outcome::moved) {
    demand(r && r->held, "I3", "a request that still decodes is freed");
    requests_.erase(requests_.begin() + (r - requests_.data()));
    --live_;
  } else if (r) {
    r->held = false;
  }
  conclude_move(order.key, order.outcome);
  if (live_ != before) report_progress();
}

void engine_model::conclude_move(const move_key& key, move_outcome how) {
  auto figures = leaving_[key].figures;
  figures.outcome = how;
  leaving_.erase(key);
  shelf_.erase(key);
  say(figures);
}

// --- the destination

void engine_model::reserve(const engine_receive_begin& order) {
  demand(!find(order.key.request), "I3", "a request moves to where it is");
  if (world_.rng.chance(world_.faults().no_room))
    return say(move_refused{order.key, "planted lack of room"});
  demand(arriving_.emplace(order.key, arriving{}).second, "I9", "room is reserved twice");
  say(move_accepted{order.key});
}

void engine_model::take(const kv_ready& what, const std::optional<kv_blob>& blob) {
  const auto found = arriving_.find(what.key);
  if (found == arriving_.end()) return; // given back meanwhile
  if (!blob) {
    arriving_.erase(found);
    return say(move_rejected{what.key, "planted failure of a pull"});
  }
  auto& tokens = found->second.tokens;
  demand(blob->first == tokens.size() && blob->last == what.last, "I3", "a round is missing");
  tokens.insert(tokens.end(), blob->tokens.begin(), blob->tokens.end());
  if (!what.last) return say(kv_taken{what.key, what.round});
  demand(member_ && (!quiescent_ || stalled_), "I6",
         "a request moves to a rank that does not decode");
  requests_.push_back({blob->spec, true_tokens(blob->spec), tokens, false, false});
  arriving_.erase(found);
  ++live_;
  say(move_committed{what.key, step_});
  report_progress();
}

void engine_model::give_back(const move_key& key) {
  arriving_.erase(key);
  say(move_cancelled{key});
}

} // namespace adafloor::sim
