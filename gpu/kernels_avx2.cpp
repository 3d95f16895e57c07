// The kernels for processors with AVX2 and FMA. Nothing here runs before kernels() has asked the
// processor.
#include "gpu/kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace adafloor::kernels_avx2 {

struct lane {
  __m256 lo, hi;
};

constexpr int tile_panels = 1, row_panels = 4, score_pages_at_once = 2, mix_blocks_at_once = 1;

inline lane load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline __m256 widen(const std::uint16_t* p) {
  auto halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
/// Of bfloat16.
inline lane load(const std::uint16_t* p) {
  return {widen(p), widen(p + 8)};
}
inline void store(float* p, lane a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline lane fill(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline lane add(lane a, lane b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline lane sub(lane a, lane b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline lane mul(lane a, lane b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline lane div(lane a, lane b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline lane fma(lane a, lane b, lane c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline lane max(lane a, lane b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline lane min(lane a, lane b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline lane select_less(lane a, lane b, lane yes, lane no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline __m256 scale_half(__m256 p, __m256 shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p),
                                              _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}
inline lane scale_by_bits(lane p, lane shifted) {
  return {scale_half(p.lo, shifted.lo), scale_half(p.hi, shifted.hi)};
}

} // namespace adafloor::kernels_avx2

#define ADAFLOOR_KERNELS kernels_avx2
#define ADAFLOOR_KERNEL_NAME "avx2"
#include "gpu/kernels_body.hpp"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace adafloor {
const kernel_set avx2_kernels = kernels_avx2::make_set();
}
#endif
