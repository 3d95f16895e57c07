#pragma once
// Takes the place of gpu/cuda_block.cuh where gpu/cuda_launcher.cu is built without a GPU: each
// kernel has an address of its own, and tests/gpu/fake_cuda.cpp knows what to run for it.

namespace adafloor {

template <class Kernel>
inline char run_block = 0;

} // namespace adafloor
