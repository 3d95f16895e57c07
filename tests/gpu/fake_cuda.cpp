// The CUDA runtime in host memory, as far as gpu/cuda_launcher.cu uses it. Linked with that file
// into a libadafloor_cuda.so of its own, so that tests run the plug-in's very code where there is
// no GPU. What is asked of a stream is done when somebody waits for it and not before, memory has
// random contents when it is handed out and when it is given back, and what a GPU would refuse or
// not survive is refused or ends the process. FAKE_CUDA_DEVICES is the number of devices,
// FAKE_CUDA_BYTES the memory of each.
#include "gpu/cuda_block.cuh"
#include "gpu/launcher.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

using namespace adafloor;

[[noreturn]] void wrong_use(const std::string& what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what.c_str());
  std::abort();
}

std::size_t setting(const char* name, std::size_t otherwise) {
  const char* given = std::getenv(name); // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}
int devices() {
  return static_cast<int>(setting("FAKE_CUDA_DEVICES", 8));
}

thread_local int current_device = 0;

void spoil(void* memory, std::size_t bytes) {
  std::memset(memory, 0xA5, bytes);
}

/// What each address of gpu/cuda_launcher.cu's kernels stands for.
using kernel_maker = any_kernel (*)(const void* argument);

template <class Kernel>
any_kernel make_kernel(const void* argument) {
  return *static_cast<const Kernel*>(argument);
}

template <class... Kernels>
std::map<const void*, kernel_maker> makers_of(const std::variant<Kernels...>*) {
  return {{static_cast<const void*>(&run_block<Kernels>), &make_kernel<Kernels>}...};
}

const kernel_maker* maker_of(const void* body) {
  static const auto all = makers_of(static_cast<const any_kernel*>(nullptr));
  const auto found = all.find(body);
  return found == all.end() ? nullptr : &found->second;
}

struct memory_books {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> on_device, pinned;
  std::map<int, std::size_t> used;

  static bool holds(const std::map<const std::byte*, std::size_t>& blocks, const void* memory,
                    std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(memory);
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return false;
    --after;
    return at + bytes <= after->first + after->second;
  }
};

memory_books& books() {
  static memory_books all;
  return all;
}

} // namespace

struct CUstream_st {
  int of_device = current_device;
  std::unique_ptr<launcher> processor = make_host_launcher(thread_order::interleaved);
  std::deque<std::function<void()>> queue;
  std::size_t asked = 0, done = 0;
  bool capturing = false, spoiled = false;
  std::vector<any_kernel> captured;

  void push(std::function<void()> what) {
    queue.push_back(std::move(what));
    ++asked;
  }
  void run_to(std::size_t end) {
    for (; done < end; ++done) {
      queue.front()();
      queue.pop_front();
    }
  }
  void run(const any_kernel& kernel) {
    if (!processor->launch(kernel)) wrong_use("a kernel did not run");
  }
  /// What waits for a stream, or is of its memory, cannot be in a graph here.
  bool refuses() {
    spoiled = spoiled || capturing;
    return capturing;
  }
};

struct CUevent_st {
  int of_device = current_device;
  CUstream_st* stream = nullptr;
  std::size_t end = 0;
};

struct CUgraph_st {
  std::vector<any_kernel> kernels;
};

struct CUgraphExec_st : CUgraph_st {};

struct CUmemPoolHandle_st {
  int of_device = 0;
  std::set<void*> lent;
};

namespace {

std::set<CUmemPoolHandle_st*> pools; // guarded by the books' mutex

cudaError_t give_back(void* memory) {
  std::lock_guard lock(books().mutex);
  const auto block = books().on_device.find(static_cast<std::byte*>(memory));
  if (block == books().on_device.end()) wrong_use("memory is freed that is not allocated");
  for (auto* pool : pools)
    if (pool->lent.erase(memory) > 0) books().used[pool->of_device] -= block->second;
  spoil(memory, block->second);
  books().on_device.erase(block);
  std::free(memory);
  return cudaSuccess;
}

} // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  std::snprintf(properties->name, sizeof properties->name, "fake CUDA %d", device);
  properties->major = 9;
  properties->minor = 0;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->totalGlobalMem = setting("FAKE_CUDA_BYTES", std::size_t{4} << 30);
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t code) {
  if (code == cudaErrorNoDevice) return "no CUDA-capable device is detected";
  return code == cudaErrorMemoryAllocation ? "out of memory" : "see tests/gpu/fake_cuda.cpp";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->refuses()) return cudaErrorStreamCaptureUnsupported;
  stream->run_to(stream->asked);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->run_to(stream->asked);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->of_device != stream->of_device) return cudaErrorInvalidResourceHandle;
  if (stream->refuses()) return cudaErrorStreamCaptureUnsupported;
  event->stream = stream;
  event->end = stream->asked;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->stream == nullptr) return cudaSuccess; // never recorded
  if (event->stream->refuses()) return cudaErrorCapturedEvent;
  event->stream->run_to(event->end);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  std::lock_guard lock(books().mutex);
  books().pinned[static_cast<std::byte*>(*memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::lock_guard lock(books().mutex);
  if (books().pinned.erase(static_cast<std::byte*>(memory)) == 0)
    wrong_use("host memory is freed that is not pinned");
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* wanted) {
  *pool = new CUmemPoolHandle_st;
  (*pool)->of_device = wanted->location.id;
  std::lock_guard lock(books().mutex);
  pools.insert(*pool);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  std::lock_guard lock(books().mutex);
  if (!pool->lent.empty()) wrong_use("a pool is destroyed whose memory is in use");
  pools.erase(pool);
  delete pool;
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  if (stream->refuses()) return cudaErrorStreamCaptureUnsupported;
  std::lock_guard lock(books().mutex);
  auto& used = books().used[pool->of_device];
  if (used + bytes > setting("FAKE_CUDA_BYTES", std::size_t{4} << 30))
    return cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  spoil(*memory, bytes);
  used += bytes;
  books().on_device[static_cast<std::byte*>(*memory)] = bytes;
  pool->lent.insert(*memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  if (stream->refuses()) return cudaErrorStreamCaptureUnsupported;
  stream->push([memory] { give_back(memory); });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* all) {
  *all = setting("FAKE_CUDA_BYTES", std::size_t{4} << 30);
  std::lock_guard lock(books().mutex);
  *left = *all - books().used[current_device];
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (stream->refuses()) return cudaErrorStreamCaptureUnsupported;
  const bool up = kind == cudaMemcpyHostToDevice;
  {
    std::lock_guard lock(books().mutex);
    if (!memory_books::holds(books().pinned, up ? from : to, bytes))
      wrong_use("a copy is not from or to pinned memory");
    if (!memory_books::holds(books().on_device, up ? to : from, bytes))
      wrong_use("a copy goes beyond what was allocated");
  }
  stream->push([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* body, cudaFuncAttribute, int) {
  return maker_of(body) != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaLaunchKernel(const void* body, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  const auto* maker = maker_of(body);
  if (maker == nullptr) return cudaErrorInvalidDeviceFunction;
  if (stream->of_device != current_device) return cudaErrorInvalidResourceHandle;
  auto kernel = (*maker)(arguments[0]);
  if (stream->capturing)
    stream->captured.push_back(std::move(kernel));
  else
    stream->push([=] { stream->run(kernel); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capturing) return cudaErrorIllegalState;
  stream->capturing = true;
  stream->spoiled = false;
  stream->captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->capturing) return cudaErrorIllegalState;
  stream->capturing = false;
  if (stream->spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{std::move(stream->captured)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  *ready = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  for (const auto& kernel : ready->kernels)
    stream->push([=] { stream->run(kernel); });
  return cudaSuccess;
}
