#include "actors/kv_moves.hpp"

#include <algorithm>

namespace adafloor {
namespace {

bytes_view view_of(const byte_string& bytes) {
  return {bytes.data(), bytes.size()};
}

} // namespace

std::string kv_blob_name(const move_key& key, std::uint32_t round) {
  return "kv/" + std::to_string(key.rollout.value) + "/" + std::to_string(key.request.value) + "/"
         + std::to_string(key.move) + "/" + std::to_string(round);
}

// --- the source

std::uint32_t kv_moves::computed(request_id request) const {
  for (const auto& r : engine_.requests())
    if (r.id == request) return r.computed;
  return 0;
}

std::uint32_t kv_moves::held() const {
  return static_cast<std::uint32_t>(std::count_if(
      leaving_.begin(), leaving_.end(), [](const auto& move) { return move.second.held; }));
}

void kv_moves::on(const engine_move_begin& m) {
  const auto needed = pages_.find(m.key.request);
  auto& move = leaving_[m.key];
  move.figures.key = m.key;
  if (needed == pages_.end()) return finish(leaving_.find(m.key), move_outcome::finished);
  around_.tell(engine_move_offer{m.key, needed->second});
}

/// Full pages as long as there are several that the destination has not got, then the rest: at most
/// one full page, the page that is being filled, the tokens.
void kv_moves::on(const engine_move_round& m, std::uint64_t step) {
  const auto found = leaving_.find(m.key);
  if (found == leaving_.end()) return; // It has ended here, and the rank was told.
  auto& move = found->second;
  const auto request = m.key.request;
  const auto full = engine_.full_pages(request);
  if (!full) return finish(found, move_outcome::given_up);
  const auto sent = std::min(move.full_sent, *full); // Fewer after a preemption: computed again.
  const bool last = *full - sent <= 1;
  const auto page_bytes = std::max<std::uint64_t>(engine_.facts().kv_page_bytes, 1);
  const auto fit = std::max<std::uint64_t>(around_.round_bytes_max / page_bytes, 1);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(*full - sent, fit));
  auto blob =
      last ? engine_.export_remainder(request, sent) : engine_.export_pages(request, sent, count);
  if (!blob) return finish(found, move_outcome::given_up);
  move.held = last;
  if (last) move.figures.stopped_at_step = step;
  const auto covered = (computed(request) + kv_page_tokens - 1) / kv_page_tokens;
  move.full_sent = sent + count;
  const kv_ready round{m.key, m.round, last ? covered - sent : count, blob->size(), last};
  put_on_shelf(move, round, std::move(*blob));
}

/// The round before has been taken, so its blob may go; a transfer that still reads it holds it.
void kv_moves::put_on_shelf(leaving& move, const kv_ready& round, byte_string blob) {
  move.figures.pages += round.pages;
  move.figures.bytes += round.bytes;
  ++move.figures.rounds;
  const auto before = std::exchange(move.blob_name, kv_blob_name(round.key, round.round));
  {
    std::lock_guard lock(mutex_);
    shelf_.erase(before);
    shelf_[move.blob_name] = std::make_shared<const byte_string>(std::move(blob));
  }
  around_.tell(round);
}

void kv_moves::on(const engine_move_end& m) {
  const auto found = leaving_.find(m.key);
  if (found == leaving_.end()) return; // It has ended here, and the rank was told.
  const auto request = m.key.request;
  if (m.outcome == move_outcome::moved) {
    (void)engine_.release_exported(request);
    pages_.erase(request);
  } else if (found->second.held) {
    (void)engine_.resume_exported(request);
  }
  finish(found, m.outcome);
}

void kv_moves::finish(std::map<move_key, leaving>::iterator move, move_outcome how) {
  {
    std::lock_guard lock(mutex_);
    shelf_.erase(move->second.blob_name);
  }
  auto figures = move->second.figures;
  figures.outcome = how;
  leaving_.erase(move);
  around_.tell(figures);
}

void kv_moves::ended(request_id request) {
  pages_.erase(request);
  const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                  [&](const auto& move) { return move.first.request == request; });
  if (found != leaving_.end()) finish(found, move_outcome::finished);
}

result<shared_bytes> kv_moves::shelved(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = shelf_.find(name);
  if (found == shelf_.end()) return fail(error_code::refused, "'" + name + "' is not offered");
  return shared_bytes{found->second, view_of(*found->second)};
}

// --- the destination

void kv_moves::on(const engine_receive_begin& m) {
  if (auto room = engine_.begin_import(m.key.request, m.pages); !room)
    return around_.tell(move_refused{m.key, room.error().text});
  arriving_[m.key] = m.pages;
  around_.tell(move_accepted{m.key});
}

void kv_moves::pull(const engine_receive_round& m) const {
  around_.fetch(m.from, kv_blob_name(m.what.key, m.what.round),
                [this, m](result<shared_bytes> blob) {
                  around_.arrived({m, std::move(blob)});
                });
}

void kv_moves::take(const kv_arrival& a, std::uint64_t step) {
  const auto& round = a.order.what;
  const auto found = arriving_.find(round.key);
  if (found == arriving_.end()) return; // Given back meanwhile.
  const auto request = round.key.request;
  result<void> taken;
  if (!a.blob)
    taken = tl::unexpected(a.blob.error());
  else if (round.last)
    taken = engine_.finish_import(a.blob->bytes);
  else
    taken = engine_.import_pages(request, a.blob->bytes);
  if (taken && !round.last) return around_.tell(kv_taken{round.key, round.round});
  if (taken) {
    pages_[request] = found->second;
    around_.tell(move_committed{round.key, step});
  } else {
    engine_.cancel_import(request);
    around_.tell(move_rejected{round.key, taken.error().text});
  }
  arriving_.erase(found);
}

void kv_moves::on(const engine_receive_cancel& m) {
  if (arriving_.erase(m.key) > 0) engine_.cancel_import(m.key.request);
  around_.tell(move_cancelled{m.key});
}

} // namespace adafloor
