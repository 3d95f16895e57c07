// The kernels without any instruction set in mind; std::fma rounds once on every machine.
#include "gpu/kernels.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace adafloor::kernels_portable {

struct lane {
  float v[16];
};

constexpr int tile_panels = 1, row_panels = 1, score_pages_at_once = 1, mix_blocks_at_once = 1;

template <class F>
inline lane each(F f) {
  lane r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = f(i);
  return r;
}
inline lane load(const float* p) {
  return each([&](int i) { return p[i]; });
}
/// Of bfloat16.
inline lane load(const std::uint16_t* p) {
  return each([&](int i) {
    const std::uint32_t bits = std::uint32_t{p[i]} << 16;
    float r;
    std::memcpy(&r, &bits, 4);
    return r;
  });
}
inline void store(float* p, const lane& a) {
  std::memcpy(p, a.v, sizeof a.v);
}
inline lane fill(float x) {
  return each([&](int) { return x; });
}
inline lane add(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline lane sub(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline lane mul(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline lane div(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline lane fma(const lane& a, const lane& b, const lane& c) {
  return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline lane max(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline lane min(const lane& a, const lane& b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
/// a < b ? yes : no.
inline lane select_less(const lane& a, const lane& b, const lane& yes, const lane& no) {
  return each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
/// p * 2^n, n the integer that sits in the low bits of `shifted`.
inline lane scale_by_bits(const lane& p, const lane& shifted) {
  return each([&](int i) {
    std::uint32_t bits, n;
    std::memcpy(&bits, &p.v[i], 4);
    std::memcpy(&n, &shifted.v[i], 4);
    bits += n << 23;
    float r;
    std::memcpy(&r, &bits, 4);
    return r;
  });
}

} // namespace adafloor::kernels_portable

#define ADAFLOOR_KERNELS kernels_portable
#define ADAFLOOR_KERNEL_NAME "portable"
#include "gpu/kernels_body.hpp"

namespace adafloor {
const kernel_set portable_kernels = kernels_portable::make_set();
}
