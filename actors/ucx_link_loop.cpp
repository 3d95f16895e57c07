#include "actors/ucx_link_loop.hpp"

#include "actors/turns.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

namespace adafloor {

namespace {

constexpr unsigned message_id = 1;
constexpr std::size_t backlog_max = 64; // frames inside UCX, beyond which nothing is repeated
constexpr int reconnects_max = 30;      // with the wait below: about two minutes
constexpr microseconds reconnect_first{50'000}, reconnect_most{5'000'000};
constexpr microseconds offer_again_after{1'000}, fault_told_every{1'000'000};

time_point clock_now() {
  return std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
}

void add(link_stats& to, const channel_counters& c) {
  to.frames_sent += c.frames_sent;
  to.bytes_sent += c.bytes_sent;
  to.frames_received += c.frames_received;
  to.bytes_received += c.bytes_received;
  to.retransmitted += c.retransmitted;
  to.duplicates += c.duplicates;
  to.gaps += c.gaps;
  to.stale += c.stale;
  to.beyond_window += c.beyond_window;
}

} // namespace

struct ucx_link::impl::sending final : ucx_sending {
  impl* link;
  rank_id to;
  std::uint64_t life;
  std::string bytes;
  void done(ucs_status_t) override {
    auto& p = link->peers[to.value];
    if (p.life == life) --p.sends_pending;
  }
};

ucs_status_t ucx_link::impl::on_message(void* argument, const void*, std::size_t, void* data,
                                        std::size_t size, const ucp_am_recv_param_t* param) {
  auto& link = *static_cast<impl*>(argument);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    ++link.strangers_seen.undecodable; // frames come whole
    return UCS_OK;
  }
  link.receive({static_cast<const char*>(data), size});
  return UCS_OK;
}

void ucx_link::impl::receive(std::string_view bytes) {
  const auto decoded = decode_frame(bytes);
  if (const auto* fault = std::get_if<frame_fault>(&decoded)) return report_fault(bytes, *fault);
  const auto& f = std::get<frame>(decoded);
  if (f.header.sender.value >= o.world_size || !peers[f.header.sender.value].channel
      || f.payload.size() > o.frame_bytes_max) {
    ++strangers_seen.stale; // not introduced yet, or not any more; an honest peer repeats it
    return;
  }
  auto& p = peers[f.header.sender.value];
  const time_point now = clock_now();
  const time_point before = p.channel->last_heard();
  p.channel->receive(f, now);
  p.dirty = true;
  if ((p.lost || p.silent) && p.channel->last_heard() != before) {
    p.lost = p.silent = false;
    report(p, peer_event_kind::heard_again, "answers again");
  }
}

void ucx_link::impl::report(peer& p, peer_event_kind kind, std::string text) {
  if (handle_event)
    handle_event({p.rank, kind, "rank " + std::to_string(p.rank.value) + " " + std::move(text)});
}

void ucx_link::impl::report_fault(std::string_view bytes, frame_fault fault) {
  const auto sender = claimed_sender(bytes);
  const bool known = sender && sender->value < o.world_size && fault != frame_fault::bad_magic;
  auto& counts = known ? peers[sender->value].base : strangers_seen;
  if (fault == frame_fault::bad_checksum)
    ++counts.crc_errors;
  else if (fault == frame_fault::bad_version)
    ++counts.unknown_version;
  else
    ++counts.undecodable;
  if (!known || !peers[sender->value].channel) return;
  auto& p = peers[sender->value];
  p.dirty = true;
  const auto kind = fault == frame_fault::bad_version ? peer_event_kind::bad_version
                                                      : peer_event_kind::undecodable;
  const time_point now = clock_now();
  const auto told = p.told.find(kind);
  if (told != p.told.end() && now < told->second + fault_told_every) return;
  p.told[kind] = now;
  report(p, kind,
         "(as it says) sent a frame of " + std::to_string(bytes.size()) + " bytes with "
             + describe(fault) + "; it was dropped");
}

// Commands and posted frames. True: there was something.
bool ucx_link::impl::take_work(time_point now) {
  std::vector<command> orders;
  std::vector<std::pair<rank_id, std::deque<std::string>>> posts;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    orders.swap(commands);
    for (rank_id r : posted_to) {
      auto& box = boxes[r.value];
      box.used_frames += box.posted.size();
      box.used_bytes += box.posted_bytes;
      box.posted_bytes = 0;
      posts.emplace_back(r, std::exchange(box.posted, {}));
    }
    posted_to.clear();
  }
  for (const auto& c : orders)
    carry_out(c, now);
  for (auto& [rank, frames] : posts)
    take_posted(peers[rank.value], std::move(frames), now);
  return !orders.empty() || !posts.empty();
}

void ucx_link::impl::carry_out(const command& c, time_point now) {
  auto& p = peers[c.peer.value];
  p.rank = c.peer;
  p.dirty = true;
  worker->close(std::move(p.endpoint)); // to completion, before the next one
  ++p.life;
  p.sends_pending = 0;
  const bool another = c.forget || !p.channel || p.incarnation != c.incarnation;
  if (p.channel && another) add(p.base, p.channel->counters());
  if (another) p.channel.reset();
  p.lost = p.silent = p.refused = false;
  p.reconnect_at.reset();
  if (c.forget) {
    p.to_self.clear();
    return;
  }
  p.address = c.address;
  p.incarnation = c.incarnation;
  if (c.peer == o.self) return;
  if (!p.channel) {
    channel_config config;
    config.self = o.self;
    config.own = o.incarnation;
    config.peer = c.peer;
    config.theirs = c.incarnation;
    config.window_frames = o.window_frames;
    config.window_bytes = o.window_bytes;
    config.silent_after = o.silent_after;
    p.channel.emplace(config, now);
  }
  p.reconnects_left = reconnects_max;
  p.reconnect_wait = reconnect_first;
  reconnect(p, now);
}

void ucx_link::impl::take_posted(peer& p, std::deque<std::string> posted, time_point now) {
  p.dirty = true;
  for (auto& f : posted) {
    if (p.rank == o.self)
      p.to_self.push_back(std::move(f));
    else if (p.channel)
      p.channel->offer(std::move(f), now); // `post` kept within the window
  }
}

void ucx_link::impl::reconnect(peer& p, time_point now) {
  p.reconnect_at.reset();
  auto made = worker->connect(p.address);
  ++p.life;
  p.sends_pending = 0;
  if (made)
    p.endpoint = std::move(*made);
  else if (p.reconnects_left-- > 0) {
    p.reconnect_at = now + p.reconnect_wait;
    p.reconnect_wait = std::min(p.reconnect_wait * 2, reconnect_most);
  }
}

// Endpoint failures, silence, versions.
void ucx_link::impl::look_after(peer& p, time_point now) {
  if (p.endpoint && p.endpoint->status() != UCS_OK) {
    const std::string why = ucs_status_string(p.endpoint->status());
    worker->close(std::move(p.endpoint));
    if (!p.lost) {
      p.lost = true;
      report(p, peer_event_kind::endpoint_lost, "lost its connection: " + why);
    }
    p.dirty = true;
    if (p.reconnects_left-- > 0) {
      p.reconnect_at = now + p.reconnect_wait;
      p.reconnect_wait = std::min(p.reconnect_wait * 2, reconnect_most);
    }
  }
  if (p.reconnect_at && *p.reconnect_at <= now) {
    ++p.base.reconnects;
    reconnect(p, now);
  }
  if (!p.silent && p.channel->is_silent(now)) {
    p.silent = p.dirty = true;
    report(p, peer_event_kind::silent,
           "has acknowledged nothing for "
               + std::to_string(p.channel->config().silent_after.count() / 1000) + " ms");
  }
  if (!p.refused && p.channel->current_state() == reliable_channel::state::refused) {
    p.refused = p.dirty = true;
    ++p.base.unknown_version;
    report(p, peer_event_kind::bad_version,
           "speaks another version of the protocol; run the same build on all ranks");
  }
}

void ucx_link::impl::deliver(peer& p, time_point now) {
  if (p.offer_again_at && now < *p.offer_again_at) return;
  p.offer_again_at.reset();
  const auto refused = [&](const std::string& f) {
    if (handle_frame(p.rank, f)) return false;
    p.offer_again_at = now + offer_again_after;
    return true;
  };
  if (p.rank == o.self)
    for (; !p.to_self.empty(); p.to_self.pop_front()) {
      if (refused(p.to_self.front())) return;
      p.dirty = true;
      ++p.base.frames_sent;
      ++p.base.frames_received;
      p.base.bytes_sent += p.to_self.front().size();
      p.base.bytes_received += p.to_self.front().size();
    }
  if (!p.channel) return;
  while (const std::string* f = p.channel->front()) {
    if (refused(*f)) return;
    p.dirty = true;
    p.channel->pop(now);
  }
}

void ucx_link::impl::send(peer& p, const transmission& t) {
  const bool first = t.header.type == frame_type::data && !t.again;
  // Without an endpoint it is dropped: the channel repeats it.
  if (!p.endpoint || (!first && p.sends_pending > backlog_max)) return;
  auto s = std::make_unique<sending>();
  s->link = this;
  s->to = p.rank;
  s->life = p.life;
  s->bytes = encode_frame(t.header, t.payload ? std::string_view(*t.payload) : "");
  const ucx_message m{nullptr, 0, s->bytes.data(), s->bytes.size()};
  ++p.sends_pending;
  worker->send(*p.endpoint, message_id, m, UCP_AM_SEND_FLAG_EAGER, std::move(s));
}

void ucx_link::impl::pump(peer& p, time_point now) {
  if (const auto wake = p.channel->wake_at(); wake && *wake <= now) p.channel->tick(now);
  for (const auto& t : p.channel->take_transmissions(now))
    send(p, t);
}

// Tells senders how much of the windows is free again.
void ucx_link::impl::publish() {
  std::vector<rank_id> roomy;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    strangers = strangers_seen;
    for (auto& p : peers) {
      if (!p.dirty) continue;
      p.dirty = false;
      auto& box = boxes[p.rank.value];
      box.used_frames = p.channel ? p.channel->window_frames_used() : p.to_self.size();
      box.used_bytes = p.channel ? p.channel->window_bytes_used() : 0;
      box.live = !p.lost && !p.silent && !p.refused;
      box.stats = p.base;
      if (p.channel) add(box.stats, p.channel->counters());
      if (box.was_busy && (box.posted.size() + box.used_frames) * 2 <= o.window_frames
          && (box.posted_bytes + box.used_bytes) * 2 <= o.window_bytes) {
        box.was_busy = false;
        roomy.push_back(p.rank);
      }
    }
    if (flushing > 0) changed.notify_all();
  }
  for (rank_id r : roomy) // Before the first connect, which comes after it, the handler may change.
    if (handle_space) handle_space(r);
}

std::optional<time_point> ucx_link::impl::next_wake() const {
  std::optional<time_point> first;
  const auto consider = [&first](const std::optional<time_point>& t) {
    if (t && (!first || *t < *first)) first = t;
  };
  for (const auto& p : peers) {
    consider(p.offer_again_at);
    if (!p.channel) continue;
    consider(p.reconnect_at);
    consider(p.channel->wake_at());
  }
  return first;
}

void ucx_link::impl::sleep_until(std::optional<time_point> wake, int refused_arms, time_point now) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!commands.empty() || !posted_to.empty() || stopping) return;
    sleeping = true;
  }
  std::int64_t wait_ms = -1;
  if (wake) wait_ms = std::max<std::int64_t>((*wake - now).count() + 999, 0) / 1000;
  // UCX refuses to be armed while a peer's queue is full; it cannot tell when there is room again.
  const bool armed = refused_arms == 0;
  const std::int64_t doze_ms = std::min(1 + refused_arms / 64, 10);
  if (!armed) wait_ms = wait_ms < 0 ? doze_ms : std::min(wait_ms, doze_ms);
  pollfd fds[2] = {{wake_fd, POLLIN, 0}, {worker->event_fd(), POLLIN, 0}};
  ::poll(fds, armed ? 2 : 1, static_cast<int>(std::min<std::int64_t>(wait_ms, 60'000)));
  const std::lock_guard<std::mutex> lock(mutex);
  sleeping = false;
  if ((fds[0].revents & POLLIN) != 0) {
    std::uint64_t count;
    [[maybe_unused]] const auto got = ::read(wake_fd, &count, sizeof count);
  }
}

void ucx_link::impl::run() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr); // signals are the main thread's business
  ::pthread_setname_np(::pthread_self(), "ucx_link");
  give_way(messages_nice);
  time_point spin_until = clock_now();
  int refused_arms = 0;
  for (;;) {
    time_point now = clock_now();
    bool busy = take_work(now);
    for (int i = 0; i < 64 && worker->progress() > 0; ++i)
      busy = true;
    now = clock_now();
    for (auto& p : peers) {
      if (p.channel) look_after(p, now);
      deliver(p, now);
      if (p.channel) pump(p, now);
    }
    worker->reap();
    publish();
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (stopping) break;
    }
    if (busy) {
      spin_until = now + o.spin;
      refused_arms = 0;
      continue;
    }
    if (now < spin_until) {
      ::sched_yield();
      continue;
    }
    if (worker->arm())
      refused_arms = 0;
    else if (++refused_arms < 4)
      continue;
    sleep_until(next_wake(), refused_arms, clock_now());
  }
  for (auto& p : peers)
    worker->close(std::move(p.endpoint));
  worker.reset();
}

} // namespace adafloor
