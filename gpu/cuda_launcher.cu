// The launcher of a CUDA device: one stream, a memory pool, a pinned staging ring, graphs. Compiled
// by nvcc into the plug-in libadafloor_cuda.so; the program itself knows nothing of CUDA.
#include "gpu/cuda_block.cuh"
#include "gpu/launcher.hpp"
#include "gpu/plugin_abi.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <map>

namespace adafloor {

namespace {

tl::unexpected<error> cuda_failure(const char* what, cudaError_t code) {
  return fail(error_code::internal, std::string("CUDA: ") + what + ": " + cudaGetErrorName(code)
                                        + " (" + cudaGetErrorString(code) + ")");
}

result<void> checked(const char* what, cudaError_t code) {
  if (code != cudaSuccess) return cuda_failure(what, code);
  return {};
}

class cuda_launcher final : public launcher {
public:
  ~cuda_launcher() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    cuda_launcher::forget_graphs();
    for (int i = 0; i < 2; ++i) {
      if (ring_[i] != nullptr) cudaFreeHost(ring_[i]);
      if (free_[i] != nullptr) cudaEventDestroy(free_[i]);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }

  result<void> open(int ordinal) {
    ordinal_ = ordinal;
    if (auto ok = checked("cudaSetDevice", cudaSetDevice(ordinal)); !ok) return ok;
    cudaDeviceProp properties{};
    if (auto ok = checked("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, ordinal));
        !ok)
      return ok;
    name_ = properties.name;
    shared_bytes_max_ = properties.sharedMemPerBlockOptin;
    if (properties.major < 8)
      return fail(error_code::refused,
                  "CUDA: " + name_ + " has compute capability " + std::to_string(properties.major)
                      + "." + std::to_string(properties.minor) + ", at least 8.0 is needed");
    if (auto ok =
            checked("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        !ok)
      return ok;
    cudaMemPoolProps wanted{};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location.type = cudaMemLocationTypeDevice;
    wanted.location.id = ordinal;
    if (auto ok = checked("cudaMemPoolCreate", cudaMemPoolCreate(&pool_, &wanted)); !ok) return ok;
    std::uint64_t keep_all = UINT64_MAX; // experts and pages trade places; `trim` gives back
    cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all);
    for (int i = 0; i < 2; ++i) {
      if (auto ok = checked("cudaMallocHost", cudaMallocHost(&ring_[i], ring_bytes)); !ok)
        return ok;
      if (auto ok = checked("cudaEventCreate",
                            cudaEventCreateWithFlags(&free_[i], cudaEventDisableTiming));
          !ok)
        return ok;
    }
    return {};
  }

  std::string name() const override { return name_; }

  result<void*> allocate(std::size_t bytes) override {
    cudaSetDevice(ordinal_);
    void* memory = nullptr;
    const auto code =
        cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 1), pool_, stream_);
    if (code == cudaSuccess) return memory;
    cudaGetLastError();
    std::size_t left = 0, all = 0;
    cudaMemGetInfo(&left, &all);
    return fail(error_code::refused,
                "CUDA: " + name_ + " has no " + std::to_string(bytes) + " bytes left ("
                    + std::to_string(left) + " of " + std::to_string(all) + " are free: "
                    + cudaGetErrorString(code) + "); give it fewer KV tokens or experts");
  }
  void release(void* memory) noexcept override {
    if (memory != nullptr) cudaFreeAsync(memory, stream_);
  }
  void trim() override {
    cudaStreamSynchronize(stream_);
    cudaMemPoolTrimTo(pool_, 0);
  }

  result<void> launch(const any_kernel& any) override {
    return std::visit([this](const auto& kernel) { return launch_one(kernel); }, any);
  }

  result<void> upload(void* to, const void* from, std::size_t bytes) override {
    for (std::size_t at = 0; at < bytes; at += ring_bytes, turn_ ^= 1) {
      const auto part = std::min(ring_bytes, bytes - at);
      if (auto ok = checked("upload", cudaEventSynchronize(free_[turn_])); !ok) return ok;
      std::memcpy(ring_[turn_], static_cast<const char*>(from) + at, part);
      if (auto ok = checked("upload", cudaMemcpyAsync(static_cast<char*>(to) + at, ring_[turn_],
                                                      part, cudaMemcpyHostToDevice, stream_));
          !ok)
        return ok;
      if (auto ok = checked("upload", cudaEventRecord(free_[turn_], stream_)); !ok) return ok;
    }
    return {};
  }

  /// Two parts in flight: one is copied out of the ring while the next one arrives.
  result<void> download(void* to, const void* from, std::size_t bytes) override {
    std::size_t asked = 0, taken = 0;
    while (taken < bytes || asked < bytes) {
      if (asked < bytes && asked - taken <= ring_bytes) {
        if (auto ok = ask(static_cast<const char*>(from) + asked,
                          std::min(ring_bytes, bytes - asked), (asked / ring_bytes) % 2);
            !ok)
          return ok;
        asked += std::min(ring_bytes, bytes - asked);
        if (asked < bytes && asked - taken <= ring_bytes) continue;
      }
      const auto slot = (taken / ring_bytes) % 2;
      if (auto ok = checked("download", cudaEventSynchronize(free_[slot])); !ok) return ok;
      const auto part = std::min(ring_bytes, bytes - taken);
      std::memcpy(static_cast<char*>(to) + taken, ring_[slot], part);
      taken += part;
    }
    return {};
  }

  bool replay(std::uint64_t key) override {
    const auto kept = graphs_.find(key);
    return kept != graphs_.end() && cudaGraphLaunch(kept->second, stream_) == cudaSuccess;
  }
  result<void> begin_graph(std::uint64_t key) override {
    capturing_ = key;
    return checked("cudaStreamBeginCapture",
                   cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }
  result<void> end_graph() override {
    cudaGraph_t graph = nullptr;
    if (auto ok = checked("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph)); !ok)
      return ok;
    cudaGraphExec_t ready = nullptr;
    auto done = checked("cudaGraphInstantiate", cudaGraphInstantiate(&ready, graph, 0));
    cudaGraphDestroy(graph);
    if (!done) return done;
    graphs_[capturing_] = ready;
    return checked("cudaGraphLaunch", cudaGraphLaunch(ready, stream_));
  }
  void forget_graphs() override {
    if (!graphs_.empty()) cudaStreamSynchronize(stream_);
    for (auto& [key, graph] : graphs_)
      cudaGraphExecDestroy(graph);
    graphs_.clear();
  }

private:
  static constexpr std::size_t ring_bytes = std::size_t{4} << 20;

  template <class Kernel>
  result<void> launch_one(const Kernel& kernel) {
    const auto grid = kernel.grid();
    const auto shared = kernel.shared_bytes();
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
    if (shared > shared_bytes_max_)
      return fail(error_code::refused, std::string("CUDA: kernel ") + Kernel::name + " needs "
                                           + std::to_string(shared) + " bytes of shared memory, "
                                           + name_ + " has " + std::to_string(shared_bytes_max_));
    if (auto ok = checked("cudaSetDevice", cudaSetDevice(ordinal_)); !ok) return ok; // per thread
    const auto* body = reinterpret_cast<const void*>(&run_block<Kernel>);
    if (shared > 48 * 1024)
      if (auto ok = checked(Kernel::name,
                            cudaFuncSetAttribute(body, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(shared)));
          !ok)
        return ok;
    auto copy = kernel;
    void* arguments[] = {&copy};
    return checked(Kernel::name,
                   cudaLaunchKernel(body, dim3(grid.x, grid.y, grid.z), dim3(Kernel::threads),
                                    arguments, shared, stream_));
  }
  result<void> ask(const void* from, std::size_t bytes, std::size_t slot) {
    if (auto ok = checked("download", cudaEventSynchronize(free_[slot])); !ok) return ok;
    if (auto ok = checked(
            "download", cudaMemcpyAsync(ring_[slot], from, bytes, cudaMemcpyDeviceToHost, stream_));
        !ok)
      return ok;
    return checked("download", cudaEventRecord(free_[slot], stream_));
  }

  int ordinal_ = 0;
  std::string name_;
  std::size_t shared_bytes_max_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  void* ring_[2] = {nullptr, nullptr}; ///< pinned
  cudaEvent_t free_[2] = {nullptr, nullptr};
  int turn_ = 0;
  std::uint64_t capturing_ = 0;
  std::map<std::uint64_t, cudaGraphExec_t> graphs_;
};

void say(char* text, std::size_t size, const std::string& what) {
  std::snprintf(text, size, "%s", what.c_str());
}

} // namespace

} // namespace adafloor

extern "C" {

std::uint64_t adafloor_plugin_abi() {
  return adafloor::plugin_abi();
}

int adafloor_cuda_devices(char* text, std::size_t size) {
  int count = 0;
  if (const auto code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    adafloor::say(text, size, cudaGetErrorString(code));
    return 0;
  }
  std::string all;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    all += std::string(all.empty() ? "" : "\n") + p.name + ", "
           + std::to_string(p.totalGlobalMem >> 30) + " GiB, compute capability "
           + std::to_string(p.major) + "." + std::to_string(p.minor);
  }
  adafloor::say(text, size, count > 0 ? all : "no device");
  return count;
}

adafloor::launcher* adafloor_cuda_open(int ordinal, char* text, std::size_t size) {
  auto made = std::make_unique<adafloor::cuda_launcher>();
  if (auto ok = made->open(ordinal); !ok) {
    adafloor::say(text, size, ok.error().text);
    return nullptr;
  }
  return made.release();
}
}
