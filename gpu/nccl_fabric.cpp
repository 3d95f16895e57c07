// Groups over NCCL: the plug-in libadafloor_nccl.so. A world is joined once and kept; a group of
// fewer members is made by shrinking it, without the ranks that are left out, which must stay alive
// until it is done. Exchanges are of host memory and go through pinned buffers: first what is to
// come, then one grouped send and receive. Whatever hangs is aborted by a deadline.
#include "gpu/plugin_abi.hpp"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

namespace adafloor {

namespace {

using clock = std::chrono::steady_clock;

result<void> checked(const char* what, cudaError_t code) {
  if (code == cudaSuccess) return {};
  return fail(error_code::internal,
              std::string("NCCL group: ") + what + ": " + cudaGetErrorString(code));
}
result<void> checked(const char* what, ncclResult_t code) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  return fail(error_code::internal, std::string("NCCL: ") + what + ": " + ncclGetErrorString(code));
}

/// What NCCL reports while it works with others is a peer's end before anything else: whoever
/// decides that a rank is lost is asked, and names what remains unexplained.
error_code code_of(ncclResult_t state) {
  return state == ncclRemoteError || state == ncclSystemError || state == ncclInternalError
             ? error_code::peer_lost
             : error_code::internal;
}

/// Between two looks at something that takes longer than an exchange between healthy GPUs.
void pause_after(clock::time_point began) {
  constexpr auto spin = std::chrono::microseconds(200);
  if (clock::now() - began < spin)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// A communicator of NCCL that never blocks; waits have a deadline and end with an abort.
class nccl_link {
public:
  ~nccl_link() { give_up(); } // nothing runs on it: abort only frees
  nccl_link() = default;
  nccl_link(const nccl_link&) = delete;
  nccl_link& operator=(const nccl_link&) = delete;

  ncclComm_t get() const { return comm_; }
  ncclComm_t* slot() { return &comm_; }
  static ncclConfig_t config() {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
  }
  void give_up() noexcept {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  /// What a wait is about.
  struct waited {
    std::string what;
    std::string whom; ///< whose absence would explain that it takes too long
    std::chrono::milliseconds bound;
    const std::atomic<bool>* stop; ///< may be null
  };
  static result<bool> at_once() { return true; }

  /// Until `done` says so and NCCL is at rest. What fails, takes too long or is stopped is aborted.
  result<void> wait(const std::function<result<bool>()>& done, const waited& w) {
    auto ended = watch(done, w);
    if (!ended) give_up();
    return ended;
  }

private:
  result<void> watch(const std::function<result<bool>()>& done, const waited& w) {
    const auto began = clock::now();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      if (const auto asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess)
        state = asked;
      if (state == ncclSuccess) {
        const auto over = done();
        if (!over) return tl::unexpected(over.error());
        if (*over) return {};
      } else if (state != ncclInProgress) {
        return fail(code_of(state),
                    "NCCL: " + w.what + ", with " + w.whom + ": " + ncclGetErrorString(state));
      }
      if (w.stop != nullptr && *w.stop)
        return fail(error_code::aborted, "NCCL: aborted in " + w.what);
      if (clock::now() - began > w.bound)
        return fail(error_code::timed_out, "NCCL: " + w.what + ": nothing from at least one of "
                                               + w.whom + " within "
                                               + std::to_string(w.bound.count())
                                               + " ms; is the process frozen or its network cut?");
      pause_after(began);
    }
  }

  ncclComm_t comm_ = nullptr;
};

/// The same bytes in pinned host memory and on the device, where NCCL knows them.
class staging {
public:
  ~staging() { release(nullptr); }
  staging() = default;
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  std::byte* host() const { return static_cast<std::byte*>(host_); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }

  /// Registered with `link`, so that NCCL may move it without a copy of its own.
  result<void> need(std::size_t bytes, nccl_link& link) {
    if (bytes > size_) {
      release(link.get());
      bytes = std::max<std::size_t>(bytes + bytes / 2, 1U << 16);
      if (auto ok = checked("cudaMallocHost", cudaMallocHost(&host_, bytes)); !ok) return ok;
      if (auto ok = checked("ncclMemAlloc", ncclMemAlloc(&device_, bytes)); !ok) return ok;
      size_ = bytes;
    }
    if (registered_with_ == link.get()) return {};
    if (auto ok = checked("ncclCommRegister",
                          ncclCommRegister(link.get(), device_, size_, &registration_));
        !ok)
      return ok;
    registered_with_ = link.get();
    return {};
  }
  /// The link that it was registered with is no more.
  void forget_link() { registered_with_ = nullptr; }

private:
  void release(ncclComm_t alive) {
    if (alive != nullptr && registered_with_ == alive) ncclCommDeregister(alive, registration_);
    registered_with_ = nullptr;
    if (host_ != nullptr) cudaFreeHost(host_);
    if (device_ != nullptr) ncclMemFree(device_);
    host_ = device_ = nullptr;
    size_ = 0;
  }

  void *host_ = nullptr, *device_ = nullptr, *registration_ = nullptr;
  ncclComm_t registered_with_ = nullptr;
  std::size_t size_ = 0;
};

/// What all groups of a rank share. One exchange runs at a time.
struct nccl_rank {
  nccl_world world;
  weights_id weights;
  cudaStream_t stream = nullptr;
  staging out, in; ///< of exchanges of the whole world
  nccl_link full;

  ~nccl_rank() {
    full.give_up(); // Before memory that it may use.
    out.forget_link();
    in.forget_link();
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

std::string text_of(const std::vector<rank_id>& ranks, rank_id except) {
  std::string text;
  for (const auto r : ranks)
    if (r != except) text += (text.empty() ? "rank " : ", rank ") + std::to_string(r.value);
  return text.empty() ? "this rank" : text;
}

/// Says what comes from a member in an exchange.
struct announcement {
  std::uint64_t bytes = 0, epoch = 0, weights = 0, step = 0;
  std::uint32_t layer = 0, phase = 0;

  bool same_exchange(const announcement& o) const {
    return epoch == o.epoch && step == o.step && layer == o.layer && phase == o.phase;
  }
  std::string text() const {
    static const char* const phases[] = {"dispatch", "combine", "header"};
    return "epoch " + std::to_string(epoch) + " step " + std::to_string(step) + " layer "
           + std::to_string(layer) + " " + phases[phase % 3];
  }
};

class nccl_communicator final : public communicator {
public:
  nccl_communicator(std::shared_ptr<nccl_rank> rank, epoch_id epoch, std::vector<rank_id> members,
                    std::size_t self)
    : rank_(std::move(rank)), epoch_(epoch), members_(std::move(members)), self_(self),
      whole_(members_.size() == rank_->world.members.size()) {}
  ~nccl_communicator() override {
    shrunk_.give_up(); // Before memory that it may use.
    own_out_.forget_link();
    own_in_.forget_link();
  }

  epoch_id epoch() const override { return epoch_; }
  const std::vector<rank_id>& members() const override { return members_; }
  std::size_t self_index() const override { return self_; }

  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    if (outgoing.size() != members_.size())
      return bad_input("NCCL: " + std::to_string(outgoing.size()) + " outgoing frames for "
                       + std::to_string(members_.size()) + " members");
    if (broken_) return tl::unexpected(*broken_);
    auto done = run(id, outgoing, incoming);
    if (!done) broken_ = done.error(); // Its members are no longer in step.
    return done;
  }

  result<void> enter(epoch_id epoch) override {
    if (!(epoch_ < epoch))
      return bad_input("NCCL: epoch " + std::to_string(epoch.value) + " after epoch "
                       + std::to_string(epoch_.value) + "; epochs grow");
    epoch_ = epoch;
    return {};
  }
  void abort() noexcept override { aborted_ = true; }

private:
  nccl_link& link() { return whole_ ? rank_->full : shrunk_; }
  staging& out() { return whole_ ? rank_->out : own_out_; }
  staging& in() { return whole_ ? rank_->in : own_in_; }

  result<void> run(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                   std::vector<bytes_view>* incoming) {
    if (aborted_) return fail(error_code::aborted, "NCCL: group was aborted");
    if (auto ok = checked("cudaSetDevice", cudaSetDevice(rank_->world.ordinal)); !ok) return ok;
    if (auto ok = make_link(); !ok) return ok;
    const auto count = members_.size();
    const announcement now{0,       epoch_.value, rank_->weights.value,
                           id.step, id.layer,     static_cast<std::uint32_t>(id.phase)};
    std::vector<announcement> mine(count, now), theirs(count);
    for (std::size_t m = 0; m < count; ++m)
      mine[m].bytes = outgoing[m].size;
    if (auto ok = announce(mine, &theirs); !ok) return ok;
    for (std::size_t m = 0; m < count; ++m) {
      const auto from = "NCCL: " + now.text() + ": rank " + std::to_string(members_[m].value);
      if (!theirs[m].same_exchange(now))
        return fail(error_code::internal,
                    from + " is at " + theirs[m].text() + "; the members' exchanges differ");
      if (theirs[m].weights != now.weights)
        return fail(error_code::internal,
                    from + " has weights version " + std::to_string(theirs[m].weights)
                        + ", this rank " + std::to_string(now.weights)
                        + "; update the weights of all members before the next rollout");
    }
    return carry(now.text(), outgoing, theirs, incoming);
  }

  /// With the first exchange, in which all members take part.
  result<void> make_link() {
    if (rank_->full.get() == nullptr)
      return fail(error_code::aborted, "NCCL: the world that this group belongs to was aborted");
    if (whole_ || shrunk_.get() != nullptr) return {};
    const auto& world = rank_->world.members;
    std::vector<int> excluded;
    for (std::size_t i = 0; i < world.size(); ++i)
      if (!std::binary_search(members_.begin(), members_.end(), world[i]))
        excluded.push_back(static_cast<int>(i));
    auto config = nccl_link::config();
    if (auto ok =
            checked("ncclCommShrink", ncclCommShrink(rank_->full.get(), excluded.data(),
                                                     static_cast<int>(excluded.size()),
                                                     shrunk_.slot(), &config, NCCL_SHRINK_DEFAULT));
        !ok)
      return ok;
    const auto w =
        waited("making the group of epoch " + std::to_string(epoch_.value), rank_->world.setup);
    // The parent is in progress until the child is ready; an abort of it ends both.
    if (auto made = rank_->full.wait(nccl_link::at_once, w); !made) return made;
    return shrunk_.wait(nccl_link::at_once, w);
  }

  nccl_link::waited waited(std::string what, std::chrono::milliseconds bound) const {
    return {std::move(what), text_of(members_, members_[self_]), bound, &aborted_};
  }

  /// Pieces of the staging buffers to and from each member, in one group call.
  result<void> send_receive(const std::string& what, const std::vector<std::size_t>& to_each,
                            const std::vector<std::size_t>& from_each) {
    const auto stream = rank_->stream;
    std::size_t out_bytes = 0, in_bytes = 0;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      out_bytes += to_each[m];
      in_bytes += from_each[m];
    }
    if (auto ok = checked("copy", cudaMemcpyAsync(out().device(), out().host(), out_bytes,
                                                  cudaMemcpyHostToDevice, stream));
        !ok)
      return ok;
    if (auto ok = checked("ncclGroupStart", ncclGroupStart()); !ok) return ok;
    const auto* from = out().device();
    auto* to = in().device();
    result<void> done;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const auto peer = static_cast<int>(m);
      if (done && to_each[m] > 0)
        done =
            checked("ncclSend", ncclSend(from, to_each[m], ncclUint8, peer, link().get(), stream));
      if (done && from_each[m] > 0)
        done =
            checked("ncclRecv", ncclRecv(to, from_each[m], ncclUint8, peer, link().get(), stream));
      from += to_each[m];
      to += from_each[m];
    }
    const auto ended = checked("ncclGroupEnd", ncclGroupEnd());
    if (!done || !ended) {
      link().give_up(); // What of it runs is not known.
      return !done ? done : ended;
    }
    const auto w = waited(what, rank_->world.exchange);
    if (auto ok = link().wait(nccl_link::at_once, w); !ok) return ok;
    if (auto ok = checked("copy", cudaMemcpyAsync(in().host(), in().device(), in_bytes,
                                                  cudaMemcpyDeviceToHost, stream));
        !ok)
      return ok;
    const auto over = [stream]() -> result<bool> {
      const auto state = cudaStreamQuery(stream);
      if (state == cudaErrorNotReady) return false;
      if (auto ok = checked("cudaStreamQuery", state); !ok) return tl::unexpected(ok.error());
      return true;
    };
    return link().wait(over, w);
  }

  result<void> need(std::size_t out_bytes, std::size_t in_bytes) {
    if (auto ok = out().need(out_bytes, link()); !ok) return ok;
    return in().need(in_bytes, link());
  }

  result<void> announce(const std::vector<announcement>& mine, std::vector<announcement>* theirs) {
    const auto bytes = mine.size() * sizeof(announcement);
    if (auto ok = need(bytes, bytes); !ok) return ok;
    std::memcpy(out().host(), mine.data(), bytes);
    const std::vector<std::size_t> each(mine.size(), sizeof(announcement));
    if (auto ok = send_receive(mine.front().text(), each, each); !ok) return ok;
    std::memcpy(theirs->data(), in().host(), bytes);
    return {};
  }

  result<void> carry(const std::string& what, const std::vector<bytes_view>& outgoing,
                     const std::vector<announcement>& theirs, std::vector<bytes_view>* incoming) {
    std::vector<std::size_t> to_each, from_each;
    std::size_t out_bytes = 0, in_bytes = 0;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      to_each.push_back(outgoing[m].size);
      from_each.push_back(theirs[m].bytes);
      out_bytes += to_each.back();
      in_bytes += from_each.back();
    }
    if (auto ok = need(out_bytes, in_bytes); !ok) return ok;
    auto* to = out().host();
    for (const auto& part : outgoing) {
      if (part.size > 0) std::memcpy(to, part.data, part.size);
      to += part.size;
    }
    if (auto ok = send_receive(what, to_each, from_each); !ok) return ok;
    incoming->clear();
    const auto* from = in().host();
    for (const auto size : from_each) {
      incoming->push_back({from, size});
      from += size;
    }
    return {};
  }

  std::shared_ptr<nccl_rank> rank_;
  epoch_id epoch_;
  std::vector<rank_id> members_;
  std::size_t self_;
  bool whole_;
  nccl_link shrunk_;
  staging own_out_, own_in_;
  std::optional<error> broken_;
  std::atomic<bool> aborted_{false};
};

class nccl_fabric final : public collective_fabric {
public:
  explicit nccl_fabric(nccl_world world) : rank_(std::make_shared<nccl_rank>()) {
    rank_->world = std::move(world);
  }

  result<void> join() {
    auto& world = rank_->world;
    const auto self = index_of(world.members, world.self);
    if (!self)
      return bad_input("NCCL: rank " + std::to_string(world.self.value)
                       + " is not in the world that it joins");
    ncclUniqueId id;
    if (world.id.size() != sizeof id)
      return bad_input("NCCL: world id has " + std::to_string(world.id.size()) + " bytes, expected "
                       + std::to_string(sizeof id));
    std::memcpy(&id, world.id.data(), sizeof id);
    if (auto ok = checked("cudaSetDevice", cudaSetDevice(world.ordinal)); !ok) return ok;
    if (auto ok = checked("cudaStreamCreate",
                          cudaStreamCreateWithFlags(&rank_->stream, cudaStreamNonBlocking));
        !ok)
      return ok;
    auto config = nccl_link::config();
    const auto size = static_cast<int>(world.members.size()), place = static_cast<int>(*self);
    if (auto ok = checked("ncclCommInitRankConfig",
                          ncclCommInitRankConfig(rank_->full.slot(), size, id, place, &config));
        !ok)
      return ok;
    return rank_->full.wait(nccl_link::at_once,
                            {"joining the world on GPU " + std::to_string(world.ordinal),
                             text_of(world.members, world.self), world.setup, world.stop});
  }

  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override {
    const auto& world = rank_->world.members;
    const auto self = index_of(members, rank_->world.self);
    const bool ascending =
        std::adjacent_find(members.begin(), members.end(), [](auto a, auto b) { return !(a < b); })
        == members.end();
    const bool known = std::includes(world.begin(), world.end(), members.begin(), members.end());
    if (!ascending || !self || !known)
      return bad_input("NCCL: members must be ascending, of the world's ("
                       + text_of(world, rank_id{UINT32_MAX}) + "), and contain rank "
                       + std::to_string(rank_->world.self.value));
    return std::unique_ptr<communicator>(
        new nccl_communicator(rank_, epoch, std::move(members), *self));
  }
  void set_weights_version(weights_id version) override { rank_->weights = version; }

private:
  static std::optional<std::size_t> index_of(const std::vector<rank_id>& ranks, rank_id rank) {
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    if (at == ranks.end()) return std::nullopt;
    return static_cast<std::size_t>(at - ranks.begin());
  }

  std::shared_ptr<nccl_rank> rank_;
};

} // namespace

} // namespace adafloor

extern "C" {

std::uint64_t adafloor_plugin_abi() {
  return adafloor::plugin_abi();
}

void adafloor_nccl_version(char* text, std::size_t size) {
  int version = 0;
  ncclGetVersion(&version);
  std::snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

int adafloor_nccl_devices(char* text, std::size_t size) {
  int count = 0;
  const auto code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  std::snprintf(text, size, "%s", cudaGetErrorString(code));
  return 0;
}

std::size_t adafloor_nccl_world_id(std::byte* id, std::size_t size, char* text,
                                   std::size_t text_size) {
  ncclUniqueId made;
  const auto code = ncclGetUniqueId(&made);
  if (code != ncclSuccess || size < sizeof made) {
    std::snprintf(text, text_size, "NCCL: ncclGetUniqueId: %s", ncclGetErrorString(code));
    return 0;
  }
  std::memcpy(id, &made, sizeof made);
  return sizeof made;
}

adafloor::collective_fabric* adafloor_nccl_join(const adafloor::nccl_world& world,
                                                adafloor::error* why) {
  auto made = std::make_unique<adafloor::nccl_fabric>(world);
  if (auto ok = made->join(); !ok) {
    *why = ok.error();
    return nullptr;
  }
  return made.release();
}
}
