#include "actors/kv_moves.hpp"

#include <algorithm>
#include <atomic>

namespace adafloor {
namespace {

bytes_view view_of(const byte_string& bytes) {
  return {bytes.data(), bytes.size()};
}

std::uint64_t size_of(const page_loan& loan) {
  return loan.pages.size() * loan.pages.front().size + loan.foot.size();
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
  leaving_[m.key].figures.key = m.key;
  const auto needed = engine_.pages_to_move(m.key.request);
  if (!needed) return finish(leaving_.find(m.key), move_outcome::finished);
  around_.tell(engine_move_offer{m.key, *needed});
}

std::uint32_t kv_moves::pages_per_round() const {
  const auto page_bytes = std::max<std::uint64_t>(engine_.facts().kv_page_bytes, 1);
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(around_.round_bytes_max / page_bytes, 1));
}

/// Full pages as long as there are several that the destination has not got; nothing when only the
/// rest is missing.
std::optional<kv_moves::round_of_pages> kv_moves::make_round(leaving& move, std::uint32_t number) {
  const auto& key = move.figures.key;
  const auto full = engine_.full_pages(key.request);
  if (!full) return std::nullopt;
  const auto made = std::min(move.full_made, *full); // Fewer after a preemption: computed again.
  if (*full - made <= 1) return std::nullopt;
  const auto most = pages_per_round();
  auto count = std::min(*full - made, most);
  // Of many rounds the first are small: soon there is one to copy while the next is summed up.
  if (*full > most) count = std::min(count, std::max(most / 4, 1U) + made);
  auto loan = engine_.lend_pages(key.request, made, count);
  if (!loan) return std::nullopt;
  move.full_made = made + count;
  const kv_ready what{key, number, count, size_of(*loan), false};
  return round_of_pages{what, std::move(*loan), {}};
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
  return round_of_pages{what, {}, std::move(*bytes)};
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

/// The round before may still be asked for, the one before that has been taken; a transfer that
/// reads it still holds it.
void kv_moves::put_on_shelf(leaving& move, round_of_pages round) {
  move.figures.pages += round.what.pages;
  move.figures.bytes += round.what.bytes;
  ++move.figures.rounds;
  take_off_shelf(move, 1);
  move.blob_names.push_back(kv_blob_name(round.what.key, round.what.round));
  const auto what = round.what;
  {
    std::lock_guard lock(mutex_);
    shelf_[move.blob_names.back()] = std::make_shared<round_of_pages>(std::move(round));
  }
  around_.tell(what);
}

/// All but the newest `stay` rounds.
void kv_moves::take_off_shelf(leaving& move, std::size_t stay) {
  {
    std::lock_guard lock(mutex_);
    for (; move.blob_names.size() > stay; move.blob_names.pop_front())
      if (auto old = shelf_.extract(move.blob_names.front()))
        taken_.push_back(std::move(old.mapped()));
  }
  tidy();
}

void kv_moves::tidy() {
  const auto read = [](const auto& round) { return round.use_count() > 1; };
  const auto unread = std::stable_partition(taken_.begin(), taken_.end(), read);
  std::atomic_thread_fence(std::memory_order_acquire); // With the last reader's release.
  for (auto i = unread; i != taken_.end(); ++i)
    engine::take_back(std::move((*i)->pages));
  taken_.erase(unread, taken_.end());
}

void kv_moves::on(const engine_move_end& m) {
  const auto found = leaving_.find(m.key);
  if (found == leaving_.end()) return; // It has ended here, and the rank was told.
  const auto request = m.key.request;
  if (m.outcome == move_outcome::moved) {
    (void)engine_.release_exported(request);
  } else if (found->second.held) {
    (void)engine_.resume_exported(request);
  }
  finish(found, m.outcome);
}

void kv_moves::finish(std::map<move_key, leaving>::iterator move, move_outcome how) {
  take_off_shelf(move->second, 0);
  if (auto& ahead = move->second.ahead) engine::take_back(std::move(ahead->pages));
  auto figures = move->second.figures;
  figures.outcome = how;
  leaving_.erase(move);
  around_.tell(figures);
}

void kv_moves::ended(request_id request) {
  const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                  [&](const auto& move) { return move.first.request == request; });
  if (found != leaving_.end()) finish(found, move_outcome::finished);
}

result<shared_bytes> kv_moves::shelved(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = shelf_.find(name);
  if (found == shelf_.end()) return fail(error_code::refused, "'" + name + "' is not offered");
  return found->second->content(found->second);
}

/// What the destination's import checks, page by page.
shared_bytes kv_moves::round_of_pages::content(std::shared_ptr<const void> owner) const {
  if (pages.pages.empty()) return {std::move(owner), view_of(bytes), true, {}};
  std::vector<bytes_view> rest(pages.pages.begin() + 1, pages.pages.end());
  rest.push_back(view_of(pages.foot));
  return {std::move(owner), pages.pages.front(), true, std::move(rest)};
}

// --- the destination

void kv_moves::on(const engine_receive_begin& m) {
  if (auto room = engine_.begin_import(m.key.request, m.pages); !room)
    return around_.tell(move_refused{m.key, room.error().text});
  arriving_[m.key];
  for (int rounds_under_way = 2; rounds_under_way > 0; --rounds_under_way)
    prepare_landing(m.key);
  around_.tell(move_accepted{m.key});
}

void kv_moves::prepare_landing(const move_key& key) {
  auto landing = engine_.open_landing(key.request, pages_per_round());
  std::lock_guard lock(mutex_);
  landings_[key].push_back(std::move(landing));
}

void kv_moves::drop_landings(const move_key& key) {
  std::deque<page_landing> unused;
  {
    std::lock_guard lock(mutex_);
    if (auto all = landings_.extract(key)) unused = std::move(all.mapped());
  }
  for (auto& landing : unused)
    engine_.drop_landing(key.request, std::move(landing));
}

/// The landing of a round, unless the round is the last one or does not fit into it.
std::shared_ptr<kv_landing> kv_moves::take_landing(const kv_ready& what) {
  constexpr std::uint64_t foot_bytes_max = 1 << 20;
  std::lock_guard lock(mutex_);
  const auto ready = landings_.find(what.key);
  if (what.last || ready == landings_.end() || ready->second.empty()) return nullptr;
  const auto& pages = ready->second.front();
  const auto in_pages = what.pages * pages.page_bytes;
  const bool fits = what.pages <= pages.pages.size() && what.bytes > in_pages
                    && what.bytes - in_pages <= foot_bytes_max;
  if (!fits) {
    ready->second.emplace_front(); // Nor does anything fit until this round is here.
    return nullptr;
  }
  auto landing = std::make_shared<kv_landing>();
  landing->pages = std::move(ready->second.front());
  landing->foot.resize(what.bytes - in_pages);
  ready->second.pop_front();
  return landing;
}

/// Where there is no landing, a buffer takes the round.
void kv_moves::pull(const engine_receive_round& m) {
  const auto landing = take_landing(m.what);
  std::vector<bytes_place> into;
  if (landing) {
    auto& pages = landing->pages;
    for (std::uint32_t i = 0; i < m.what.pages; ++i)
      into.push_back({pages.pages[i], pages.page_bytes, &pages.digests[i]});
    into.push_back({landing->foot.data(), landing->foot.size()});
    around_.arrived({m, std::nullopt, nullptr});
  }
  around_.fetch(m.from, kv_blob_name(m.what.key, m.what.round), std::move(into),
                [this, m, landing](result<shared_bytes> blob) {
                  around_.arrived({m, std::move(blob), landing});
                });
}

void kv_moves::import_round(const kv_arrival& a, arriving& move) {
  const auto& key = a.order.what.key;
  if (!a.landing) {
    drop_landings(key);
    if (!move.problem.empty()) return;
    if (auto r = engine_.import_pages(key.request, (*a.blob)->bytes); !r)
      move.problem = r.error().text;
    return;
  }
  prepare_landing(key);
  if (!move.problem.empty()) return engine_.drop_landing(key.request, std::move(a.landing->pages));
  const auto foot = view_of(a.landing->foot);
  if (auto r = engine_.import_landed(key.request, std::move(a.landing->pages), foot); !r)
    move.problem = r.error().text;
}

/// So that the source makes the next round meanwhile, and copying never stops. A round that is then
/// lost or damaged is told with the next one, and there is one.
void kv_moves::say_taken(arriving& move, const kv_ready& round) {
  if (move.told > round.round) return;
  move.told = round.round + 1;
  around_.tell(kv_taken{round.key, round.round});
}

/// A large round is said to be taken when those before it are here, others when they are here
/// themselves: a request that stands still does not wait for much.
void kv_moves::take(const kv_arrival& a, std::uint64_t step) {
  const auto& round = a.order.what;
  const auto found = arriving_.find(round.key);
  if (found == arriving_.end()) { // Given back meanwhile.
    if (a.landing) engine_.drop_landing(round.key.request, std::move(a.landing->pages));
    return;
  }
  auto& move = found->second;
  if (a.blob)
    move.here.emplace(round.round, a);
  else if (round.bytes >= around_.round_bytes_max / 4)
    move.begun = round;
  // A small round overtakes a large one.
  while (!move.here.empty() && move.here.begin()->first == move.arrived)
    if (!take_next(move, step)) return;
  if (move.begun && move.begun->round <= move.arrived && move.problem.empty())
    say_taken(move, *std::exchange(move.begun, std::nullopt));
}

/// False: the move is over here.
bool kv_moves::take_next(arriving& move, std::uint64_t step) {
  const auto a = move.here.extract(move.arrived).mapped();
  const auto& round = a.order.what;
  if (!*a.blob) move.problem = a.blob->error().text;
  const bool next_tells = move.told > round.round;
  if (round.last || (!move.problem.empty() && !next_tells)) {
    take_last(a, step);
    return false;
  }
  ++move.arrived;
  say_taken(move, round);
  import_round(a, move);
  return true;
}

void kv_moves::take_last(const kv_arrival& a, std::uint64_t step) {
  const auto& key = a.order.what.key;
  const auto request = key.request;
  auto move = arriving_.extract(key).mapped();
  auto& problem = move.problem;
  if (a.landing) engine_.drop_landing(request, std::move(a.landing->pages));
  drop_landings(key);
  if (problem.empty())
    if (auto r = engine_.finish_import((*a.blob)->bytes); !r) problem = r.error().text;
  if (problem.empty()) {
    around_.tell(move_committed{key, step});
  } else {
    engine_.cancel_import(request);
    around_.tell(move_rejected{key, problem});
  }
}

void kv_moves::on(const engine_receive_cancel& m) {
  if (const auto move = arriving_.extract(m.key)) {
    for (const auto& [number, a] : move.mapped().here)
      if (a.landing) engine_.drop_landing(m.key.request, std::move(a.landing->pages));
    drop_landings(m.key);
    engine_.cancel_import(m.key.request);
  }
  around_.tell(move_cancelled{m.key});
}

} // namespace adafloor
