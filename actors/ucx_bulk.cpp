#include "actors/ucx_bulk.hpp"

#include "actors/ucx_bulk_loop.hpp"
#include "gpu/digest.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <future>

namespace adafloor {

std::size_t shared_bytes::size() const {
  std::size_t sum = bytes.size;
  for (const auto& part : rest)
    sum += part.size;
  return sum;
}

void shared_bytes::copy_to(std::byte* into) const {
  if (bytes.size > 0) std::memcpy(into, bytes.data, bytes.size);
  into += bytes.size;
  for (const auto& part : rest) {
    std::memcpy(into, part.data, part.size);
    into += part.size;
  }
}

void bytes_place::fill(const std::byte* from) const {
  if (size > 0) std::memcpy(data, from, size);
  if (digest != nullptr) *digest = wide_digest64(data, size);
}

namespace {
constexpr std::size_t key_bytes_max = 4 << 10;
}

void ucx_bulk::impl::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd, &one, sizeof one);
}

result<void> ucx_bulk::impl::fetch(rank_id from, std::string key, microseconds timeout,
                                   fetch_handler done, std::vector<bytes_place> into) {
  if (key.size() > key_bytes_max)
    return bad_input("fetch: a key of " + std::to_string(key.size()) + " bytes; at most "
                     + std::to_string(key_bytes_max) + " are allowed");
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopping) return fail(error_code::aborted, "the transfers of this process are closed");
    if (from.value >= o.world_size || (!known[from.value] && from != o.self))
      return bad_input("fetch: rank " + std::to_string(from.value) + " is not connected");
    if (open_fetches >= o.queued_max + o.in_flight_max)
      return fail(error_code::busy,
                  std::to_string(open_fetches) + " fetches are open already; wait for some to end");
    ++open_fetches;
    const auto now = std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
    wanted.push_back({from, std::move(key), now + timeout, std::move(done), std::move(into)});
  }
  wake();
  return {};
}

void ucx_bulk::impl::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopped) return;
    stopping = stopped = true;
  }
  wake();
  if (thread.joinable()) thread.join();
  ::close(wake_fd);
}

ucx_bulk::ucx_bulk(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
ucx_bulk::~ucx_bulk() {
  close();
}

result<std::unique_ptr<ucx_bulk>> ucx_bulk::open(options o) {
  if (o.self.value >= o.world_size)
    return bad_input("rank " + std::to_string(o.self.value) + " in a world of "
                     + std::to_string(o.world_size) + "; ranks are 0-based");
  auto i = std::make_unique<impl>(std::move(o));
  auto worker = ucx_worker::open(i->o.ucx, "adafloor-bulk");
  if (!worker) return tl::unexpected<error>(worker.error());
  i->worker = std::move(*worker);
  i->address = i->worker->address();
  auto handled = i->worker->handle_messages(10, &impl::message, i.get());
  if (!handled) return tl::unexpected<error>(handled.error());
  i->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (i->wake_fd < 0)
    return fail(error_code::io, "no file descriptor left; raise the limit (ulimit -n)");
  i->thread = std::thread([loop = i.get()] { loop->run(); });
  return std::unique_ptr<ucx_bulk>(new ucx_bulk(std::move(i)));
}

const std::string& ucx_bulk::address() const {
  return impl_->address;
}

// Handlers are read by the owner thread only after a command or a fetch, which synchronises.
void ucx_bulk::on_request(request_handler h) {
  impl_->provide = std::move(h);
}
void ucx_bulk::on_peer_event(event_handler h) {
  impl_->handle_event = std::move(h);
}

result<void> ucx_bulk::connect(rank_id peer, std::string address, incarnation_id incarnation) {
  if (peer.value >= impl_->o.world_size)
    return bad_input("rank " + std::to_string(peer.value) + " in a world of "
                     + std::to_string(impl_->o.world_size));
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping)
      return fail(error_code::aborted, "the transfers of this process are closed");
    impl_->known[peer.value] = true;
    impl_->commands.push_back({peer, false, std::move(address), incarnation});
  }
  impl_->wake();
  return {};
}

void ucx_bulk::disconnect(rank_id peer) {
  if (peer.value >= impl_->o.world_size) return;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping) return;
    impl_->known[peer.value] = false;
    impl_->commands.push_back({peer, true, "", incarnation_id{}});
  }
  impl_->wake();
}

result<void> ucx_bulk::fetch(rank_id from, std::string key, microseconds timeout,
                             fetch_handler done, std::vector<bytes_place> into) {
  return impl_->fetch(from, std::move(key), timeout, std::move(done), std::move(into));
}

result<pooled_buffer> ucx_bulk::fetch_now(rank_id from, std::string key, microseconds timeout) {
  auto promise = std::make_shared<std::promise<result<pooled_buffer>>>();
  auto outcome = promise->get_future();
  auto accepted = fetch(from, std::move(key), timeout,
                        [promise](result<pooled_buffer> r) { promise->set_value(std::move(r)); });
  if (!accepted) return tl::unexpected<error>(accepted.error());
  return outcome.get();
}

bulk_stats ucx_bulk::stats() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  bulk_stats s = impl_->stats;
  s.buffers_made = impl_->pool.allocations();
  return s;
}

void ucx_bulk::close() {
  impl_->stop();
}

} // namespace adafloor
