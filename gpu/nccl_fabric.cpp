// Groups over NCCL: the plug-in libadafloor_nccl.so. The full world is joined once and kept; a
// group of fewer members is made by shrinking it, without the ranks that are left out, which must
// stay alive until it is done. Exchanges are of host memory and go through pinned buffers: first
// what is to come, then one grouped send and receive. Whatever hangs is aborted by a deadline.
#include "gpu/plugin_abi.hpp"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
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
  return fail(code == ncclRemoteError ? error_code::peer_lost : error_code::internal,
              std::string("NCCL: ") + what + ": " + ncclGetErrorString(code));
}

/// A communicator of NCCL that never blocks; waits have a deadline and end with an abort.
class nccl_link {
public:
  ~nccl_link() {
    if (comm_ != nullptr) ncclCommAbort(comm_); // nothing runs on it: abort only frees
  }
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

  /// Until `done` says so, NCCL fails, `stop` is set or time is up; the last three abort. `what`
  /// stands in the error.
  result<void> wait(const std::function<bool()>& done, std::chrono::milliseconds bound,
                    const std::atomic<bool>& stop, const std::string& what) {
    const auto until = clock::now() + bound;
    for (;;) {
      ncclResult_t state = ncclSuccess;
      if (const auto asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess)
        state = asked;
      if (state == ncclSuccess && done()) return {};
      if (state != ncclSuccess && state != ncclInProgress) {
        give_up();
        return checked(what.c_str(), state);
      }
      if (stop) {
        give_up();
        return fail(error_code::aborted, "NCCL: aborted in " + what);
      }
      if (clock::now() > until) {
        give_up();
        return fail(error_code::timed_out,
                    "NCCL: timed out after " + std::to_string(bound.count()) + " ms in " + what);
      }
      std::this_thread::yield();
    }
  }

private:
  void give_up() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  ncclComm_t comm_ = nullptr;
};

/// The same bytes in pinned host memory and on the device.
class staging {
public:
  ~staging() { release(); }
  staging() = default;
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  std::byte* host() const { return static_cast<std::byte*>(host_); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }
  result<void> need(std::size_t bytes) {
    if (bytes <= size_) return {};
    release();
    bytes = std::max<std::size_t>(bytes + bytes / 2, 1U << 16);
    if (auto ok = checked("cudaMallocHost", cudaMallocHost(&host_, bytes)); !ok) return ok;
    if (auto ok = checked("cudaMalloc", cudaMalloc(&device_, bytes)); !ok) return ok;
    size_ = bytes;
    return {};
  }

private:
  void release() {
    if (host_ != nullptr) cudaFreeHost(host_);
    if (device_ != nullptr) cudaFree(device_);
    host_ = device_ = nullptr;
    size_ = 0;
  }

  void *host_ = nullptr, *device_ = nullptr;
  std::size_t size_ = 0;
};

/// What all groups of a rank share.
struct nccl_rank {
  nccl_world world;
  cudaStream_t stream = nullptr;
  nccl_link full;

  ~nccl_rank() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

/// Says what comes from a member in an exchange.
struct announcement {
  std::uint64_t bytes = 0, step = 0, layer = 0, phase = 0;
};

std::string text_of(const exchange_id& id) {
  static const char* const phases[] = {"dispatch", "combine", "header"};
  return "step " + std::to_string(id.step) + " layer " + std::to_string(id.layer) + " "
         + phases[id.phase % 3];
}

class nccl_communicator final : public communicator {
public:
  nccl_communicator(std::shared_ptr<nccl_rank> rank, epoch_id epoch, std::vector<rank_id> members,
                    std::size_t self)
    : rank_(std::move(rank)), epoch_(epoch), members_(std::move(members)), self_(self) {}

  epoch_id epoch() const override { return epoch_; }
  const std::vector<rank_id>& members() const override { return members_; }
  std::size_t self_index() const override { return self_; }

  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    const auto count = members_.size();
    if (outgoing.size() != count)
      return bad_input("NCCL: " + std::to_string(outgoing.size()) + " outgoing frames for "
                       + std::to_string(count) + " members");
    if (aborted_) return fail(error_code::aborted, "NCCL: group was aborted");
    cudaSetDevice(rank_->world.ordinal);
    if (auto ok = make_link(); !ok) return ok;
    std::vector<announcement> mine(count), theirs(count);
    for (std::size_t m = 0; m < count; ++m)
      mine[m] = {outgoing[m].size, id.step, id.layer, id.phase};
    if (auto ok = announce(id, mine, &theirs); !ok) return ok;
    for (std::size_t m = 0; m < count; ++m)
      if (theirs[m].step != id.step || theirs[m].layer != id.layer || theirs[m].phase != id.phase)
        return fail(error_code::internal,
                    "NCCL: expected a frame of " + text_of(id) + ", rank "
                        + std::to_string(members_[m].value) + " sent one of "
                        + text_of({theirs[m].step, static_cast<std::uint16_t>(theirs[m].layer),
                                   static_cast<exchange_id::phase_kind>(theirs[m].phase)}));
    return carry(id, outgoing, theirs, incoming);
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
  nccl_link& link() { return whole() ? rank_->full : shrunk_; }
  bool whole() const { return members_.size() == rank_->world.size; }

  /// With the first exchange, in which all members take part.
  result<void> make_link() {
    if (rank_->full.get() == nullptr)
      return fail(error_code::aborted, "NCCL: the full world was aborted; start the ranks again");
    if (whole() || shrunk_.get() != nullptr) return {};
    if (made_) return fail(error_code::aborted, "NCCL: group was aborted");
    made_ = true;
    std::vector<int> excluded;
    for (std::uint32_t r = 0; r < rank_->world.size; ++r)
      if (!std::binary_search(members_.begin(), members_.end(), rank_id{r}))
        excluded.push_back(static_cast<int>(r));
    auto config = nccl_link::config();
    if (auto ok =
            checked("ncclCommShrink", ncclCommShrink(rank_->full.get(), excluded.data(),
                                                     static_cast<int>(excluded.size()),
                                                     shrunk_.slot(), &config, NCCL_SHRINK_DEFAULT));
        !ok)
      return ok;
    const auto full_ready = rank_->full.wait([] { return true; }, rank_->world.setup, aborted_,
                                             "shrinking the full world");
    if (!full_ready) return full_ready;
    return shrunk_.wait([] { return true; }, rank_->world.setup, aborted_,
                        "joining the group of epoch " + std::to_string(epoch_.value));
  }

  /// Pieces of the staging buffers to and from each member, in one group call.
  result<void> send_receive(const std::string& what, const std::vector<std::size_t>& out,
                            const std::vector<std::size_t>& in) {
    std::size_t out_bytes = 0, in_bytes = 0;
    for (auto n : out)
      out_bytes += n;
    for (auto n : in)
      in_bytes += n;
    const auto stream = rank_->stream;
    if (auto ok = checked("copy", cudaMemcpyAsync(out_.device(), out_.host(), out_bytes,
                                                  cudaMemcpyHostToDevice, stream));
        !ok)
      return ok;
    if (auto ok = checked("ncclGroupStart", ncclGroupStart()); !ok) return ok;
    const auto* from = out_.device();
    auto* to = in_.device();
    result<void> done;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const auto peer = static_cast<int>(m);
      if (done && out[m] > 0)
        done = checked("ncclSend", ncclSend(from, out[m], ncclUint8, peer, link().get(), stream));
      if (done && in[m] > 0)
        done = checked("ncclRecv", ncclRecv(to, in[m], ncclUint8, peer, link().get(), stream));
      from += out[m];
      to += in[m];
    }
    const auto ended = checked("ncclGroupEnd", ncclGroupEnd());
    if (!done) return done;
    if (!ended) return ended;
    if (auto ok = link().wait([] { return true; }, rank_->world.exchange, aborted_, what); !ok)
      return ok;
    if (auto ok = checked("copy", cudaMemcpyAsync(in_.host(), in_.device(), in_bytes,
                                                  cudaMemcpyDeviceToHost, stream));
        !ok)
      return ok;
    return link().wait([stream] { return cudaStreamQuery(stream) == cudaSuccess; },
                       rank_->world.exchange, aborted_, what);
  }

  result<void> announce(const exchange_id& id, const std::vector<announcement>& mine,
                        std::vector<announcement>* theirs) {
    const auto bytes = mine.size() * sizeof(announcement);
    if (auto ok = out_.need(bytes); !ok) return ok;
    if (auto ok = in_.need(bytes); !ok) return ok;
    std::memcpy(out_.host(), mine.data(), bytes);
    const std::vector<std::size_t> each(mine.size(), sizeof(announcement));
    if (auto ok = send_receive(where(id), each, each); !ok) return ok;
    std::memcpy(theirs->data(), in_.host(), bytes);
    return {};
  }

  result<void> carry(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                     const std::vector<announcement>& theirs, std::vector<bytes_view>* incoming) {
    std::vector<std::size_t> out, in;
    std::size_t out_bytes = 0, in_bytes = 0;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      out.push_back(outgoing[m].size);
      in.push_back(theirs[m].bytes);
      out_bytes += out.back();
      in_bytes += in.back();
    }
    if (auto ok = out_.need(out_bytes); !ok) return ok;
    if (auto ok = in_.need(in_bytes); !ok) return ok;
    auto* to = out_.host();
    for (const auto& part : outgoing) {
      if (part.size > 0) std::memcpy(to, part.data, part.size);
      to += part.size;
    }
    if (auto ok = send_receive(where(id), out, in); !ok) return ok;
    incoming->clear();
    const auto* from = in_.host();
    for (const auto size : in) {
      incoming->push_back({from, size});
      from += size;
    }
    return {};
  }

  std::string where(const exchange_id& id) const {
    return text_of(id) + " of epoch " + std::to_string(epoch_.value);
  }

  std::shared_ptr<nccl_rank> rank_;
  epoch_id epoch_;
  std::vector<rank_id> members_;
  std::size_t self_;
  nccl_link shrunk_;
  bool made_ = false;
  staging out_, in_;
  std::atomic<bool> aborted_{false};
};

class nccl_fabric final : public collective_fabric {
public:
  explicit nccl_fabric(const nccl_world& world) : rank_(std::make_shared<nccl_rank>()) {
    rank_->world = world;
  }

  result<void> join() {
    auto& world = rank_->world;
    if (auto ok = checked("cudaSetDevice", cudaSetDevice(world.ordinal)); !ok) return ok;
    if (auto ok = checked("cudaStreamCreate",
                          cudaStreamCreateWithFlags(&rank_->stream, cudaStreamNonBlocking));
        !ok)
      return ok;
    ncclUniqueId id;
    if (world.id.size != sizeof id)
      return bad_input("NCCL: world id has " + std::to_string(world.id.size) + " bytes, expected "
                       + std::to_string(sizeof id));
    std::memcpy(&id, world.id.data, sizeof id);
    world.id = {};
    auto config = nccl_link::config();
    if (auto ok = checked("ncclCommInitRankConfig",
                          ncclCommInitRankConfig(rank_->full.slot(), static_cast<int>(world.size),
                                                 id, static_cast<int>(world.self.value), &config));
        !ok)
      return ok;
    static const std::atomic<bool> never{false};
    return rank_->full.wait([] { return true; }, world.setup, never, "joining the full world");
  }

  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override {
    const auto self = std::find(members.begin(), members.end(), rank_->world.self);
    const bool ascending =
        std::adjacent_find(members.begin(), members.end(), [](auto a, auto b) { return !(a < b); })
        == members.end();
    if (!ascending || self == members.end() || members.back().value >= rank_->world.size)
      return bad_input("NCCL: members must be ascending ranks below "
                       + std::to_string(rank_->world.size) + " and contain rank "
                       + std::to_string(rank_->world.self.value));
    const auto index = static_cast<std::size_t>(self - members.begin());
    return std::unique_ptr<communicator>(
        new nccl_communicator(rank_, epoch, std::move(members), index));
  }

private:
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
