#include "actors/kv_moves.hpp"

#include <algorithm>
#include <atomic>

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

/// Full pages as long as there are several that the destination has not got; nothing when only the
/// rest is missing.
std::optional<kv_moves::round_of_pages> kv_moves::make_round(leaving& move, std::uint32_t number) {
  const auto& key = move.figures.key;
  const auto full = engine_.full_pages(key.request);
  if (!full) return std::nullopt;
  const auto made = std::min(move.full_made, *full); // Fewer after a preemption: computed again.
  if (*full - made <= 1) return std::nullopt;
  const auto page_bytes = std::max<std::uint64_t>(engine_.facts().kv_page_bytes, 1);
  const auto fit = std::max<std::uint64_t>(around_.round_bytes_max / page_bytes, 1);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(*full - made, fit));
  auto bytes = engine_.export_pages(key.request, made, count, spare_memory());
  if (!bytes) return std::nullopt;
  move.full_made = made + count;
  const kv_ready what{key, number, count, bytes->size(), false};
  return round_of_pages{what, std::move(*bytes)};
}

/// At most one full page, the page that is being filled, the tokens. The request stands still.
result<kv_moves::round_of_pages> kv_moves::make_last(leaving& move, std::uint32_t number,
                                                     std::uint64_t step) {
  const auto& key = move.figures.key;
  const auto positions = computed(key.request);
  const auto made = std::min(move.full_made, positions / kv_page_tokens);
  auto bytes = engine_.export_remainder(key.request, made);
  if (!bytes) return tl::unexpected(bytes.error());
  move.held = true;
  move.figures.stopped_at_step = step;
  const auto pages = (positions + kv_page_tokens - 1) / kv_page_tokens - made;
  const kv_ready what{key, number, pages, bytes->size(), true};
  return round_of_pages{what, std::move(*bytes)};
}

void kv_moves::on(const engine_move_round& m, std::uint64_t step) {
  const auto found = leaving_.find(m.key);
  if (found == leaving_.end()) return; // It has ended here, and the rank was told.
  auto& move = found->second;
  auto round = std::exchange(move.ahead, std::nullopt);
  if (!round) round = make_round(move, m.round);
  if (!round) {
    auto last = make_last(move, m.round, step);
    return last ? put_on_shelf(move, std::move(*last)) : finish(found, move_outcome::given_up);
  }
  put_on_shelf(move, std::move(*round));
  move.ahead = make_round(move, m.round + 1);
}

/// The round before has been taken, so its blob may go; a transfer that still reads it holds it.
void kv_moves::put_on_shelf(leaving& move, round_of_pages round) {
  move.figures.pages += round.what.pages;
  move.figures.bytes += round.what.bytes;
  ++move.figures.rounds;
  const auto before = std::exchange(move.blob_name, kv_blob_name(round.what.key, round.what.round));
  {
    std::lock_guard lock(mutex_);
    if (auto old = shelf_.extract(before)) spare_.push_back(std::move(old.mapped()));
    shelf_[move.blob_name] = std::make_shared<byte_string>(std::move(round.bytes));
  }
  constexpr std::size_t spare_max = 2;
  if (spare_.size() > spare_max) spare_.pop_front();
  around_.tell(round.what);
}

/// Memory of a round that nobody reads any more, or none.
byte_string kv_moves::spare_memory() {
  for (auto i = spare_.begin(); i != spare_.end(); ++i)
    if (i->use_count() == 1) {
      std::atomic_thread_fence(std::memory_order_acquire); // With the last reader's release.
      auto memory = std::move(**i);
      spare_.erase(i);
      return memory;
    }
  return {};
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
  arriving_[m.key].pages = m.pages;
  around_.tell(move_accepted{m.key});
}

void kv_moves::pull(const engine_receive_round& m) const {
  around_.fetch(m.from, kv_blob_name(m.what.key, m.what.round),
                [this, m](result<shared_bytes> blob) {
                  around_.arrived({m, std::move(blob)});
                });
}

/// A round before the last is said to be taken first, so that the source makes the next one while
/// this one is put in its place. If that fails, the next round is rejected, and there is one.
void kv_moves::take(const kv_arrival& a, std::uint64_t step) {
  const auto& round = a.order.what;
  const auto found = arriving_.find(round.key);
  if (found == arriving_.end()) return; // Given back meanwhile.
  auto& [pages, problem] = found->second;
  const auto request = round.key.request;
  if (!a.blob) problem = a.blob.error().text;
  if (problem.empty() && !round.last) {
    around_.tell(kv_taken{round.key, round.round});
    if (auto r = engine_.import_pages(request, a.blob->bytes); !r) problem = r.error().text;
    return;
  }
  if (problem.empty())
    if (auto r = engine_.finish_import(a.blob->bytes); !r) problem = r.error().text;
  if (problem.empty()) {
    pages_[request] = pages;
    around_.tell(move_committed{round.key, step});
  } else {
    engine_.cancel_import(request);
    around_.tell(move_rejected{round.key, problem});
  }
  arriving_.erase(found);
}

void kv_moves::on(const engine_receive_cancel& m) {
  if (arriving_.erase(m.key) > 0) engine_.cancel_import(m.key.request);
  around_.tell(move_cancelled{m.key});
}

} // namespace adafloor
