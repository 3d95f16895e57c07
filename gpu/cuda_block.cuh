#pragma once
// Where kernel bodies run on a GPU: one block of CUDA threads. See gpu/block.hpp.
#include <cstddef>
#include <cstdint>

namespace adafloor {

struct cuda_block {
  std::uint32_t x, y, z;
  std::size_t used = 0;

  template <class F>
  __device__ void each(F f) {
    f(threadIdx.x);
    __syncthreads();
  }
  template <class T>
  __device__ T* shared(std::size_t count) {
    extern __shared__ __align__(16) unsigned char memory[];
    const std::size_t at = (used + 15) / 16 * 16;
    used = at + count * sizeof(T);
    return reinterpret_cast<T*>(memory + at);
  }
  template <class T>
  struct local {
    T value;
    __device__ explicit local(const cuda_block&) {}
    __device__ T& operator[](std::uint32_t) { return value; }
  };
};

/// Two blocks per multiprocessor at least: without the second number ptxas spills to fit in more.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, 2)
    run_block(const __grid_constant__ Kernel kernel) {
  cuda_block block{blockIdx.x, blockIdx.y, blockIdx.z};
  kernel(block);
}

} // namespace adafloor
