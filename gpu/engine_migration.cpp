// Moving a request to another rank: immutable pages first, the remainder at the end.
#include "gpu/byte_io.hpp"
#include "gpu/engine_state.hpp"

#include <algorithm>

namespace adafloor {

namespace {

constexpr std::uint64_t pages_magic = 0x31534547415041ULL;     // "APAGES1"
constexpr std::uint64_t remainder_magic = 0x314E49414D4552ULL; // "REMAIN1"

std::string label(request_id id) {
  return "request " + std::to_string(id.value);
}

tl::unexpected<error> unknown(request_id id) {
  return bad_input(label(id) + ": is not on this rank");
}

/// What both kinds of blob begin with.
struct blob_head {
  std::uint64_t magic = 0, fingerprint = 0, version = 0;
  request_id id;

  void write(byte_writer& out) const {
    out.put(magic);
    out.put(fingerprint);
    out.put(version);
    out.put(id.value);
  }
  static blob_head read(byte_reader& in) {
    blob_head h;
    h.magic = in.get<std::uint64_t>();
    h.fingerprint = in.get<std::uint64_t>();
    h.version = in.get<std::uint64_t>();
    h.id = request_id{in.get<std::uint64_t>()};
    return h;
  }
};

result<blob_head> open_blob(byte_reader& in, std::uint64_t magic, std::uint64_t fingerprint,
                            weights_id version) {
  if (!in.unseal()) return bad_input("request blob: checksum differs; send it again");
  auto head = blob_head::read(in);
  if (!in.ok() || head.magic != magic || head.fingerprint != fingerprint)
    return bad_input("request blob: is of another kind or model");
  if (head.version != version.value)
    return bad_input(label(head.id) + ": runs with weights version " + std::to_string(head.version)
                     + ", this rank serves " + std::to_string(version.value));
  return head;
}

/// u32 first, u32 count, pages.
void put_pages(byte_writer& out, const kv_pool& pool, const live_request& r, std::uint32_t first,
               std::uint32_t count) {
  out.put(first);
  out.put(count);
  auto bytes = pool.layout().page_floats() * sizeof(float);
  for (auto i = first; i < first + count; ++i)
    out.put_bytes(pool.data(r.pages[i]), bytes);
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

result<byte_string> engine::export_pages(request_id id, std::uint32_t first, std::uint32_t count,
                                         byte_string memory) const {
  auto& s = *state_;
  auto* r = s.find(id);
  if (!r) return unknown(id);
  auto full = r->computed / kv_page_tokens;
  if (first > full || count > full - first)
    return bad_input(label(id) + ": pages " + std::to_string(first) + " to "
                     + std::to_string(std::uint64_t{first} + count) + " are asked for, "
                     + std::to_string(full) + " are full");
  byte_writer out(std::move(memory));
  out.reserve(count * s.facts.kv_page_bytes + 64);
  blob_head{pages_magic, s.fingerprint, s.version.value, id}.write(out);
  put_pages(out, *s.pool, *r, first, count);
  return out.seal();
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
  blob_head{remainder_magic, s.fingerprint, s.version.value, id}.write(out);
  put_request(out, *r);
  put_pages(out, *s.pool, *r, pages_sent, covered - pages_sent);
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

std::uint32_t engine::pages_for(std::uint32_t prompt_tokens, std::uint32_t max_tokens) const {
  return state_->pages_for(std::uint64_t{prompt_tokens} + max_tokens);
}

namespace {

/// Reads put_pages' part into the pages of an import.
result<void> take_pages(byte_reader& in, kv_pool& pool, request_id id, pending_import& import) {
  auto first = in.get<std::uint32_t>(), count = in.get<std::uint32_t>();
  auto bytes = pool.layout().page_floats() * sizeof(float);
  if (!in.ok() || in.left() != count * static_cast<std::uint64_t>(bytes))
    return bad_input(label(id) + ": page blob has " + std::to_string(in.left()) + " bytes for "
                     + std::to_string(count) + " pages");
  for (std::uint64_t i = first; i < std::uint64_t{first} + count; ++i) {
    auto index = static_cast<std::uint32_t>(i);
    if (import.pages.count(index) == 0) {
      if (import.promised == 0)
        return bad_input(label(id) + ": page " + std::to_string(i)
                         + " is more than the import asked for");
      --import.promised;
      import.pages[index] = pool.take_promised();
    }
    std::memcpy(pool.data(import.pages[index]), in.take(bytes), bytes);
  }
  return {};
}

} // namespace

result<void> engine::import_pages(request_id id, bytes_view blob) {
  auto& s = *state_;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return bad_input(label(id) + ": no import was begun");
  byte_reader in(blob);
  auto head = open_blob(in, pages_magic, s.fingerprint, s.version);
  if (!head) return tl::unexpected(head.error());
  if (head->id != id) return bad_input(label(id) + ": blob is of " + label(head->id));
  return take_pages(in, *s.pool, id, import->second);
}

result<void> engine::finish_import(bytes_view remainder) {
  auto& s = *state_;
  byte_reader in(remainder);
  auto head = open_blob(in, remainder_magic, s.fingerprint, s.version);
  if (!head) return tl::unexpected(head.error());
  auto id = head->id;
  auto import = s.imports.find(id);
  if (import == s.imports.end()) return bad_input(label(id) + ": no import was begun");
  auto r = get_request(in, id);
  if (!in.ok() || r.prompt_tokens > r.tokens.size() || r.computed > r.tokens.size())
    return bad_input(label(id) + ": remainder is damaged");
  if (auto ok = take_pages(in, *s.pool, id, import->second); !ok) return ok;
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
  auto head = open_blob(in, remainder_magic, s.fingerprint, s.version);
  if (!head) return tl::unexpected(head.error());
  auto r = get_request(in, head->id);
  if (!in.ok()) return bad_input(label(head->id) + ": remainder is damaged");
  if (auto ok = begin_import(head->id, pages_for(r.prompt_tokens, r.spec.max_tokens)); !ok)
    return ok;
  auto ok = finish_import(blob);
  if (!ok) cancel_import(head->id);
  return ok;
}

} // namespace adafloor
