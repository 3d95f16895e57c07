#include "actors/ucx_collective.hpp"

#include "actors/single_copy.hpp"
#include "actors/ucx_collective_fabric.hpp"
#include "messages/checksum.hpp"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace adafloor {

namespace {
using clock = std::chrono::steady_clock;
}

/// One group. Small: everything that lasts belongs to the fabric.
class ucx_communicator final : public communicator {
public:
  ucx_communicator(ucx_collective::impl& f, epoch_id epoch, std::vector<rank_id> members)
    : fabric_(f), epoch_(epoch), members_(std::move(members)), held_(members_.size()) {
    self_ = static_cast<std::size_t>(std::find(members_.begin(), members_.end(), f.o.self)
                                     - members_.begin());
  }

  epoch_id epoch() const override { return epoch_; }
  const std::vector<rank_id>& members() const override { return members_; }
  std::size_t self_index() const override { return self_; }

  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    if (broken_) return tl::unexpected<error>(*broken_);
    auto done = run(id, outgoing, incoming);
    // After any of these its members are no longer in step.
    if (!done && done.error().code != error_code::bad_input) broken_ = done.error();
    return done;
  }

  result<void> enter(epoch_id epoch) override {
    if (!(epoch_ < epoch))
      return bad_input("group of epoch " + std::to_string(epoch_.value) + " used again for epoch "
                       + std::to_string(epoch.value) + "; epochs never fall");
    for (auto& h : held_)
      h.reset();
    broken_.reset(); // A new epoch begins in step.
    epoch_ = epoch;
    return {};
  }

  void abort() noexcept override {
    aborted_.store(true);
    fabric_.wake();
  }

private:
  bool is_aborted() const {
    return aborted_.load()
           || (fabric_.anything_aborted.load() && epoch_.value <= fabric_.aborted_up_to.load());
  }

  result<void> run(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                   std::vector<bytes_view>* incoming);
  result<void> check(const std::vector<bytes_view>& outgoing) const;
  result<void> begin(const exchange_id& id, const std::vector<bytes_view>& outgoing);
  result<void> collect(const exchange_id& id);
  result<void> wait(const exchange_id& id);
  void linger();
  std::string missing() const;
  std::string lost() const;
  std::string place(const exchange_id& id) const {
    return "epoch " + std::to_string(epoch_.value) + " " + describe(id);
  }

  ucx_collective::impl& fabric_;
  epoch_id epoch_;
  std::vector<rank_id> members_;
  std::size_t self_ = 0;
  std::vector<std::optional<arrived>> held_; // what `incoming` shows
  std::size_t missing_ = 0;
  std::optional<error> broken_;
  std::atomic<bool> aborted_{false};
};

result<void> ucx_communicator::check(const std::vector<bytes_view>& outgoing) const {
  if (outgoing.size() != members_.size())
    return bad_input("exchange of " + std::to_string(outgoing.size())
                     + " byte strings in a group of " + std::to_string(members_.size())
                     + "; give one per member");
  for (std::size_t i = 0; i < outgoing.size(); ++i)
    if (outgoing[i].size > fabric_.o.frame_bytes_max)
      return bad_input("exchange of " + std::to_string(outgoing[i].size) + " bytes for rank "
                       + std::to_string(members_[i].value) + "; at most "
                       + std::to_string(fabric_.o.frame_bytes_max)
                       + " are allowed, use smaller prefill chunks");
  if (epoch_ < fabric_.floor)
    return bad_input("exchange in epoch " + std::to_string(epoch_.value) + " after epoch "
                     + std::to_string(fabric_.floor.value)
                     + " began; use the communicator of the newest epoch");
  return {};
}

result<void> ucx_communicator::run(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                                   std::vector<bytes_view>* incoming) {
  if (is_aborted()) return fail(error_code::aborted, place(id) + " was aborted");
  if (auto good = check(outgoing); !good) return good;
  if (auto begun = begin(id, outgoing); !begun) return begun;
  if (auto waited = wait(id); !waited) return waited;
  ++fabric_.stats.exchanges;
  incoming->resize(members_.size());
  for (std::size_t i = 0; i < members_.size(); ++i)
    (*incoming)[i] = held_[i]->payload();
  return {};
}

result<void> ucx_communicator::begin(const exchange_id& id,
                                     const std::vector<bytes_view>& outgoing) {
  for (auto& h : held_)
    h.reset();
  if (fabric_.floor < epoch_) fabric_.turns = 0;
  fabric_.floor = epoch_;
  ++fabric_.turns;
  fabric_.forget_below(epoch_, fabric_.turns);
  fabric_.move_retired_on();
  ++fabric_.token;
  fabric_.sends_pending = 0; // what an earlier, failed exchange left is no longer waited for
  frame_head head;
  head.magic = collective_magic;
  head.sender = fabric_.o.self.value;
  head.from = fabric_.o.incarnation.value;
  head.epoch = epoch_.value;
  head.neighbourhood = address_space_neighbourhood();
  head.weights_version = fabric_.weights_version.value;
  head.turn = fabric_.turns;
  head.step = id.step;
  head.layer = id.layer;
  head.phase = id.phase;
  missing_ = members_.size() - 1;
  for (std::size_t n = 1; n < members_.size(); ++n) { // the neighbour first: spreads the load
    const std::size_t i = (self_ + n) % members_.size();
    head.to = fabric_.peers[members_[i].value].incarnation.value;
    head.length = outgoing[i].size;
    head.crc = fabric_.o.checksum ? crc32c(outgoing[i].data, outgoing[i].size) : 0;
    if (auto sent = fabric_.send(members_[i], head, outgoing[i]); !sent) return sent;
  }
  auto own = fabric_.pool.take(sizeof head + outgoing[self_].size);
  if (!own) return tl::unexpected<error>(own.error());
  if (outgoing[self_].size > 0)
    std::memcpy(own->data() + sizeof head, outgoing[self_].data, outgoing[self_].size);
  head.length = outgoing[self_].size;
  held_[self_] = arrived{head, std::move(*own)};
  return {};
}

// Takes the frames of this exchange from what has arrived.
result<void> ucx_communicator::collect(const exchange_id& id) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (held_[i]) continue;
    auto& frames = fabric_.peers[members_[i].value].frames;
    const auto it = std::find_if(frames.begin(), frames.end(), [this](const arrived& a) {
      return a.head.epoch == epoch_.value && a.head.turn == fabric_.turns;
    });
    if (it == frames.end()) continue;
    const std::string from = "rank " + std::to_string(members_[i].value);
    if (!(id_of(it->head) == id))
      return fail(error_code::internal, place(id) + ": " + from + " is at "
                                            + describe(id_of(it->head))
                                            + "; the members' exchanges differ");
    if (it->head.weights_version != fabric_.weights_version.value)
      return fail(error_code::internal,
                  place(id) + ": " + from + " has weights version "
                      + std::to_string(it->head.weights_version) + ", this rank "
                      + std::to_string(fabric_.weights_version.value)
                      + "; update the weights of all members before the next rollout");
    const bytes_view payload = it->payload();
    if (fabric_.o.checksum && crc32c(payload.data, payload.size) != it->head.crc)
      return fail(error_code::io, place(id) + ": wrong checksum in the frame of " + from);
    fabric_.parked_bytes -= it->buffer.size();
    held_[i] = std::move(*it);
    frames.erase(it);
    --missing_;
  }
  return {};
}

std::string ucx_communicator::missing() const {
  std::string ranks;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!held_[i]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(members_[i].value);
  return ranks.empty() ? "the delivery of this rank's own frames" : "rank " + ranks;
}

std::string ucx_communicator::lost() const {
  std::string ranks;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (i == self_) continue;
    const auto& p = fabric_.peers[members_[i].value];
    if (p.endpoint && p.endpoint->status() != UCS_OK)
      ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(members_[i].value) + " ("
               + ucs_status_string(p.endpoint->status()) + ")";
  }
  return ranks;
}

result<void> ucx_communicator::wait(const exchange_id& id) {
  const auto started = clock::now();
  const auto deadline = started + fabric_.o.deadline;
  auto spin_until = started + fabric_.o.spin;
  int refused_arms = 0;
  for (;;) {
    const unsigned events = fabric_.worker->progress();
    if (auto good = collect(id); !good) {
      linger();
      return good;
    }
    if (missing_ == 0 && fabric_.sends_pending == 0) return {};
    if (is_aborted())
      return fail(error_code::aborted, place(id) + " was aborted while it waited for " + missing());
    const auto now = clock::now();
    if (now > deadline)
      return fail(error_code::timed_out, place(id) + ": nothing from " + missing() + " within "
                                             + std::to_string(fabric_.o.deadline.count() / 1000)
                                             + " ms; is the process frozen or its network cut?");
    if (events > 0) continue;
    if (const std::string ranks = lost(); !ranks.empty())
      return fail(error_code::peer_lost, place(id) + ": connection lost to " + ranks);
    if (now < spin_until) {
      ::sched_yield();
      continue;
    }
    if (!fabric_.worker->arm()) {
      if (++refused_arms > 4) fabric_.doze();
      continue;
    }
    refused_arms = 0;
    fabric_.sleep(deadline);
    spin_until = clock::now() + fabric_.o.spin;
  }
}

// After a disagreement: lets the own frames out, so that the others see it too.
void ucx_communicator::linger() {
  for (int i = 0; i < 100 && fabric_.sends_pending > 0; ++i)
    if (fabric_.worker->progress() == 0) fabric_.doze();
}

ucx_collective::ucx_collective(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
ucx_collective::~ucx_collective() = default;

result<std::unique_ptr<ucx_collective>> ucx_collective::open(options o) {
  if (o.self.value >= o.world_size)
    return bad_input("rank " + std::to_string(o.self.value) + " in a world of "
                     + std::to_string(o.world_size) + "; ranks are 0-based");
  auto i = std::make_unique<impl>(std::move(o));
  i->abort_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (i->abort_fd < 0)
    return fail(error_code::io, "no file descriptor left; raise the limit (ulimit -n)");
  if (auto opened = i->open_worker(); !opened) return tl::unexpected<error>(opened.error());
  return std::unique_ptr<ucx_collective>(new ucx_collective(std::move(i)));
}

result<void> ucx_collective::renew() {
  impl_->retire_worker();
  return impl_->open_worker();
}

result<void> ucx_collective::follow(rank_id peer, const std::string& address) {
  if (peer.value >= impl_->o.world_size || address.empty()) return {};
  auto& p = impl_->peers[peer.value];
  if (peer == impl_->o.self || (p.endpoint && p.address == address)) return {};
  impl_->worker->close(std::move(p.endpoint));
  impl_->worker->reap();
  p.loans.clear();
  p.address = address;
  auto endpoint = impl_->worker->connect(address); // Frames that it has sent already stay.
  if (!endpoint) return tl::unexpected<error>(endpoint.error());
  p.endpoint = std::move(*endpoint);
  return {};
}

std::string ucx_collective::address() {
  return impl_->worker->address();
}

result<void> ucx_collective::connect(rank_id peer, const std::string& address,
                                     incarnation_id incarnation) {
  if (peer.value >= impl_->o.world_size)
    return bad_input("rank " + std::to_string(peer.value) + " in a world of "
                     + std::to_string(impl_->o.world_size));
  if (peer == impl_->o.self) return {};
  auto& p = impl_->peers[peer.value];
  impl_->worker->close(std::move(p.endpoint)); // to completion, before the next one
  impl_->worker->reap();
  for (const auto& f : p.frames)
    impl_->parked_bytes -= f.buffer.size();
  p.frames.clear();
  p.loans.clear(); // nobody reads them any more
  p.neighbourhood = 0;
  p.unreadable = false;
  p.address = address;
  p.incarnation = incarnation;
  auto endpoint = impl_->worker->connect(address);
  if (!endpoint) return tl::unexpected<error>(endpoint.error());
  p.endpoint = std::move(*endpoint);
  return {};
}

result<std::unique_ptr<communicator>> ucx_collective::make_group(epoch_id epoch,
                                                                 std::vector<rank_id> members) {
  const std::string group = "group of epoch " + std::to_string(epoch.value);
  if (epoch < impl_->floor)
    return bad_input(group + " after epoch " + std::to_string(impl_->floor.value)
                     + " began; epochs never fall");
  bool has_self = false;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0 && !(members[i - 1] < members[i]))
      return bad_input(group + ": members must be in ascending order, without repetition");
    if (members[i].value >= impl_->o.world_size)
      return bad_input(group + ": rank " + std::to_string(members[i].value) + " in a world of "
                       + std::to_string(impl_->o.world_size));
    has_self = has_self || members[i] == impl_->o.self;
    if (members[i] != impl_->o.self && !impl_->peers[members[i].value].endpoint)
      return bad_input(group + ": rank " + std::to_string(members[i].value) + " is not connected");
  }
  if (!has_self)
    return bad_input(group + " does not contain this rank, " + std::to_string(impl_->o.self.value));
  impl_->worker->reap();
  return std::unique_ptr<communicator>(new ucx_communicator(*impl_, epoch, std::move(members)));
}

/// UCX's own thread keeps waking up for a connection whose worker nobody moves on.
void ucx_collective::progress() {
  constexpr int rounds_max = 64;
  for (int i = 0; i < rounds_max && impl_->worker->progress() > 0; ++i) {
  }
  impl_->move_retired_on();
}

void ucx_collective::set_weights_version(weights_id version) {
  impl_->weights_version = version;
}

void ucx_collective::abort_up_to(epoch_id epoch) noexcept {
  std::uint64_t before = impl_->aborted_up_to.load();
  while (before < epoch.value && !impl_->aborted_up_to.compare_exchange_weak(before, epoch.value)) {
  }
  impl_->anything_aborted.store(true);
  impl_->wake();
}

collective_stats ucx_collective::stats() const {
  return impl_->stats;
}

result<std::vector<std::unique_ptr<collective_fabric>>> make_local_ucx_fabrics(int ranks) {
  std::vector<std::unique_ptr<ucx_collective>> made;
  const auto incarnation = [](std::size_t r) { return incarnation_id{r + 1}; };
  for (std::size_t r = 0; r < static_cast<std::size_t>(std::max(ranks, 1)); ++r) {
    ucx_collective::options o;
    o.self = rank_id{static_cast<std::uint32_t>(r)};
    o.incarnation = incarnation(r);
    o.world_size = static_cast<std::uint32_t>(std::max(ranks, 1));
    auto fabric = ucx_collective::open(std::move(o));
    if (!fabric) return tl::unexpected<error>(fabric.error());
    made.push_back(std::move(*fabric));
  }
  for (std::size_t r = 0; r < made.size(); ++r)
    for (std::size_t p = 0; p < made.size(); ++p) {
      const auto joined = made[r]->connect(rank_id{static_cast<std::uint32_t>(p)},
                                           made[p]->address(), incarnation(p));
      if (!joined) return tl::unexpected<error>(joined.error());
    }
  std::vector<std::unique_ptr<collective_fabric>> fabrics;
  for (auto& f : made)
    fabrics.push_back(std::move(f));
  return fabrics;
}

} // namespace adafloor
