// NCCL and the CUDA runtime in host memory, as far as gpu/nccl_fabric.cpp uses them: a stream is a
// thread, ranks are connected by Unix sockets, whether they are threads or processes. Linked with
// the fabric into a libadafloor_nccl.so of its own, so that tests run the plug-in's very code where
// there is no GPU. As strict as the real ones are: what is used before it is ready, freed while it
// is in use or matched with another size is an error or ends the process. A peer that dies is not
// noticed, as over NVLink, unless FAKE_NCCL_SEES_DEATH is set; FAKE_CUDA_DEVICES is their number.
#include <cuda_runtime.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

[[noreturn]] void wrong_use(const char* what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what);
  std::abort();
}

int devices() {
  const char* given = std::getenv("FAKE_CUDA_DEVICES"); // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::atoi(given) : 8;
}

thread_local int device = 0;

/// Does one thing after the other.
class task_thread {
public:
  task_thread() : thread_([this] { run(); }) {}
  ~task_thread() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  void push(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_all();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty();
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return tasks_.empty(); });
  }

private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto& task = tasks_.front(); // Counts until it has ended.
      lock.unlock();
      task();
      lock.lock();
      tasks_.pop_front();
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace

struct CUstream_st {
  int of_device = device;
  task_thread work;
};

namespace {

std::mutex all_mutex; // guards these
std::set<CUstream_st*> all_streams;
std::map<const std::byte*, std::pair<std::size_t, int>> all_memory; ///< size, device
std::set<ncclComm*> all_comms;

cudaError_t allocate(void** memory, std::size_t bytes) {
  *memory = std::malloc(std::max<std::size_t>(bytes, 1));
  std::lock_guard lock(all_mutex);
  all_memory[static_cast<std::byte*>(*memory)] = {bytes, device};
  return cudaSuccess;
}

/// Waits for all that runs on its device, as the real one does.
cudaError_t release(void* memory);

struct transfer {
  bool out;
  int peer;
  std::byte* bytes;
  std::uint64_t size;
};

/// A direction of a connection within one group call.
struct queue_of_parts {
  std::deque<std::pair<std::byte*, std::size_t>> parts; ///< size of a message, message
  std::deque<std::uint64_t> sizes;                      ///< that parts begin with
};

struct group_call {
  ncclComm* comm;
  CUstream_st* stream;
  std::vector<transfer> transfers;
};
thread_local int group_depth = 0;
thread_local std::vector<group_call> group_calls;

} // namespace

struct ncclComm {
  std::string id;
  int rank, size, of_device = device;
  std::atomic<int> state{ncclInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<int> running{0}; ///< group calls that have not ended
  bool sees_death = std::getenv("FAKE_NCCL_SEES_DEATH") != nullptr; // NOLINT(concurrency*)
  int listener = -1;
  std::vector<int> sockets; ///< by rank; -1 for itself and for the dead
  std::map<std::vector<int>, int> shrinks;
  std::map<const std::byte*, std::size_t> registered;
  task_thread proxy; // Last: uses all of the above.

  ncclComm(std::string name, int r, int n) : id(std::move(name)), rank(r), size(n) {
    sockets.assign(static_cast<std::size_t>(n), -1);
    std::lock_guard lock(all_mutex);
    all_comms.insert(this);
  }
  ~ncclComm() {
    aborted = true;
    while (running > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    proxy.wait_idle();
    for (const int s : sockets)
      if (s >= 0) ::close(s);
    if (listener >= 0) ::close(listener);
    std::lock_guard lock(all_mutex);
    all_comms.erase(this);
  }

  void join();
  void run(const std::vector<transfer>& transfers);

private:
  bool connect_to(int peer);
  bool accept_one();
  bool greet(int socket, int* peer);
  bool move_on(int socket, bool out, queue_of_parts& p);
};

namespace {

cudaError_t release(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  std::vector<CUstream_st*> streams;
  {
    std::lock_guard lock(all_mutex);
    const auto known = all_memory.find(static_cast<std::byte*>(memory));
    if (known == all_memory.end()) wrong_use("frees what it did not allocate");
    for (const auto* comm : all_comms)
      if (comm->registered.count(known->first) != 0) wrong_use("frees a registered buffer");
    for (auto* stream : all_streams)
      if (stream->of_device == known->second.second) streams.push_back(stream);
    all_memory.erase(known);
  }
  for (auto* stream : streams)
    stream->work.wait_idle();
  std::free(memory);
  return cudaSuccess;
}

sockaddr_un name_of(const std::string& id, int rank, socklen_t* length) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const auto text = "fake-nccl/" + id + "/" + std::to_string(rank);
  const auto used = std::min(text.size(), sizeof name.sun_path - 1);
  std::memcpy(name.sun_path + 1, text.data() + text.size() - used, used);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + used);
  return name;
}

/// All of `bytes`, however long it takes; false when the other end is gone or this one aborted.
bool carry_all(int socket, bool out, void* bytes, std::size_t size,
               const std::atomic<bool>& aborted) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const auto n = out ? ::send(socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : ::recv(socket, at, size, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) {
      at += n;
      size -= static_cast<std::size_t>(n);
      continue;
    }
    if (aborted) return false;
    pollfd p{socket, static_cast<short>(out ? POLLOUT : POLLIN), 0};
    ::poll(&p, 1, 1);
  }
  return true;
}

} // namespace

bool ncclComm::greet(int socket, int* peer) {
  struct {
    int rank, device;
  } mine{rank, of_device}, theirs{};
  if (!carry_all(socket, true, &mine, sizeof mine, aborted)
      || !carry_all(socket, false, &theirs, sizeof theirs, aborted))
    return false;
  if (theirs.device == of_device) state = ncclInvalidUsage; // "Duplicate GPU detected"
  *peer = theirs.rank;
  return true;
}

bool ncclComm::connect_to(int peer) {
  socklen_t length = 0;
  const auto name = name_of(id, peer, &length);
  const int s = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0) return false;
  if (::connect(s, reinterpret_cast<const sockaddr*>(&name), length) != 0 || !greet(s, &peer)) {
    ::close(s);
    return false;
  }
  sockets[static_cast<std::size_t>(peer)] = s;
  return true;
}

bool ncclComm::accept_one() {
  pollfd p{listener, POLLIN, 0};
  if (::poll(&p, 1, 1) <= 0) return false;
  const int s = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  int peer = -1;
  if (s < 0) return false;
  if (!greet(s, &peer)) {
    ::close(s);
    return false;
  }
  sockets[static_cast<std::size_t>(peer)] = s;
  return true;
}

/// Until all ranks are connected: higher ones call lower ones.
void ncclComm::join() {
  socklen_t length = 0;
  const auto name = name_of(id, rank, &length);
  listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || ::bind(listener, reinterpret_cast<const sockaddr*>(&name), length) != 0
      || ::listen(listener, size) != 0) {
    state = ncclSystemError;
    return;
  }
  for (int peer = 0; peer < rank && !aborted;)
    if (connect_to(peer))
      ++peer;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int missing = size - 1 - rank; missing > 0 && !aborted;)
    if (accept_one()) --missing;
  int joining = ncclInProgress;
  state.compare_exchange_strong(joining, aborted ? ncclInternalError : ncclSuccess);
}

/// Carries what there is now. False: the other end is gone.
bool ncclComm::move_on(int socket, bool out, queue_of_parts& p) {
  while (!p.parts.empty()) {
    auto& [at, left] = p.parts.front();
    const auto n = left == 0 ? 0
                   : out     ? ::send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                             : ::recv(socket, at, left, MSG_DONTWAIT);
    if (left > 0 && n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    at += n;
    left -= static_cast<std::size_t>(n);
    if (left > 0) continue;
    p.parts.pop_front();
    const bool was_size = p.parts.size() % 2 == 1;
    if (!out && was_size && p.sizes.front() != p.parts.front().second) {
      state = ncclInvalidUsage; // The real one would hang or write beyond the end.
      p.parts.clear();
    } else if (was_size) {
      p.sizes.pop_front();
    }
  }
  return true;
}

/// On the stream's thread. What never comes is waited for until an abort.
void ncclComm::run(const std::vector<transfer>& transfers) {
  std::map<int, queue_of_parts> outgoing, incoming;
  std::deque<transfer> own;
  for (const auto& t : transfers) {
    if (t.peer == rank) {
      if (t.out) own.push_back(t);
      continue;
    }
    auto& p = (t.out ? outgoing : incoming)[t.peer];
    auto& size = p.sizes.emplace_back(t.size);
    p.parts.emplace_back(reinterpret_cast<std::byte*>(&size), sizeof size);
    p.parts.emplace_back(t.bytes, t.size);
  }
  for (const auto& t : transfers)
    if (t.peer == rank && !t.out) {
      if (own.empty() || own.front().size != t.size) wrong_use("a message to itself differs");
      std::memcpy(t.bytes, own.front().bytes, t.size);
      own.pop_front();
    }
  while (!aborted && state != ncclRemoteError && state != ncclInvalidUsage) {
    std::vector<pollfd> open;
    bool missing = false;
    for (auto* side : {&outgoing, &incoming})
      for (auto& [peer, p] : *side) {
        auto& s = sockets[static_cast<std::size_t>(peer)];
        if (s >= 0 && !move_on(s, side == &outgoing, p)) {
          ::close(s);
          s = -1;
          if (sees_death) state = ncclRemoteError;
        }
        if (p.parts.empty()) continue;
        missing = true;
        if (s >= 0)
          open.push_back({s, static_cast<short>(side == &outgoing ? POLLOUT : POLLIN), 0});
      }
    if (!missing) return;
    ::poll(open.data(), open.size(), 1);
  }
}

extern "C" {

const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaSuccess ? "no error" : "a fake CUDA error";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return cudaErrorInvalidDevice;
  device = ordinal;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return allocate(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return release(memory);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  std::lock_guard lock(all_mutex);
  all_streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    std::lock_guard lock(all_mutex);
    all_streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream->work.idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream->work.push([to, from, bytes] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
  case ncclSuccess:
    return "no error";
  case ncclRemoteError:
    return "remote process exited or there was a network error";
  case ncclInvalidUsage:
    return "invalid usage";
  case ncclInvalidArgument:
    return "invalid argument";
  default:
    return "a fake NCCL error";
  }
}
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device chance;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "%d-%08x%08x", ::getpid(), chance(), chance());
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  allocate(memory, bytes);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  release(memory);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument; // not wanted here
  *comm =
      new ncclComm(std::string(id.internal, strnlen(id.internal, sizeof id.internal)), rank, ranks);
  (*comm)->proxy.push([c = *comm] { c->join(); });
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm == nullptr) return ncclInvalidArgument;
  *state = static_cast<ncclResult_t>(comm->state.load());
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

/// As the real one: the child's place is written when it is ready, and until then the parent is in
/// progress; an abort of the parent ends both.
ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* child,
                            ncclConfig_t* config, int) {
  if (parent == nullptr || count <= 0 || config->blocking != 0) return ncclInvalidArgument;
  if (parent->state != ncclSuccess) return static_cast<ncclResult_t>(parent->state.load());
  std::vector<int> left(excluded, excluded + count);
  std::sort(left.begin(), left.end());
  if (std::binary_search(left.begin(), left.end(), parent->rank)) return ncclInvalidArgument;
  std::string name = parent->id + "/" + std::to_string(parent->shrinks[left]++);
  for (const int rank : left)
    name += "." + std::to_string(rank);
  const auto below = std::lower_bound(left.begin(), left.end(), parent->rank) - left.begin();
  auto* made = new ncclComm(name, parent->rank - static_cast<int>(below), parent->size - count);
  made->of_device = parent->of_device;
  *child = nullptr;
  parent->state = ncclInProgress;
  parent->proxy.push([parent, made, child] {
    made->proxy.push([made] { made->join(); });
    while (made->state == ncclInProgress) {
      if (parent->aborted) made->aborted = true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    made->proxy.wait_idle();
    __atomic_store_n(child, made, __ATOMIC_RELEASE);
    parent->state = made->state.load();
  });
  return ncclInProgress;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, std::size_t size,
                              void** handle) {
  std::lock_guard lock(all_mutex);
  const auto known = all_memory.find(static_cast<std::byte*>(buffer));
  if (known == all_memory.end() || size > known->second.first) return ncclInvalidArgument;
  comm->registered[known->first] = size;
  *handle = buffer;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  std::lock_guard lock(all_mutex);
  return comm->registered.erase(static_cast<std::byte*>(handle)) == 1 ? ncclSuccess
                                                                      : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
/// Returns before the call stands in the stream; until then the communicator is in progress.
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  for (auto& call : group_calls) {
    call.comm->state = ncclInProgress;
    ++call.comm->running;
    call.comm->proxy.push([call = std::move(call)] {
      call.stream->work.push([call] {
        call.comm->run(call.transfers);
        --call.comm->running;
      });
      int launching = ncclInProgress;
      call.comm->state.compare_exchange_strong(launching, ncclSuccess);
    });
  }
  group_calls.clear();
  return ncclInProgress;
}

static ncclResult_t add_transfer(transfer t, ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr || t.peer < 0 || t.peer >= comm->size) return ncclInvalidArgument;
  if (comm->state != ncclSuccess) return ncclInvalidUsage; // not ready
  if (group_depth == 0) wrong_use("send or receive outside of a group");
  if (group_calls.empty() || group_calls.back().comm != comm)
    group_calls.push_back({comm, stream, {}});
  group_calls.back().transfers.push_back(t);
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* bytes, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  auto* from = const_cast<std::byte*>(static_cast<const std::byte*>(bytes));
  return add_transfer({true, peer, from, count}, comm, stream);
}
ncclResult_t ncclRecv(void* bytes, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return add_transfer({false, peer, static_cast<std::byte*>(bytes), count}, comm, stream);
}

} // extern "C"
