#include "actors/ucx_bulk_loop.hpp"

#include "actors/single_copy.hpp"
#include "messages/checksum.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace adafloor {

using namespace bulk;

namespace {

constexpr unsigned message_id = 10;
constexpr std::size_t small_bytes_max = 8 << 10;
constexpr std::size_t key_bytes_max = 4 << 10;
constexpr std::size_t early_max = 64;

} // namespace

struct ucx_bulk::impl::note final : ucx_sending {
  std::string bytes;
  void done(ucs_status_t) override {} // a lost one shows as a deadline or as a lost endpoint
};

struct ucx_bulk::impl::serving final : ucx_sending {
  impl* bulk;
  bulk_head head;
  std::shared_ptr<const void> owner; // of the bytes; held until UCX is done with them
  bytes_view bytes;
  void done(ucs_status_t status) override {
    --bulk->serving_now;
    if (status != UCS_OK) return;
    ++bulk->counts.served;
    bulk->counts.served_bytes += bytes.size;
  }
};

void ucx_bulk::impl::receiving::done(void* request, ucs_status_t status, std::size_t,
                                     void* argument) {
  std::unique_ptr<receiving> r(static_cast<receiving*>(argument));
  impl* bulk = r->bulk;
  bulk->on_received(std::move(r), status);
  if (request != nullptr) ucp_request_free(request);
}

ucs_status_t ucx_bulk::impl::message(void* argument, const void* header, std::size_t header_size,
                                     void* data, std::size_t size,
                                     const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<impl*>(argument);
  const std::string_view bytes(static_cast<const char*>(data), size);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  bulk_head h;
  if (rendezvous && header_size == sizeof h) {
    std::memcpy(&h, header, sizeof h);
    if (h.magic == magic) return self.on_large_answer(h, data, size);
  }
  if (rendezvous || header_size != 0 || size < sizeof h + 1) {
    ++self.counts.undecodable;
    return UCS_OK;
  }
  switch (bytes.front()) {
  case is_request:
    self.on_request_bytes(bytes.substr(1));
    break;
  case is_answer:
    self.on_small_answer(bytes.substr(1));
    break;
  case is_loan:
    self.on_loan(bytes.substr(1));
    break;
  case is_loan_over:
    self.on_loan_over(bytes.substr(1));
    break;
  default:
    ++self.counts.undecodable;
  }
  return UCS_OK;
}

bulk_head ucx_bulk::impl::head_for(rank_id to, std::uint64_t request) const {
  bulk_head h;
  h.magic = magic;
  h.sender = o.self.value;
  h.from = o.incarnation.value;
  h.to = peers[to.value].incarnation.value;
  h.request = request;
  return h;
}

bool ucx_bulk::impl::is_current(const bulk_head& h) {
  const bool current = h.sender < o.world_size && peers[h.sender].known
                       && peers[h.sender].incarnation.value == h.from
                       && h.to == o.incarnation.value;
  if (!current) ++counts.stale;
  return current;
}

// Requests and small answers travel in one piece behind one letter: UCX 1.13 is not to be trusted
// with a separate header on short messages.
void ucx_bulk::impl::send_note(rank_id to, char letter, const bulk_head& h, std::string_view text) {
  auto& endpoint = peers[to.value].endpoint;
  if (!endpoint) return;
  auto n = std::make_unique<note>();
  n->bytes.reserve(1 + sizeof h + text.size());
  n->bytes += letter;
  n->bytes.append(reinterpret_cast<const char*>(&h), sizeof h);
  n->bytes.append(text);
  const ucx_message m{nullptr, 0, n->bytes.data(), n->bytes.size()};
  worker->send(*endpoint, message_id, m, UCP_AM_SEND_FLAG_EAGER, std::move(n));
}

void ucx_bulk::impl::on_request_bytes(std::string_view bytes) {
  bulk_head h;
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.magic != magic || h.sender >= o.world_size || h.length != bytes.size() - sizeof h
      || h.length > key_bytes_max) {
    ++counts.undecodable;
    return;
  }
  if (!peers[h.sender].known) { // it knows us before we know it
    if (early.size() < early_max)
      early.emplace_back(bytes);
    else
      ++counts.stale;
    return;
  }
  if (is_current(h)) serve(h, std::string(bytes.substr(sizeof h)));
}

void ucx_bulk::impl::serve(const bulk_head& h, const std::string& key) {
  const rank_id to{h.sender};
  bulk_head reply = head_for(to, h.request);
  const auto refuse = [&](const error& e) {
    const std::string text = e.text.substr(0, 1024);
    reply.code = static_cast<std::uint8_t>(e.code);
    reply.length = text.size();
    send_note(to, is_answer, reply, text);
  };
  if (serving_now >= o.serving_max)
    return refuse({error_code::busy,
                   "it serves " + std::to_string(serving_now) + " fetches already; try again"});
  if (!provide) return refuse({error_code::refused, "it serves nothing"});
  auto bytes = provide(to, key);
  if (!bytes) return refuse(bytes.error());
  const std::size_t size = bytes->size();
  if (size > o.transfer_bytes_max)
    return refuse({error_code::refused, std::to_string(size) + " bytes are more than the allowed "
                                            + std::to_string(o.transfer_bytes_max)});
  reply.length = size;
  reply.checked = o.checksum && !bytes->sealed ? 1 : 0;
  if (reply.checked != 0) {
    reply.crc = crc32c(bytes->bytes.data, bytes->bytes.size);
    for (const auto& part : bytes->rest)
      reply.crc = crc32c(part.data, part.size, reply.crc);
  }
  if (size <= small_bytes_max) {
    std::string whole(size, '\0');
    bytes->copy_to(reinterpret_cast<std::byte*>(whole.data()));
    send_note(to, is_answer, reply, whole);
    ++counts.served;
    counts.served_bytes += size;
    return;
  }
  if (!peers[to.value].endpoint) return;
  if (h.neighbourhood != 0 && h.neighbourhood == address_space_neighbourhood()
      && bytes->rest.size() < parts_max)
    return lend(to, reply, h, std::move(*bytes));
  auto s = std::make_unique<serving>();
  s->bulk = this;
  s->head = reply;
  s->bytes = bytes->bytes;
  if (bytes->rest.empty()) {
    s->owner = std::move(bytes->owner);
  } else { // UCX takes one piece
    auto whole = pool.take(size);
    if (!whole) return refuse(whole.error());
    bytes->copy_to(whole->data());
    s->bytes = {whole->data(), size};
    s->owner = std::make_shared<pooled_buffer>(std::move(*whole));
  }
  const ucx_message m{&s->head, sizeof s->head, s->bytes.data, s->bytes.size};
  ++serving_now;
  worker->send(*peers[to.value].endpoint, message_id, m, UCP_AM_SEND_FLAG_RNDV, std::move(s));
}

void ucx_bulk::impl::on_small_answer(std::string_view bytes) {
  bulk_head h;
  std::memcpy(&h, bytes.data(), sizeof h);
  const std::string_view body = bytes.substr(sizeof h);
  if (h.magic != magic || h.length != body.size() || h.code > 8) {
    ++counts.undecodable;
    return;
  }
  const auto it = fetches.find(h.request);
  if (!is_current(h)) return;
  if (it == fetches.end() || it->second.from != rank_id{h.sender}) {
    ++counts.late;
    return;
  }
  const std::string name = what(it->second.from, it->second.key);
  if (h.code != 0)
    return finish(h.request,
                  fail(static_cast<error_code>(h.code), name + ": " + std::string(body)));
  auto buffer = pool.take(body.size());
  if (!buffer) return finish(h.request, std::move(buffer));
  if (!body.empty()) std::memcpy(buffer->data(), body.data(), body.size());
  auto r = std::make_unique<receiving>();
  r->bulk = this;
  r->head = h;
  r->buffer = std::move(*buffer);
  ++receives_pending;
  on_received(std::move(r), UCS_OK);
}

ucs_status_t ucx_bulk::impl::on_large_answer(const bulk_head& h, void* descriptor,
                                             std::size_t size) {
  if (!is_current(h)) return UCS_OK; // UCX drops it; the sender is released
  const auto it = fetches.find(h.request);
  if (it == fetches.end() || it->second.from != rank_id{h.sender}) {
    ++counts.late;
    return UCS_OK;
  }
  const std::string name = what(it->second.from, it->second.key);
  if (size != h.length || size > o.transfer_bytes_max) {
    finish(h.request, fail(error_code::io, name + ": " + std::to_string(size)
                                               + " bytes are not what was announced or allowed"));
    return UCS_OK;
  }
  auto buffer = pool.take(size);
  if (!buffer) {
    finish(h.request, std::move(buffer));
    return UCS_OK;
  }
  auto r = std::make_unique<receiving>();
  r->bulk = this;
  r->head = h;
  r->buffer = std::move(*buffer);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &receiving::done;
  params.user_data = r.get();
  std::byte* into = r->buffer.data();
  ++receives_pending;
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker->handle(), descriptor, into, size, &params);
  if (UCS_PTR_IS_PTR(request))
    r.release(); // done() has it
  else
    receiving::done(nullptr, UCS_PTR_STATUS(request), size, r.release());
  return UCS_INPROGRESS;
}

void ucx_bulk::impl::on_received(std::unique_ptr<receiving> r, ucs_status_t status) {
  --receives_pending;
  const auto it = fetches.find(r->head.request);
  if (it == fetches.end()) { // its deadline passed while the bytes came in
    ++counts.late;
    return;
  }
  const std::string name = what(it->second.from, it->second.key);
  if (status != UCS_OK)
    return finish(r->head.request,
                  fail(error_code::peer_lost, name + ": " + ucs_status_string(status)));
  const auto crc = [&] {
    if (r->buffer) return crc32c(r->buffer.data(), r->buffer.size());
    std::uint32_t sum = 0;
    for (const auto& place : it->second.into)
      sum = crc32c(place.data, place.size, sum);
    return sum;
  };
  if (r->head.checked != 0 && crc() != r->head.crc) {
    ++counts.checksum_errors;
    return finish(r->head.request,
                  fail(error_code::io, name + ": wrong checksum; the bytes were dropped"));
  }
  finish(r->head.request, std::move(r->buffer));
}

// Puts what came in one piece where it belongs.
result<pooled_buffer> ucx_bulk::impl::scatter(pooled_buffer whole, const fetching& f) {
  if (whole.size() != size_of(f.into))
    return fail(error_code::io, what(f.from, f.key) + ": " + std::to_string(whole.size())
                                    + " bytes are not what was announced");
  const std::byte* from = whole.data();
  for (const auto& place : f.into) {
    place.fill(from);
    from += place.size;
  }
  return pooled_buffer{};
}

void ucx_bulk::impl::finish(std::uint64_t request, result<pooled_buffer> outcome) {
  const auto it = fetches.find(request);
  if (it == fetches.end()) return;
  fetching f = std::move(it->second);
  fetches.erase(it);
  if (f.asked) --in_flight;
  stop_copy(request);
  if (outcome && *outcome && !f.into.empty()) outcome = scatter(std::move(*outcome), f);
  if (outcome) {
    ++counts.fetched;
    counts.fetched_bytes += outcome->size() + size_of(f.into);
  } else {
    ++counts.failed;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    --open_fetches;
    stats = counts;
  }
  f.done(std::move(outcome));
}

void ucx_bulk::impl::finish_all(rank_id from, const std::string& why) {
  std::vector<std::uint64_t> lost;
  for (const auto& [request, f] : fetches)
    if (f.from == from) lost.push_back(request);
  for (auto request : lost)
    finish(request, fail(error_code::peer_lost, what(from, fetches.at(request).key) + ": " + why));
}

bool ucx_bulk::impl::take_work() {
  std::vector<command> orders;
  std::vector<fetching> asked;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    orders.swap(commands);
    asked.swap(wanted);
    stats = counts;
  }
  for (const auto& c : orders)
    carry_out(c);
  for (auto& f : asked) {
    queue.push_back(next_request);
    fetches.emplace(next_request++, std::move(f));
  }
  return !orders.empty() || !asked.empty();
}

void ucx_bulk::impl::carry_out(const command& c) {
  auto& p = peers[c.peer.value];
  worker->close(std::move(p.endpoint)); // to completion, before the next one
  if (c.forget || p.incarnation != c.incarnation) {
    end_loans(c.peer);
    p.unreadable = false;
  }
  if (p.known && (c.forget || p.incarnation != c.incarnation))
    finish_all(c.peer, "the rank left or was started again");
  p.known = !c.forget;
  p.address = c.address;
  p.incarnation = c.incarnation;
  if (c.forget || c.peer == o.self) return;
  if (auto made = worker->connect(p.address)) p.endpoint = std::move(*made);
  for (const auto& bytes : std::exchange(early, {}))
    on_request_bytes(bytes);
}

void ucx_bulk::impl::start_fetches() {
  while (!queue.empty() && in_flight < o.in_flight_max) {
    const std::uint64_t request = queue.front();
    queue.pop_front();
    const auto it = fetches.find(request);
    if (it != fetches.end()) ask(request, it->second);
  }
}

void ucx_bulk::impl::ask(std::uint64_t request, fetching& f) {
  f.asked = true;
  ++in_flight;
  if (f.from == o.self) return fetch_from_self(request, f.key);
  auto& p = peers[f.from.value];
  if (p.known && !p.endpoint) { // lost before; perhaps it is back
    if (auto made = worker->connect(p.address)) p.endpoint = std::move(*made);
  }
  if (!p.endpoint)
    return finish(request, fail(error_code::peer_lost, what(f.from, f.key) + ": not connected"));
  send_request(request, f);
}

void ucx_bulk::impl::send_request(std::uint64_t request, const fetching& f) {
  bulk_head h = head_for(f.from, request);
  h.length = f.key.size();
  h.neighbourhood =
      o.single_copy && !peers[f.from.value].unreadable ? address_space_neighbourhood() : 0;
  h.timeout_us =
      static_cast<std::uint64_t>(std::max<std::int64_t>((f.deadline - clock_now()).count(), 0));
  send_note(f.from, is_request, h, f.key);
}

void ucx_bulk::impl::fetch_from_self(std::uint64_t request, const std::string& key) {
  if (!provide)
    return finish(request, fail(error_code::refused, what(o.self, key) + ": it serves nothing"));
  auto bytes = provide(o.self, key);
  if (!bytes)
    return finish(request, fail(bytes.error().code, what(o.self, key) + ": " + bytes.error().text));
  auto buffer = pool.take(bytes->size());
  if (buffer) bytes->copy_to(buffer->data());
  finish(request, std::move(buffer));
}

void ucx_bulk::impl::expire(time_point now) {
  std::vector<std::uint64_t> over;
  for (const auto& [request, f] : fetches)
    if (f.deadline <= now) over.push_back(request);
  for (auto it = loans.begin(); it != loans.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    it = loans.erase(it);
    --serving_now;
  }
  for (auto request : over)
    finish(request, fail(error_code::timed_out,
                         what(fetches.at(request).from, fetches.at(request).key)
                             + ": no answer before the deadline; is the process frozen?"));
}

void ucx_bulk::impl::look_after(rank_id r) {
  auto& p = peers[r.value];
  if (!p.endpoint || p.endpoint->status() == UCS_OK) return;
  const std::string why =
      std::string("connection lost: ") + ucs_status_string(p.endpoint->status());
  worker->close(std::move(p.endpoint));
  end_loans(r);
  finish_all(r, why);
  if (handle_event)
    handle_event({r, peer_event_kind::endpoint_lost,
                  "rank " + std::to_string(r.value) + " lost its bulk " + why});
}

void ucx_bulk::impl::sleep(int refused_arms) {
  std::optional<time_point> first;
  for (const auto& [request, f] : fetches)
    if (!first || f.deadline < *first) first = f.deadline;
  for (const auto& [key, l] : loans)
    if (!first || l.until < *first) first = l.until;
  std::int64_t wait_ms = 60'000;
  if (first)
    wait_ms = std::clamp<std::int64_t>(((*first - clock_now()).count() + 999) / 1000, 0, wait_ms);
  // UCX refuses to be armed while a peer's queue is full; it cannot tell when there is room again.
  if (refused_arms > 0) wait_ms = std::min<std::int64_t>(wait_ms, 1 + refused_arms / 64 % 10);
  pollfd fds[2] = {{wake_fd, POLLIN, 0}, {worker->event_fd(), POLLIN, 0}};
  ::poll(fds, refused_arms > 0 ? 1 : 2, static_cast<int>(wait_ms));
  std::uint64_t count;
  if ((fds[0].revents & POLLIN) != 0) [[maybe_unused]]
    const auto got = ::read(wake_fd, &count, sizeof count);
}

void ucx_bulk::impl::run() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr); // signals are the main thread's business
  ::pthread_setname_np(::pthread_self(), "ucx_bulk");
  int refused_arms = 0;
  for (;;) {
    bool busy = take_work();
    for (int i = 0; i < 64 && worker->progress() > 0; ++i)
      busy = true;
    busy = collect_copies() || busy;
    expire(clock_now());
    for (std::uint32_t r = 0; r < o.world_size; ++r)
      look_after(rank_id{r});
    const std::size_t before = queue.size();
    start_fetches();
    worker->reap();
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (stopping) break;
    }
    if (busy || queue.size() != before) {
      refused_arms = 0;
      continue;
    }
    if (worker->arm())
      refused_arms = 0;
    else if (++refused_arms < 4)
      continue;
    sleep(refused_arms);
  }
  wind_up();
}

void ucx_bulk::impl::wind_up() {
  for (auto& p : peers)
    worker->close(std::move(p.endpoint));
  take_work(); // what came in meanwhile
  std::vector<std::uint64_t> open;
  for (const auto& [request, f] : fetches)
    open.push_back(request);
  for (auto request : open)
    finish(request,
           fail(error_code::aborted, what(fetches.at(request).from, fetches.at(request).key)
                                         + ": the transfers of this process were closed"));
  collect_copies();
  for (int i = 0; receives_pending > 0 && i < 200; ++i) // they write into buffers
    if (worker->progress() == 0) ::poll(nullptr, 0, 1);
  worker.reset();
  end_copier();
}

} // namespace adafloor
