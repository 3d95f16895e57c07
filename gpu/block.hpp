#pragma once
// What a kernel body is written over: a block of threads that run in lock step between barriers.
// A body is a function template over the block, so nvcc makes a CUDA kernel of it and the host
// compiler a loop over threads; the arithmetic is written once and tested on every machine.
//
// Rules for bodies: code outside of `each` is the same for all threads (uniform); `each(f)` calls
// f(thread) for every thread and ends with a barrier; within one `each` no thread reads what
// another one writes. What a thread keeps from one `each` to the next is a `local`.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ADAFLOOR_BODY __host__ __device__ inline
#else
#define ADAFLOOR_BODY inline
#endif

namespace adafloor {

struct block_shape {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// The upper half of a float32.
struct bfloat16 {
  std::uint16_t bits = 0;
};

ADAFLOOR_BODY std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
ADAFLOOR_BODY float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
ADAFLOOR_BODY bool is_finite(float x) {
  return (bits_of(x) & 0x7F800000U) != 0x7F800000U;
}

ADAFLOOR_BODY float widen(float x) {
  return x;
}
ADAFLOOR_BODY float widen(bfloat16 x) {
  return float_of(std::uint32_t{x.bits} << 16);
}
ADAFLOOR_BODY void narrow(float x, float& out) {
  out = x;
}
/// Rounds to nearest, ties to even; a NaN stays one.
ADAFLOOR_BODY void narrow(float x, bfloat16& out) {
  const std::uint32_t bits = bits_of(x);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  out.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40U : rounded >> 16);
}

/// Sixteen bytes that are loaded at once.
template <class T>
struct alignas(16) pack {
  static constexpr std::uint32_t size = 16 / sizeof(T);
  T v[size];
};

template <class T>
ADAFLOOR_BODY pack<T> load_pack(const T* aligned) {
  return *reinterpret_cast<const pack<T>*>(aligned);
}
template <class T>
ADAFLOOR_BODY void store_pack(T* aligned, const pack<T>& values) {
  *reinterpret_cast<pack<T>*>(aligned) = values;
}

ADAFLOOR_BODY std::uint32_t divide_up(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}
ADAFLOOR_BODY std::uint32_t least(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

/// e^x, the same bits as the CPU kernels' exp_lane (kernels_body.hpp, where its source is given).
ADAFLOOR_BODY float exp_body(float x0) {
  const float low = -86.0F, magic = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer
  float x = x0 > low ? x0 : low;
  x = x < 88.0F ? x : 88.0F;
  const float shifted = fmaf(x, 1.44269504088896341F, magic);
  const float n = shifted - magic;
  float r = fmaf(n, -0.693359375F, x);
  r = fmaf(n, 2.12194440e-4F, r);
  float p = 1.9875691500e-4F;
  p = fmaf(p, r, 1.3981999507e-3F);
  p = fmaf(p, r, 8.3334519073e-3F);
  p = fmaf(p, r, 4.1665795894e-2F);
  p = fmaf(p, r, 1.6666665459e-1F);
  p = fmaf(p, r, 5.0000001201e-1F);
  p = fmaf(p, r * r, r) + 1.0F;
  return x0 < low ? 0.0F : float_of(bits_of(p) + (bits_of(shifted) << 23));
}

/// Natural logarithm of a positive normal double by the series of atanh, in one fixed order of
/// operations, so that the bits do not depend on a library. Error below 1e-15.
ADAFLOOR_BODY double log_body(double x) {
  std::uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL;
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2)
    sum = sum * square + 1.0 / k;
  return exponent * 0.69314718055994531 + 2.0 * s * sum;
}

struct philox_block {
  std::uint32_t word[4];
};

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
ADAFLOOR_BODY philox_block philox_body(philox_block c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c.word[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

/// In [0, 1): 53 bits of philox with key random_key and counter (position, seed).
ADAFLOOR_BODY double uniform_body(std::uint64_t seed, std::uint64_t random_key,
                                  std::uint32_t position) {
  const auto r = philox_body(
      {{position, 0, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}},
      static_cast<std::uint32_t>(random_key), static_cast<std::uint32_t>(random_key >> 32));
  const std::uint64_t bits = (std::uint64_t{r.word[0]} << 32) | r.word[1];
  return static_cast<double>(bits >> 11) * 1.1102230246251565e-16; // 2^-53
}

/// Sixteen partial sums in the fixed tree of the CPU kernels; `t` is overwritten.
ADAFLOOR_BODY float sum_sixteen(float* t) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      t[i] = t[i] + t[i + width];
  return t[0];
}

/// By all threads of a block: 1 / sqrt(mean of squares of values[0..n) + eps), in the order of the
/// CPU kernels. `partial` has sixteen places.
template <class Block>
ADAFLOOR_BODY float inverse_rms(Block& b, const float* values, std::uint32_t n, float eps,
                                float* partial) {
  b.each([&](std::uint32_t t) {
    float sum = 0;
    for (std::uint32_t i = t; t < 16 && i < n; i += 16)
      sum = fmaf(values[i], values[i], sum);
    if (t < 16) partial[t] = sum;
  });
  b.each([&](std::uint32_t t) {
    if (t == 0) sum_sixteen(partial);
  });
  return 1.0F / sqrtf(partial[0] / static_cast<float>(n) + eps);
}

/// By all `threads` of a block, a power of two: best[0] and which[0] become the pair with the
/// highest `best`, the lowest `which` among equals.
template <class Block>
ADAFLOOR_BODY void keep_highest(Block& b, std::uint32_t threads, float* best,
                                std::uint32_t* which) {
  for (std::uint32_t width = threads / 2; width > 0; width /= 2)
    b.each([&](std::uint32_t t) {
      if (t >= width) return;
      const bool other =
          best[t + width] > best[t] || (best[t + width] == best[t] && which[t + width] < which[t]);
      if (!other) return;
      best[t] = best[t + width];
      which[t] = which[t + width];
    });
}

} // namespace adafloor
