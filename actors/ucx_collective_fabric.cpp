#include "actors/ucx_collective_fabric.hpp"

#include "actors/single_copy.hpp"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace adafloor {

namespace {

constexpr unsigned message_id = 3;
constexpr std::size_t parked_frames_max = 16; // per peer
constexpr std::size_t lent_bytes_min = 1536;  // below, a message is faster
constexpr std::size_t loans_max = 8;          // per peer
constexpr std::uint64_t no_token = 0;         // of no exchange

using clock = std::chrono::steady_clock;

} // namespace

struct ucx_collective::impl::sending : ucx_sending {
  impl* owner;
  std::uint64_t token;
  pooled_buffer buffer;
  void done(ucs_status_t) override {
    if (owner->token == token) --owner->sends_pending;
  }
};

struct ucx_collective::impl::receiving {
  impl* owner;
  pooled_buffer buffer;
  static void done(void* request, ucs_status_t status, std::size_t, void* argument) {
    std::unique_ptr<receiving> r(static_cast<receiving*>(argument));
    --r->owner->receives_pending;
    if (status == UCS_OK && !r->owner->closing) r->owner->accept(std::move(r->buffer));
    if (request != nullptr) ucp_request_free(request);
  }
};

result<void> ucx_collective::impl::open_worker() {
  auto opened = ucx_worker::open(o.ucx, "adafloor-collective");
  if (!opened) return tl::unexpected<error>(opened.error());
  worker = std::move(*opened);
  return worker->handle_messages(message_id, &impl::on_message, this);
}

// Closing would wait for peers that are gone or about to do the same, and UCX aborts where a
// connection is being made meanwhile: what there is stays until the end, and is moved on.
void ucx_collective::impl::retire_worker() {
  ++token; // What was being sent is no longer waited for.
  sends_pending = 0;
  retired_worker old;
  old.worker = std::move(worker);
  for (auto& p : peers) {
    if (p.endpoint) old.endpoints.push_back(std::move(p.endpoint));
    p.frames.clear();
    p.loans.clear();
    p.neighbourhood = 0;
  }
  parked_bytes = 0;
  retired.push_back(std::move(old));
}

void ucx_collective::impl::move_retired_on() {
  constexpr int rounds_max = 16;
  for (auto& old : retired)
    for (int i = 0; i < rounds_max && old.worker->progress() > 0; ++i) {
    }
}

ucx_collective::impl::~impl() {
  closing = true;
  for (auto& old : retired)
    for (auto& endpoint : old.endpoints)
      old.worker->close(std::move(endpoint));
  if (worker)
    for (auto& p : peers)
      worker->close(std::move(p.endpoint));
  // A receive under way writes into a buffer: give UCX a moment to finish or fail it.
  for (int i = 0; worker && receives_pending > 0 && i < 200; ++i) {
    move_retired_on();
    if (worker->progress() == 0) ::poll(nullptr, 0, 1);
  }
  retired.clear();
  worker.reset();
  if (abort_fd >= 0) ::close(abort_fd);
}

ucs_status_t ucx_collective::impl::on_message(void* argument, const void*, std::size_t, void* data,
                                              std::size_t size, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<impl*>(argument);
  if (size < sizeof(frame_head) || size > sizeof(frame_head) + self.o.frame_bytes_max
      || self.closing) {
    ++self.stats.undecodable;
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return self.start_receive(data, size);
  frame_head h;
  std::memcpy(&h, data, sizeof h);
  if (h.magic == collective_magic && h.kind != frame_kind::whole) {
    if (size != sizeof h || h.sender >= self.o.world_size)
      ++self.stats.undecodable;
    else if (!self.is_current(h))
      ++self.stats.stale;
    else if (h.kind == frame_kind::loan)
      self.take_loan(h);
    else if (h.kind == frame_kind::loan_over)
      self.end_loan(h);
    else
      ++self.stats.undecodable;
    return UCS_OK;
  }
  auto buffer = self.pool.take(size);
  if (!buffer) {
    ++self.stats.overflow;
    return UCS_OK;
  }
  std::memcpy(buffer->data(), data, size);
  self.accept(std::move(*buffer));
  return UCS_OK;
}

ucs_status_t ucx_collective::impl::start_receive(void* descriptor, std::size_t size) {
  auto buffer = pool.take(size);
  if (!buffer || parked_bytes + size > o.parked_bytes_max) {
    ++stats.overflow;
    return UCS_OK; // dropped; the sender is not held up
  }
  auto r = std::make_unique<receiving>();
  r->owner = this;
  r->buffer = std::move(*buffer);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &receiving::done;
  params.user_data = r.get();
  ++receives_pending;
  std::byte* into = r->buffer.data();
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker->handle(), descriptor, into, size, &params);
  if (UCS_PTR_IS_PTR(request)) {
    r.release(); // done() has it
    return UCS_INPROGRESS;
  }
  receiving::done(nullptr, UCS_PTR_STATUS(request), size, r.release());
  return UCS_INPROGRESS;
}

// A whole frame is here: keep it for its exchange, or drop and count it.
void ucx_collective::impl::accept(pooled_buffer buffer) {
  arrived a;
  std::memcpy(&a.head, buffer.data(), sizeof a.head);
  const frame_head& h = a.head;
  if (h.magic != collective_magic || h.length != buffer.size() - sizeof h
      || h.sender >= o.world_size) {
    ++stats.undecodable;
    return;
  }
  if (!is_current(h) || epoch_id{h.epoch} < floor) {
    ++stats.stale;
    return;
  }
  peers[h.sender].neighbourhood = h.neighbourhood;
  a.buffer = std::move(buffer);
  ++stats.frames_received;
  stats.bytes_received += h.length;
  park(std::move(a));
}

void ucx_collective::impl::park(arrived a) {
  auto& frames = peers[a.head.sender].frames;
  if (epoch_id{a.head.epoch} > floor || a.head.turn > turns)
    ++stats.parked;
  else if (a.head.turn < turns) {
    ++stats.stale; // a turn that is over: sent twice
    return;
  }
  for (const auto& f : frames)
    if (f.head.epoch == a.head.epoch && f.head.turn == a.head.turn) {
      ++stats.stale;
      return;
    }
  if (frames.size() >= parked_frames_max || parked_bytes + a.buffer.size() > o.parked_bytes_max) {
    ++stats.overflow;
    return;
  }
  parked_bytes += a.buffer.size();
  frames.push_back(std::move(a));
}

void ucx_collective::impl::forget_below(epoch_id epoch, std::uint64_t turn) {
  for (auto& p : peers)
    for (auto it = p.frames.begin(); it != p.frames.end();) {
      const epoch_id e{it->head.epoch};
      if (e < epoch || (e == epoch && it->head.turn < turn)) {
        ++stats.stale;
        parked_bytes -= it->buffer.size();
        it = p.frames.erase(it);
      } else {
        ++it;
      }
    }
}

result<void> ucx_collective::impl::send(rank_id to, const frame_head& head, bytes_view payload) {
  auto& endpoint = peers[to.value].endpoint;
  if (!endpoint)
    return fail(error_code::peer_lost, "rank " + std::to_string(to.value) + " is not connected");
  const std::size_t size = sizeof head + payload.size;
  auto buffer = pool.take(size);
  if (!buffer) return tl::unexpected<error>(buffer.error());
  std::memcpy(buffer->data(), &head, sizeof head);
  if (payload.size > 0) std::memcpy(buffer->data() + sizeof head, payload.data, payload.size);
  ++sends_pending;
  ++stats.frames_sent;
  stats.bytes_sent += payload.size;
  if (!lend(to, *buffer)) transmit(to, token, std::move(*buffer));
  return {};
}

void ucx_collective::impl::transmit(rank_id to, std::uint64_t for_token, pooled_buffer buffer) {
  auto s = std::make_unique<sending>();
  s->owner = this;
  s->token = for_token;
  const ucx_message m{nullptr, 0, buffer.data(), buffer.size()};
  s->buffer = std::move(buffer);
  worker->send(*peers[to.value].endpoint, message_id, m, 0, std::move(s));
}

// Keeps a large frame for a neighbour to read, and tells it where. False: it has to be sent.
bool ucx_collective::impl::lend(rank_id to, pooled_buffer& whole) {
  auto& p = peers[to.value];
  if (!o.single_copy || whole.size() < lent_bytes_min || p.unreadable || p.neighbourhood == 0
      || p.neighbourhood != address_space_neighbourhood() || p.loans.size() >= loans_max)
    return false;
  frame_head offer;
  std::memcpy(&offer, whole.data(), sizeof offer);
  offer.kind = frame_kind::loan;
  offer.pid = static_cast<std::uint32_t>(::getpid());
  offer.address = reinterpret_cast<std::uint64_t>(whole.data());
  auto note = pool.take(sizeof offer);
  if (!note) return false;
  std::memcpy(note->data(), &offer, sizeof offer);
  p.loans[{offer.epoch, offer.turn}] = {token, std::move(whole)};
  transmit(to, no_token, std::move(*note));
  return true;
}

// A neighbour lends a frame: read it, and say that it may have its memory back.
void ucx_collective::impl::take_loan(const frame_head& offer) {
  frame_head note = offer;
  note.kind = frame_kind::loan_over;
  note.sender = o.self.value;
  note.from = o.incarnation.value;
  note.to = offer.from;
  note.refused = 0;
  pooled_buffer whole;
  if (epoch_id{offer.epoch} < floor) {
    ++stats.stale;
  } else {
    auto buffer = offer.length <= o.frame_bytes_max ? pool.take(sizeof offer + offer.length)
                                                    : fail(error_code::io, "too large");
    frame_head there;
    note.refused = 1;
    if (buffer && read_neighbour(offer.pid, offer.address, buffer->data(), buffer->size())) {
      std::memcpy(&there, buffer->data(), sizeof there);
      // Another process may have got the number of one that died.
      if (there.magic == collective_magic && there.from == offer.from && there.to == offer.to
          && there.epoch == offer.epoch && there.turn == offer.turn
          && there.length == offer.length) {
        note.refused = 0;
        whole = std::move(*buffer);
      }
    }
  }
  auto& p = peers[offer.sender];
  if (note.refused != 0) p.unreadable = true;
  auto bytes = pool.take(sizeof note);
  if (bytes && p.endpoint) {
    std::memcpy(bytes->data(), &note, sizeof note);
    transmit(rank_id{offer.sender}, no_token, std::move(*bytes));
  }
  if (whole) {
    ++stats.single_copies;
    accept(std::move(whole));
  }
}

void ucx_collective::impl::end_loan(const frame_head& note) {
  auto& p = peers[note.sender];
  const auto it = p.loans.find({note.epoch, note.turn});
  if (it == p.loans.end()) return;
  loan l = std::move(it->second);
  p.loans.erase(it);
  if (note.refused != 0 && p.endpoint) { // it could not read: UCX shall carry the frame
    p.unreadable = true;
    transmit(rank_id{note.sender}, l.token, std::move(l.buffer));
  } else if (l.token == token) {
    --sends_pending;
  }
}

bool ucx_collective::impl::is_current(const frame_head& h) const {
  return h.from == peers[h.sender].incarnation.value && h.to == o.incarnation.value;
}

void ucx_collective::impl::sleep(clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now());
  pollfd fds[2] = {{worker->event_fd(), POLLIN, 0}, {abort_fd, POLLIN, 0}};
  ++stats.sleeps;
  ::poll(fds, 2, static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 60'000)));
  if ((fds[1].revents & POLLIN) != 0) {
    std::uint64_t count;
    [[maybe_unused]] const auto got = ::read(abort_fd, &count, sizeof count);
  }
}

void ucx_collective::impl::doze() {
  ::poll(nullptr, 0, 1);
}

} // namespace adafloor
