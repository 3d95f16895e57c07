#include "actors/ucx_link.hpp"

#include "actors/ucx_link_loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

namespace adafloor {

namespace {

void wake(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

} // namespace

post_status ucx_link::impl::post(rank_id to, std::string frame) {
  bool was_asleep = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopping) return post_status::closed;
    if (to.value >= o.world_size || !boxes[to.value].known) return post_status::unknown_peer;
    if (frame.size() > o.frame_bytes_max) return post_status::too_large;
    auto& box = boxes[to.value];
    const std::size_t frames = box.posted.size() + box.used_frames;
    const std::size_t bytes = box.posted_bytes + box.used_bytes;
    if (frames > 0 && (frames >= o.window_frames || bytes + frame.size() > o.window_bytes)) {
      box.was_busy = true;
      ++box.busy;
      return post_status::busy;
    }
    if (box.posted.empty()) posted_to.push_back(to);
    box.posted_bytes += frame.size();
    box.posted.push_back(std::move(frame));
    was_asleep = std::exchange(sleeping, false);
  }
  if (was_asleep) wake(wake_fd);
  return post_status::accepted;
}

void ucx_link::impl::submit(command c) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    commands.push_back(std::move(c));
  }
  wake(wake_fd);
}

void ucx_link::impl::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopped) return;
    stopping = stopped = true;
    changed.notify_all();
  }
  wake(wake_fd);
  if (thread.joinable()) thread.join();
  ::close(wake_fd);
}

ucx_link::ucx_link(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
ucx_link::~ucx_link() {
  close();
}

result<std::unique_ptr<ucx_link>> ucx_link::open(options o) {
  if (o.self.value >= o.world_size)
    return bad_input("rank " + std::to_string(o.self.value) + " in a world of "
                     + std::to_string(o.world_size) + "; ranks are 0-based");
  if (o.window_frames == 0 || o.frame_bytes_max == 0 || o.frame_bytes_max > (64u << 20))
    return bad_input("control link: window of " + std::to_string(o.window_frames)
                     + " frames of at most " + std::to_string(o.frame_bytes_max)
                     + " bytes; allowed are windows from 1 and frames of 1 to 67108864 bytes");
  auto i = std::make_unique<impl>(std::move(o));
  auto worker = ucx_worker::open(i->o.ucx, "adafloor-link");
  if (!worker) return tl::unexpected<error>(worker.error());
  i->worker = std::move(*worker);
  i->address = i->worker->address();
  for (std::uint32_t r = 0; r < i->o.world_size; ++r)
    i->peers[r].rank = rank_id{r};
  auto handled = i->worker->handle_messages(1, &impl::on_message, i.get());
  if (!handled) return tl::unexpected<error>(handled.error());
  i->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (i->wake_fd < 0)
    return fail(error_code::io, "no file descriptor left; raise the limit (ulimit -n)");
  i->thread = std::thread([loop = i.get()] { loop->run(); });
  return std::unique_ptr<ucx_link>(new ucx_link(std::move(i)));
}

const std::string& ucx_link::address() const {
  return impl_->address;
}

void ucx_link::on_frame(frame_handler h) {
  impl_->handle_frame = std::move(h);
}
void ucx_link::on_peer_event(event_handler h) {
  impl_->handle_event = std::move(h);
}
void ucx_link::on_space(space_handler h) {
  impl_->handle_space = std::move(h);
}

result<void> ucx_link::connect(rank_id peer, std::string address, incarnation_id incarnation) {
  if (peer.value >= impl_->o.world_size)
    return bad_input("rank " + std::to_string(peer.value) + " in a world of "
                     + std::to_string(impl_->o.world_size));
  if (!impl_->handle_frame) return bad_input("control link: set on_frame before the first connect");
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping) return fail(error_code::aborted, "the control link is closed");
    auto& box = impl_->boxes[peer.value];
    if (box.known && box.incarnation != incarnation) { // what was posted was for the old one
      box.posted.clear();
      box.posted_bytes = 0;
    }
    box.known = box.live = true;
    box.incarnation = incarnation;
  }
  impl_->submit({peer, false, std::move(address), incarnation});
  return {};
}

void ucx_link::disconnect(rank_id peer) {
  if (peer.value >= impl_->o.world_size) return;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    auto& box = impl_->boxes[peer.value];
    box.known = box.live = false;
    box.posted.clear();
    box.posted_bytes = 0;
  }
  impl_->submit({peer, true, "", incarnation_id{}});
}

post_status ucx_link::post(rank_id to, std::string frame) {
  return impl_->post(to, std::move(frame));
}

bool ucx_link::flush(microseconds timeout) {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  const auto settled = [this] {
    if (impl_->stopping) return true;
    for (const auto& box : impl_->boxes)
      if (box.known && box.live && (!box.posted.empty() || box.used_frames > 0)) return false;
    return true;
  };
  ++impl_->flushing;
  const bool done = impl_->changed.wait_for(lock, timeout, settled);
  --impl_->flushing;
  return done && !impl_->stopping;
}

link_stats ucx_link::stats(rank_id peer) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (peer.value >= impl_->boxes.size()) return {};
  auto s = impl_->boxes[peer.value].stats;
  s.busy = impl_->boxes[peer.value].busy;
  return s;
}

link_stats ucx_link::stats() const {
  link_stats sum;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    sum = impl_->strangers;
  }
  for (std::uint32_t r = 0; r < impl_->o.world_size; ++r) {
    const link_stats s = stats(rank_id{r});
    sum.frames_sent += s.frames_sent;
    sum.frames_received += s.frames_received;
    sum.bytes_sent += s.bytes_sent;
    sum.bytes_received += s.bytes_received;
    sum.retransmitted += s.retransmitted;
    sum.duplicates += s.duplicates;
    sum.gaps += s.gaps;
    sum.crc_errors += s.crc_errors;
    sum.undecodable += s.undecodable;
    sum.unknown_version += s.unknown_version;
    sum.stale += s.stale;
    sum.beyond_window += s.beyond_window;
    sum.busy += s.busy;
    sum.reconnects += s.reconnects;
  }
  return sum;
}

void ucx_link::close() {
  impl_->stop();
}

} // namespace adafloor
