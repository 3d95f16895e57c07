#pragma once
// Batch-invariant float32 arithmetic for the CPU. Every output row is a function of its own input
// row alone: each output element is one chain of fused multiply-adds in ascending order of the
// reduced index, and every sum over a row adds sixteen strided partial sums in one fixed tree. All
// sets (AVX-512, AVX2, portable) give the same bits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace adafloor {

/// Floats per lane block; panels, pages and padded rows are multiples of it.
constexpr std::size_t lanes = 16;

constexpr std::size_t round_up_lanes(std::size_t n) {
  return (n + lanes - 1) / lanes * lanes;
}

template <class T>
struct cache_line_allocator {
  using value_type = T;
  cache_line_allocator() = default;
  template <class U>
  cache_line_allocator(const cache_line_allocator<U>&) {}
  T* allocate(std::size_t n) {
    void* p = std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64);
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<T*>(p);
  }
  void deallocate(T* p, std::size_t) { std::free(p); }
  friend bool operator==(const cache_line_allocator&, const cache_line_allocator&) { return true; }
  friend bool operator!=(const cache_line_allocator&, const cache_line_allocator&) { return false; }
};

/// Floats that start at a cache line.
using float_buffer = std::vector<float, cache_line_allocator<float>>;

/// Panels of sixteen output columns: element (k, n) of a [K][N] matrix is at
/// [n / 16][k][n % 16]; columns beyond N are zero.
struct packed_shape {
  std::size_t k = 0, panels = 0;
  std::size_t columns() const { return panels * lanes; }
  std::size_t floats() const { return panels * k * lanes; }
};

packed_shape packed_shape_of(std::size_t k, std::size_t n);

/// Packs `weight` [n][k] (output-major, as checkpoints have it) to `packed`.
void pack_weight(const float* weight, std::size_t n, std::size_t k, float* packed);
/// The same with bfloat16.
void pack_weight(const std::uint16_t* weight, std::size_t n, std::size_t k, std::uint16_t* packed);

/// One head group's view of the KV pages of one layer. K: float, or the 16 bits of a bfloat16,
/// which are widened as they are read.
template <class K>
struct attention_task {
  const float* query; ///< [heads][query_stride], already scaled
  std::size_t query_stride;
  std::size_t heads;      ///< query heads that share the KV head
  const K* const* blocks; ///< per page: keys [head_dim][16], then values [16][padded head_dim]
  std::size_t positions;  ///< >= 1; later slots of the last page are not looked at
  std::size_t head_dim;
  float* scores; ///< scratch, heads * positions rounded up to 16
  float* out;    ///< [heads][out_stride], padded head_dim written
  std::size_t out_stride;
};

/// All pointers to rows need the padding of round_up_lanes behind them; padding is written as zero
/// when it is zero on input.
struct kernel_set {
  const char* name;
  /// y[r][n] = sum over k of x[r][k] * w[k][n]; ldy >= w.columns().
  void (*gemm)(const float* x, std::size_t ldx, std::size_t rows, const float* packed,
               packed_shape w, float* y, std::size_t ldy);
  /// As `gemm` with bfloat16 weights, widened as they are read: the bits of `gemm` with widened
  /// ones.
  void (*gemm_half)(const float* x, std::size_t ldx, std::size_t rows, const std::uint16_t* packed,
                    packed_shape w, float* y, std::size_t ldy);
  /// out = weight * (x / sqrt(mean(x^2) + eps)); n the true length.
  void (*rms_norm)(const float* x, const float* weight, std::size_t n, float eps, float* out);
  /// In place on one head: RMS norm, then rotation of the halves (RoFormer, arXiv 2104.09864, in
  /// the half-split form), then a factor. cos, sin: [n / 2].
  void (*norm_rotate)(float* x, const float* weight, std::size_t n, float eps, const float* cos,
                      const float* sin, float factor);
  /// Softmax attention of one query row's head group; reduces over pages in order.
  void (*attention)(const attention_task<float>& task);
  void (*attention_half)(const attention_task<std::uint16_t>& task);
  /// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i], n padded.
  void (*silu_mul)(const float* gate, const float* up, std::size_t n, float* out);
  /// out[i] = exp(x[i] - shift); padding becomes zero. Returns the sum.
  float (*exp_row)(const float* x, std::size_t n, float shift, float* out);
  float (*max_row)(const float* x, std::size_t n);
  /// x[i] += y[i].
  void (*add)(float* x, const float* y, std::size_t n);
  /// x[i] = fma(factor, y[i], x[i]).
  void (*add_scaled)(float* x, const float* y, float factor, std::size_t n);
};

/// The fastest set that this machine runs. ADAFLOOR_KERNELS=portable|avx2|avx512 overrides it where
/// the machine has the instructions.
const kernel_set& kernels();

/// Every set that this machine runs, slowest first.
std::vector<const kernel_set*> all_kernels();

extern const kernel_set portable_kernels;
#if defined(__x86_64__)
extern const kernel_set avx2_kernels;
extern const kernel_set avx512_kernels;
#endif

} // namespace adafloor
