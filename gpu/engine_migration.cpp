// Moving a request to another rank: immutable pages first, the remainder at the end.
#include "gpu/byte_io.hpp"
#include "gpu/engine_state.hpp"

#include <algorithm>

namespace adafloor {

namespace {

constexpr std::uint64_t pages_magic = 0x31534547415041ULL;     // "APAGES1"
constexpr std::size_t fields_bytes_max = 256;                  // of a remainder, beside its lists
constexpr std::uint64_t remainder_magic = 0x314E49414D4552ULL; // "REMAIN1"

std::string label(request_id id) {
  return "request " + std::to_string(id.value);
}

tl::unexpected<error> unknown(request_id id) {
  return bad_input(label(id) + ": is not on this rank");
}

/// What both kinds of blob begin with.
struct blob_head {
  std::uint64_t magic = 0;
  blob_origin from;
  request_id id;

  void write(byte_writer& out) const {
    out.put(magic);
    out.put(from.fingerprint);
    out.put(from.version.value);
    out.put(static_cast<std::uint32_t>(from.kv));
    out.put(id.value);
  }
  static blob_head read(byte_reader& in) {
    blob_head h;
    h.magic = in.get<std::uint64_t>();
    h.from.fingerprint = in.get<std::uint64_t>();
    h.from.version = weights_id(in.get<std::uint64_t>());
    h.from.kv = static_cast<kv_dtype>(in.get<std::uint32_t>());
    h.id = request_id{in.get<std::uint64_t>()};
    return h;
  }
};

result<blob_head> open_blob(byte_reader& in, std::uint64_t magic, const blob_origin& here) {
  if (!in.unseal()) return bad_input("request blob: checksum differs; send it again");
  auto head = blob_head::read(in);
  if (!in.ok() || head.magic != magic || head.from.fingerprint != here.fingerprint)
    return bad_input("request blob: is of another kind or model");
  if (head.from.version != here.version)
    return bad_input(label(head.id) + ": runs with weights version "
                     + std::to_string(head.from.version.value) + ", this rank serves "
                     + std::to_string(here.version.value));
  if (head.from.kv != here.kv)
    return bad_input(label(head.id) + ": has KV pages of " + to_string(head.from.kv)
                     + ", this rank keeps " + to_string(here.kv)
                     + "; start all ranks with the same kv_type");
  return head;
}

/// u32 first, u32 count, pages.
result<void> put_pages(byte_writer& out, device& computer, kv_pool& pool, const live_request& r,
                       std::pair<std::uint32_t, std::uint32_t> range) {
  const auto [first, count] = range;
  out.put(first);
  out.put(count);
  auto bytes = pool.layout().page_bytes();
  for (auto i = first; i < first + count; ++i) {
    if (auto ok = computer.page_to_host(pool, r.pages[i]); !ok) return ok;
    out.put_bytes(pool.data(r.pages[i]), bytes);
  }
  return {};
}

void put_request(byte_writer& out, const live_request& r) {
  const auto& s = r.spec;
  out.put(s.random_key);
  out.put(s.max_tokens);
  out.put(s.sampling.temperature);
  out.put(s.sampling.top_p);
  out.put(s.sampling.top_k);
  out.put(s.sampling.seed);
  out.put<std::uint8_t>(s.ignore_eos);
  out.put<std::uint8_t>(r.forced);
  out.put(r.prompt_tokens);
  out.put(r.computed);
  out.put_list(r.tokens);
  out.put_list(r.logprobs);
}

live_request get_request(byte_reader& in, request_id id) {
  live_request r;
  auto& s = r.spec;
  s.id = id;
  s.random_key = in.get<std::uint64_t>();
  s.max_tokens = in.get<std::uint32_t>();
  s.sampling.temperature = in.get<float>();
  s.sampling.top_p = in.get<float>();
  s.sampling.top_k = in.get<std::uint32_t>();
  s.sampling.seed = in.get<std::uint64_t>();
  s.ignore_eos = in.get<std::uint8_t>() != 0;
  r.forced = in.get<std::uint8_t>() != 0;
  r.prompt_tokens = in.get<std::uint32_t>();
  r.computed = in.get<std::uint32_t>();
  r.tokens = in.get_list<token_id>();
  r.logprobs = in.get_list<float>();
  return r;
}

} // namespace

result<std::uint32_t> engine::full_pages(request_id id) const {
  auto* r = state_->find(id);
  if (!r) return unknown(id);
  return r->computed / kv_page_tokens;
}

result<page_loan> engine::lend_pages(request_id id, std::uint32_t first, std::uint32_t count) {
  auto& s = *state_;
  auto* r = s.find(id);
  if (!r) return unknown(id);
  auto full = r->computed / kv_page_tokens;
  if (first > full || count > full - first)
    return bad_input(label(id) + ": pages " + std::to_string(first) + " to "
                     + std::to_string(std::uint64_t{first} + count) + " are asked for, "
                     + std::to_string(full) + " are full");
  page_loan loan;
  loan.pool = s.pool;
  loan.numbers.assign(r->pages.begin() + first, r->pages.begin() + first + count);
  const auto bytes = s.pool->layout().page_bytes();
  std::vector<std::uint64_t> digests;
  for (const auto page : loan.numbers)
    if (auto ok = s.device->page_to_host(*s.pool, page); !ok) return tl::unexpected(ok.error());
  for (const auto page : loan.numbers) {
    s.pool->retain(page);
    const auto* data = reinterpret_cast<const std::byte*>(s.pool->data(page));
    loan.pages.push_back({data, bytes});
    digests.push_back(wide_digest64(data, bytes));
  }
  byte_writer foot;
  blob_head{pages_magic, s.origin(), id}.write(foot);
  foot.put(first);
  foot.put_list(digests);
  loan.foot = foot.seal();
  return loan;
}

void engine::take_back(page_loan loan) {
  for (const auto page : loan.numbers)
    loan.pool->release(page);
}

result<byte_string> engine::export_remainder(request_id id, std::uint32_t pages_sent) {
  auto& s = *state_;
  auto* r = s.find(id);
  if (!r) return unknown(id);
  auto covered = s.pages_for(r->computed);
  if (r->spec.keep_logits) return bad_input(label(id) + ": keeps its logits and so cannot move");
  if (pages_sent > r->computed / kv_page_tokens)
    return bad_input(label(id) + ": " + std::to_string(pages_sent) + " pages are said to be sent, "
                     + std::to_string(r->computed / kv_page_tokens) + " are full");
  byte_writer out;
  const auto row_bytes = sizeof(token_id) + sizeof(float); // of a position, in the lists
  out.reserve((covered - pages_sent) * s.pool->layout().page_bytes() + r->tokens.size() * row_bytes
              + fields_bytes_max);
  blob_head{remainder_magic, s.origin(), id}.write(out);
  put_request(out, *r);
  if (auto ok = put_pages(out, *s.device, *s.pool, *r, {pages_sent, covered - pages_sent}); !ok)
    return tl::unexpected(ok.error());
  if (r->state != request_progress::held) {
    s.waiting.remove(r);
    s.running.remove(r);
    r->state = request_progress::held;
  }
  return out.seal();
}

result<void> engine::release_exported(request_id id) {
  auto* r = state_->find(id);
  if (!r || r->state != request_progress::held)
    return bad_input(label(id) + ": is not held for an export");
  state_->forget(*r);
  return {};
}

result<void> engine::resume_exported(request_id id) {
  auto& s = *state_;
  auto* r = s.find(id);
  if (!r || r->state != request_progress::held)
    return bad_input(label(id) + ": is not held for an export");
  bool admitted = !r->pages.empty() || r->promised > 0;
  r->state = admitted ? request_progress::running : request_progress::waiting;
  if (admitted)
    s.running.push_back(r);
  else
    s.waiting.push_front(r);
  return {};
}

result<void> engine::begin_import(request_id id, std::uint32_t pages) {
  auto& s = *state_;
  if (s.find(id) || s.imports.count(id) > 0) return bad_input(label(id) + ": is already here");
  if (s.running.size() + s.imports.size() >= s.options.max_num_seqs)
    return fail(error_code::busy, label(id) + ": all " + std::to_string(s.options.max_num_seqs)
                                      + " sequence slots are taken; try again later");
  if (!s.pool->promise(pages))
    return fail(error_code::busy, label(id) + ": needs " + std::to_string(pages) + " KV pages, "
                                      + std::to_string(s.pool->usage().available())
                                      + " are available; try again later");
  s.imports[id].promised = pages;
  return {};
}

result<std::uint32_t> engine::pages_to_move(request_id id) const {
  auto* r = state_->find(id);
  if (!r) return unknown(id);
  return state_->reservation_of(*r);
}

namespace {

/// Takes in the bytes of page `index` of an import.
result<void> take_page(device& computer, kv_pool& pool, request_id id, pending_import& import,
                       std::pair<std::uint32_t, const std::byte*> page) {
  const auto index = page.first;
  if (import.pages.count(index) == 0) {
    const auto promised = import.promised > 0;
    const auto taken = promised ? pool.take_promised() : pool.take_available();
    if (!taken)
      return fail(error_code::busy, label(id) + ": page " + std::to_string(index)
                                        + " is more than the import asked for, and none of the "
                                        + std::to_string(pool.usage().capacity)
                                        + " KV pages is free; try again later");
    import.promised -= promised ? 1 : 0;
    import.pages[index] = *taken;
  }
  const auto here = import.pages[index];
  std::memcpy(pool.data(here), page.second, pool.layout().page_bytes());
  return computer.page_from_host(pool, here);
}

tl::unexpected<error> wrong_size(request_id id, std::uint64_t bytes, std::uint64_t pages) {
  return bad_input(label(id) + ": page blob has " + std::to_string(bytes) + " bytes for "
                   + std::to_string(pages) + " pages");
}

/// Reads put_pages' part into the pages of an import.
result<void> take_pages(byte_reader& in, device& computer, kv_pool& pool, request_id id,
                        pending_import& import) {
  auto first = in.get<std::uint32_t>(), count = in.get<std::uint32_t>();
  auto bytes = pool.layout().page_bytes();
  if (!in.ok() || in.left() != count * static_cast<std::uint64_t>(bytes))
    return wrong_size(id, in.left(), count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::pair page{first + i, in.take(bytes)};
    if (auto ok = take_page(computer, pool, id, import, page); !ok) return ok;
  }
  return {};
}

} // namespace

namespace {

/// What a loan's foot says.
struct pages_label {
  std::uint32_t first = 0;
  std::vector<std::uint64_t> digests;

  result<void> check(request_id id, std::uint32_t i, std::uint64_t digest) const {
    if (digest == digests[i]) return {};
    return bad_input(label(id) + ": checksum of page " + std::to_string(first + i)
                     + " differs; send it again");
  }
};

result<pages_label> read_foot(bytes_view foot, request_id id, const blob_origin& here) {
  byte_reader in(foot);
  auto head = open_blob(in, pages_magic, here);
  if (!head) return tl::unexpected(head.error());
  if (head->id != id) return bad_input(label(id) + ": blob is of " + label(head->id));
  pages_label pages{in.get<std::uint32_t>(), in.get_list<std::uint64_t>()};
  if (!in.ok() || in.left() > 0) return bad_input(label(id) + ": page blob is damaged");
  return pages;
}

} // namespace

result<void> engine::import_pages(request_id id, bytes_view blob) {
  auto& s = *state_;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return bad_input(label(id) + ": no import was begun");
  const auto bytes = s.pool->layout().page_bytes();
  const auto count =
      blob.size / (bytes + sizeof(std::uint64_t)); // A foot is less than a page more.
  auto pages = read_foot({blob.data + count * bytes, blob.size - count * bytes}, id, s.origin());
  if (!pages) return tl::unexpected(pages.error());
  if (pages->digests.size() != count) return wrong_size(id, blob.size, pages->digests.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto* page = blob.data + i * bytes;
    if (auto good = pages->check(id, i, wide_digest64(page, bytes)); !good) return good;
    if (auto ok = take_page(*s.device, *s.pool, id, import->second, {pages->first + i, page}); !ok)
      return ok;
  }
  return {};
}

page_landing engine::open_landing(request_id id, std::uint32_t count) {
  auto& s = *state_;
  page_landing landing;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return landing;
  landing.pool = s.pool;
  landing.page_bytes = s.pool->layout().page_bytes();
  landing.digests.resize(count);
  for (; count > 0 && import->second.promised > 0; --count, --import->second.promised) {
    landing.numbers.push_back(s.pool->take_promised());
    landing.pages.push_back(reinterpret_cast<std::byte*>(s.pool->data(landing.numbers.back())));
  }
  return landing;
}

void engine::drop_landing(request_id id, page_landing landing) {
  auto& s = *state_;
  auto import = s.imports.find(id);
  for (const auto page : landing.numbers) {
    landing.pool->release(page);
    if (landing.pool == s.pool && import != s.imports.end() && s.pool->promise(1))
      ++import->second.promised;
  }
}

result<void> engine::import_landed(request_id id, page_landing landing, bytes_view foot) {
  auto& s = *state_;
  const auto place_all = [&]() -> result<void> {
    auto import = s.imports.find(id);
    if (import == s.imports.end() || landing.pool != s.pool)
      return bad_input(label(id) + ": no import was begun");
    auto pages = read_foot(foot, id, s.origin());
    if (!pages) return tl::unexpected(pages.error());
    const auto count = pages->digests.size();
    const auto bytes = s.pool->layout().page_bytes();
    if (count > landing.pages.size()) return wrong_size(id, landing.pages.size() * bytes, count);
    for (std::uint32_t i = 0; i < count; ++i)
      if (auto good = pages->check(id, i, landing.digests[i]); !good) return good;
    for (std::uint32_t i = 0; i < count; ++i)
      if (auto ok = s.device->page_from_host(*s.pool, landing.numbers[i]); !ok) return ok;
    std::vector<std::uint32_t> surplus(landing.numbers.begin() + static_cast<std::ptrdiff_t>(count),
                                       landing.numbers.end());
    for (std::uint32_t i = 0; i < count; ++i)
      if (!import->second.pages.emplace(pages->first + i, landing.numbers[i]).second)
        surplus.push_back(landing.numbers[i]); // The same is here already.
    landing.numbers = std::move(surplus);
    return {};
  };
  auto placed = place_all();
  drop_landing(id, std::move(landing));
  return placed;
}

result<void> engine::finish_import(bytes_view remainder) {
  auto& s = *state_;
  byte_reader in(remainder);
  auto head = open_blob(in, remainder_magic, s.origin());
  if (!head) return tl::unexpected(head.error());
  auto id = head->id;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return bad_input(label(id) + ": no import was begun");
  auto r = get_request(in, id);
  if (!in.ok() || r.prompt_tokens > r.tokens.size() || r.computed > r.tokens.size())
    return bad_input(label(id) + ": remainder is damaged");
  if (auto ok = take_pages(in, *s.device, *s.pool, id, import->second); !ok) return ok;
  std::uint32_t expected = 0, covered = s.pages_for(r.computed);
  for (const auto& [index, page] : import->second.pages) {
    if (index != expected || index >= covered) break;
    r.pages.push_back(page);
    ++expected;
  }
  if (r.pages.size() < covered)
    return bad_input(label(id) + ": KV page " + std::to_string(r.pages.size())
                     + " is missing; send it before the remainder");
  r.promised = import->second.promised;
  for (const auto& [index, page] : import->second.pages)
    if (index >= covered) {
      s.pool->release(page);
      if (s.pool->promise(1)) ++r.promised;
    }
  s.imports.erase(import);
  s.counters.received_tokens += r.computed;
  s.note_stop(r);
  r.state = request_progress::running;
  s.requests.push_back(std::move(r));
  auto here = std::prev(s.requests.end());
  s.by_id.emplace(id, here);
  s.running.push_back(&*here);
  return {};
}

void engine::cancel_import(request_id id) {
  auto& s = *state_;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return;
  s.pool->withdraw(import->second.promised);
  for (const auto& [index, page] : import->second.pages)
    s.pool->release(page);
  s.imports.erase(import);
}

result<byte_string> engine::export_request(request_id id) {
  return export_remainder(id, 0);
}

result<void> engine::import_request(bytes_view blob) {
  auto& s = *state_;
  byte_reader in(blob);
  auto head = open_blob(in, remainder_magic, s.origin());
  if (!head) return tl::unexpected(head.error());
  auto r = get_request(in, head->id);
  if (!in.ok()) return bad_input(label(head->id) + ": remainder is damaged");
  if (auto ok = begin_import(head->id, s.reservation_of(r)); !ok) return ok;
  auto ok = finish_import(blob);
  if (!ok) cancel_import(head->id);
  return ok;
}

} // namespace adafloor
