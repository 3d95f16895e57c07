#include "gpu/kernels.hpp"

#include <algorithm>
#include <cstring>

namespace adafloor {

packed_shape packed_shape_of(std::size_t k, std::size_t n) {
  return {k, round_up_lanes(n) / lanes};
}

namespace {

template <class W>
void pack(const W* weight, std::size_t n, std::size_t k, W* packed) {
  auto shape = packed_shape_of(k, n);
  std::fill(packed, packed + shape.floats(), W{});
  for (std::size_t column = 0; column < n; ++column) {
    W* panel = packed + column / lanes * k * lanes + column % lanes;
    for (std::size_t i = 0; i < k; ++i)
      panel[i * lanes] = weight[column * k + i];
  }
}

} // namespace

void pack_weight(const float* weight, std::size_t n, std::size_t k, float* packed) {
  pack(weight, n, k, packed);
}

void pack_weight(const std::uint16_t* weight, std::size_t n, std::size_t k, std::uint16_t* packed) {
  pack(weight, n, k, packed);
}

std::vector<const kernel_set*> all_kernels() {
  std::vector<const kernel_set*> sets = {&portable_kernels};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f")) sets.push_back(&avx512_kernels);
  }
#endif
  return sets;
}

const kernel_set& kernels() {
  static const kernel_set* const chosen = [] {
    auto sets = all_kernels();
    const char* wanted = std::getenv("ADAFLOOR_KERNELS");
    for (auto set : sets)
      if (wanted != nullptr && std::strcmp(set->name, wanted) == 0) return set;
    return sets.back();
  }();
  return *chosen;
}

} // namespace adafloor
