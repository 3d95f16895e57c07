// The kernels, written once over `lane` (sixteen floats) that the including file has defined in
// namespace adafloor::ADAFLOOR_KERNELS. No include guard: included once per instruction set. Uses
// nothing of the standard library, so that no inline function is compiled for a machine that may
// not be there.
namespace adafloor::ADAFLOOR_KERNELS {

namespace {

constexpr float minus_infinity = -__builtin_inff();

/// Sixteen partial sums in one fixed tree.
inline float sum_of(const lane& a) {
  float t[16];
  store(t, a);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      t[i] = t[i] + t[i + width];
  return t[0];
}

inline float max_of(const lane& a) {
  float t[16];
  store(t, a);
  float best = t[0];
  for (int i = 1; i < 16; ++i)
    best = t[i] > best ? t[i] : best;
  return best;
}

/// 0, 1, ... 15.
inline lane index_lane() {
  static const float values[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(values);
}

/// e^x: argument reduction by ln 2 in two parts and the degree-5 polynomial of Cephes expf
/// (netlib.org/cephes); below -86 it is 0, above 88 it is e^88.
inline lane exp_lane(const lane& x0) {
  const lane low = fill(-86.0F);
  lane x = min(max(x0, low), fill(88.0F));
  const lane magic = fill(12582912.0F); // 1.5 * 2^23: adding it rounds to an integer
  lane shifted = fma(x, fill(1.44269504088896341F), magic);
  lane n = sub(shifted, magic);
  lane r = fma(n, fill(-0.693359375F), x);
  r = fma(n, fill(2.12194440e-4F), r);
  lane p = fill(1.9875691500e-4F);
  p = fma(p, r, fill(1.3981999507e-3F));
  p = fma(p, r, fill(8.3334519073e-3F));
  p = fma(p, r, fill(4.1665795894e-2F));
  p = fma(p, r, fill(1.6666665459e-1F));
  p = fma(p, r, fill(5.0000001201e-1F));
  p = add(fma(p, mul(r, r), r), fill(1.0F));
  return select_less(x0, low, fill(0.0F), scale_by_bits(p, shifted));
}

/// R rows by P panels; weights are floats or bfloat16.
template <int R, int P, class W>
inline void gemm_tile(const float* x, std::size_t ldx, const W* w, std::size_t k, float* y,
                      std::size_t ldy) {
  lane acc[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      acc[r][p] = fill(0.0F);
  const std::size_t panel = k * 16;
  for (std::size_t i = 0; i < k; ++i) {
    lane b[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      b[p] = load(w + static_cast<std::size_t>(p) * panel + i * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      lane a = fill(x[static_cast<std::size_t>(r) * ldx + i]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = fma(a, b[p], acc[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      store(y + static_cast<std::size_t>(r) * ldy + static_cast<std::size_t>(p) * 16, acc[r][p]);
}

/// All rows against P panels.
template <int P, class W>
inline void gemm_panels(const float* x, std::size_t ldx, std::size_t rows, const W* w,
                        std::size_t k, float* y, std::size_t ldy) {
  std::size_t r = 0;
  for (; r + 6 <= rows; r += 6)
    gemm_tile<6, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  switch (rows - r) {
  case 5:
    return gemm_tile<5, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  case 4:
    return gemm_tile<4, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  case 3:
    return gemm_tile<3, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  case 2:
    return gemm_tile<2, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  case 1:
    return gemm_tile<1, P>(x + r * ldx, ldx, w, k, y + r * ldy, ldy);
  default:
    return;
  }
}

template <class W>
void gemm(const float* x, std::size_t ldx, std::size_t rows, const W* packed, packed_shape w,
          float* y, std::size_t ldy) {
  const std::size_t panel = w.k * 16;
  std::size_t p = 0;
  if (rows == 1)
    for (; p + row_panels <= w.panels; p += row_panels)
      gemm_tile<1, row_panels>(x, ldx, packed + p * panel, w.k, y + p * 16, ldy);
  for (; p + tile_panels <= w.panels; p += tile_panels)
    gemm_panels<tile_panels>(x, ldx, rows, packed + p * panel, w.k, y + p * 16, ldy);
  for (; p < w.panels; ++p)
    gemm_panels<1>(x, ldx, rows, packed + p * panel, w.k, y + p * 16, ldy);
}

/// x[0..count), then zeros.
inline lane load_part(const float* x, std::size_t count) {
  float t[16] = {};
  for (std::size_t i = 0; i < count; ++i)
    t[i] = x[i];
  return load(t);
}

inline float inverse_rms(const float* x, std::size_t n, float eps) {
  lane acc = fill(0.0F);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    lane a = load(x + i);
    acc = fma(a, a, acc);
  }
  if (i < n) {
    lane a = load_part(x + i, n - i);
    acc = fma(a, a, acc);
  }
  return 1.0F / __builtin_sqrtf(sum_of(acc) / static_cast<float>(n) + eps);
}

void rms_norm(const float* x, const float* weight, std::size_t n, float eps, float* out) {
  lane factor = fill(inverse_rms(x, n, eps));
  for (std::size_t i = 0; i < n; i += 16)
    store(out + i, mul(load(weight + i), mul(load(x + i), factor)));
}

void norm_rotate(float* x, const float* weight, std::size_t n, float eps, const float* cos,
                 const float* sin, float factor) {
  const float inverse = inverse_rms(x, n, eps);
  const std::size_t half = n / 2;
  for (std::size_t i = 0; i < half; ++i) {
    float a = weight[i] * (x[i] * inverse), b = weight[i + half] * (x[i + half] * inverse);
    float ac = a * cos[i], bs = b * sin[i], bc = b * cos[i], as = a * sin[i];
    x[i] = (ac - bs) * factor;
    x[i + half] = (bc + as) * factor;
  }
}

/// Scores of G heads against P whole pages.
template <int G, int P, class K>
inline void score_pages(const attention_task<K>& t, std::size_t head, std::size_t page,
                        std::size_t score_stride) {
  lane acc[P][G];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
      acc[p][g] = fill(0.0F);
  const float* query = t.query + head * t.query_stride;
  const K* ahead[P]; // blocks of the next round, brought in line by line
  const std::size_t pages = (t.positions + 15) / 16;
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    std::size_t next = page + static_cast<std::size_t>(P + p);
    ahead[p] = t.blocks[next < pages ? next : pages - 1];
  }
  for (std::size_t i = 0; i < t.head_dim; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(ahead[p] + i * 16);
      lane key = load(t.blocks[page + static_cast<std::size_t>(p)] + i * 16);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        acc[p][g] =
            fma(fill(query[static_cast<std::size_t>(g) * t.query_stride + i]), key, acc[p][g]);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
      store(t.scores + (head + static_cast<std::size_t>(g)) * score_stride
                + (page + static_cast<std::size_t>(p)) * 16,
            acc[p][g]);
}

/// Turns one head's scores into unnormalised weights; returns their sum.
inline float weigh_scores(float* scores, std::size_t positions) {
  const std::size_t last = (positions - 1) / 16 * 16;
  lane valid = fill(static_cast<float>(positions - last));
  store(scores + last, select_less(index_lane(), valid, load(scores + last), fill(minus_infinity)));
  lane best = load(scores);
  for (std::size_t i = 16; i <= last; i += 16)
    best = max(best, load(scores + i));
  lane shift = fill(max_of(best));
  lane sum = fill(0.0F);
  for (std::size_t i = 0; i <= last; i += 16) {
    lane weight = exp_lane(sub(load(scores + i), shift));
    store(scores + i, weight);
    sum = add(sum, weight);
  }
  return sum_of(sum);
}

/// Adds one position's values, weighted, to the sums of G heads and J lane blocks.
template <int G, int J, class K>
inline void mix_position(lane (&acc)[G][J], const K* value, const float* weights,
                         std::size_t score_stride) {
  lane v[J];
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j)
    v[j] = load(value + j * 16);
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
    lane weight = fill(weights[static_cast<std::size_t>(g) * score_stride]);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j)
      acc[g][j] = fma(weight, v[j], acc[g][j]);
  }
}

/// Weighted sums of values for G heads and J lane blocks of the head dimension: even and odd
/// positions in two chains that are added at the end.
template <int G, int J, class K>
inline void mix_values(const attention_task<K>& t, std::size_t head, std::size_t block,
                       std::size_t score_stride, const float* sums) {
  const std::size_t value_stride = (t.head_dim + 15) / 16 * 16;
  const std::size_t pages = (t.positions + 15) / 16;
  lane even[G][J], odd[G][J];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j)
      even[g][j] = odd[g][j] = fill(0.0F);
  for (std::size_t page = 0; page < pages; ++page) {
    const K* value = t.blocks[page] + t.head_dim * 16 + block * 16;
    const float* weights = t.scores + head * score_stride + page * 16;
    const std::size_t slots = page + 1 < pages ? 16 : t.positions - page * 16;
    const K* ahead = t.blocks[page + 1 < pages ? page + 1 : page] + t.head_dim * 16;
    std::size_t slot = 0;
    for (; slot + 2 <= slots; slot += 2) {
      __builtin_prefetch(ahead + slot * value_stride + block * 16);
      __builtin_prefetch(ahead + (slot + 1) * value_stride + block * 16);
      if (J > 1) __builtin_prefetch(ahead + slot * value_stride + block * 16 + 16);
      if (J > 1) __builtin_prefetch(ahead + (slot + 1) * value_stride + block * 16 + 16);
      mix_position<G, J>(even, value + slot * value_stride, weights + slot, score_stride);
      mix_position<G, J>(odd, value + (slot + 1) * value_stride, weights + slot + 1, score_stride);
    }
    if (slot < slots)
      mix_position<G, J>(even, value + slot * value_stride, weights + slot, score_stride);
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
    lane factor = fill(1.0F / sums[head + static_cast<std::size_t>(g)]);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j)
      store(t.out + (head + static_cast<std::size_t>(g)) * t.out_stride + block * 16
                + static_cast<std::size_t>(j) * 16,
            mul(add(even[g][j], odd[g][j]), factor));
  }
}

template <int G, class K>
inline void attend_heads(const attention_task<K>& t, std::size_t head) {
  const std::size_t pages = (t.positions + 15) / 16, score_stride = pages * 16;
  const std::size_t blocks = (t.head_dim + 15) / 16;
  std::size_t page = 0;
  for (; page + score_pages_at_once <= pages; page += score_pages_at_once)
    score_pages<G, score_pages_at_once, K>(t, head, page, score_stride);
  for (; page < pages; ++page)
    score_pages<G, 1, K>(t, head, page, score_stride);
  float sums[1024];
  for (std::size_t g = head; g < head + G; ++g)
    sums[g] = weigh_scores(t.scores + g * score_stride, t.positions);
  std::size_t block = 0;
  for (; block + mix_blocks_at_once <= blocks; block += mix_blocks_at_once)
    mix_values<G, mix_blocks_at_once, K>(t, head, block, score_stride, sums);
  for (; block < blocks; ++block)
    mix_values<G, 1, K>(t, head, block, score_stride, sums);
}

template <class K>
void attention(const attention_task<K>& t) {
  std::size_t head = 0;
  for (; head + 2 <= t.heads; head += 2)
    attend_heads<2>(t, head);
  for (; head < t.heads; ++head)
    attend_heads<1>(t, head);
}

void silu_mul(const float* gate, const float* up, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; i += 16) {
    lane g = load(gate + i);
    lane e = exp_lane(sub(fill(0.0F), g));
    store(out + i, mul(div(g, add(fill(1.0F), e)), load(up + i)));
  }
}

float exp_row(const float* x, std::size_t n, float shift, float* out) {
  lane sum = fill(0.0F);
  lane offset = fill(shift);
  for (std::size_t i = 0; i < n; i += 16) {
    lane e = exp_lane(sub(load(x + i), offset));
    if (i + 16 > n) e = select_less(index_lane(), fill(static_cast<float>(n - i)), e, fill(0.0F));
    store(out + i, e);
    sum = add(sum, e);
  }
  return sum_of(sum);
}

float max_row(const float* x, std::size_t n) {
  float best = x[0];
  for (std::size_t i = 1; i < n; ++i)
    best = x[i] > best ? x[i] : best;
  return best;
}

void add_rows(float* x, const float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 16)
    store(x + i, add(load(x + i), load(y + i)));
}

void add_scaled(float* x, const float* y, float factor, std::size_t n) {
  lane f = fill(factor);
  for (std::size_t i = 0; i < n; i += 16)
    store(x + i, fma(f, load(y + i), load(x + i)));
}

} // namespace

constexpr kernel_set make_set() {
  return {ADAFLOOR_KERNEL_NAME,
          gemm<float>,
          gemm<std::uint16_t>,
          rms_norm,
          norm_rotate,
          attention<float>,
          attention<std::uint16_t>,
          silu_mul,
          exp_row,
          max_row,
          add_rows,
          add_scaled};
}

} // namespace adafloor::ADAFLOOR_KERNELS
