// The kernels for processors with AVX-512F. Nothing here runs before kernels() has asked the
// processor.
#include "gpu/kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#endif

namespace adafloor::kernels_avx512 {

struct lane {
  __m512 v;
};

constexpr int tile_panels = 2, row_panels = 8, score_pages_at_once = 4, mix_blocks_at_once = 2;

inline lane load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
/// Of bfloat16.
inline lane load(const std::uint16_t* p) {
  auto halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, halves), 16))};
}
inline void store(float* p, lane a) {
  _mm512_storeu_ps(p, a.v);
}
inline lane fill(float x) {
  return {_mm512_set1_ps(x)};
}
inline lane add(lane a, lane b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline lane sub(lane a, lane b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline lane mul(lane a, lane b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline lane div(lane a, lane b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline lane fma(lane a, lane b, lane c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline lane max(lane a, lane b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), b.v, a.v)};
}
inline lane min(lane a, lane b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), b.v, a.v)};
}
inline lane select_less(lane a, lane b, lane yes, lane no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline lane scale_by_bits(lane p, lane shifted) {
  auto n = _mm512_maskz_slli_epi32(0xFFFF, _mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), n))};
}

} // namespace adafloor::kernels_avx512

#define ADAFLOOR_KERNELS kernels_avx512
#define ADAFLOOR_KERNEL_NAME "avx512"
#include "gpu/kernels_body.hpp"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace adafloor {
const kernel_set avx512_kernels = kernels_avx512::make_set();
}
#endif
