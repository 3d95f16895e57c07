#pragma once
// Attention over KV pages, in three kernels: scores, weights, weighted values. Decode rows and the
// rows of a prefill chunk take the same path, and a row's sums run over its pages in order, as on
// the CPU: the same bits.
#include "gpu/block.hpp"

namespace adafloor {

/// Positions of a page; gpu/engine.hpp's kv_page_tokens.
constexpr std::uint32_t page_positions = 16;

/// Rows of a step; pages as kv_pool.hpp lays them out, of storage type K.
template <class K>
struct paged_rows {
  const std::uint32_t* position = nullptr; ///< by row
  const std::uint32_t* table = nullptr;    ///< by row: where its page table begins in `pages`
  K* const* pages = nullptr;
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0, layer = 0;

  ADAFLOOR_BODY std::uint32_t padded() const { return (head_dim + 15) / 16 * 16; }
  /// Keys [head_dim][16], then values [16][padded head_dim].
  ADAFLOOR_BODY K* block(std::uint32_t row, std::uint32_t page, std::uint32_t kv_head) const {
    const std::size_t elements = std::size_t{page_positions} * (head_dim + padded());
    return pages[table[row] + page] + (std::size_t{layer} * kv_heads + kv_head) * elements;
  }
};

/// RMS norm of one head's queries or keys, rotation of the halves (RoFormer, arXiv 2104.09864),
/// queries scaled; keys and values go to their page. In place on qkv.
template <class K>
struct rotate_kernel {
  paged_rows<K> at;
  float* qkv = nullptr; ///< [rows][ld]: query heads, key heads, value heads
  std::uint32_t ld = 0, rows = 0;
  const float *q_norm = nullptr, *k_norm = nullptr; ///< [head_dim]
  const float *cosine = nullptr, *sine = nullptr;   ///< [positions][head_dim / 2]
  float eps = 0, scale = 1;

  static constexpr const char* name = "rotate";
  static constexpr std::uint32_t threads = 64;
  block_shape grid() const { return {at.heads + 2 * at.kv_heads, rows, 1}; }
  std::size_t shared_bytes() const { return (at.head_dim + 16) * sizeof(float) + 16; }
  std::uint64_t bytes() const {
    const auto width = std::uint64_t{at.heads + 2 * at.kv_heads} * at.head_dim;
    return rows * (2 * width * sizeof(float) + 2ULL * at.kv_heads * at.head_dim * sizeof(K));
  }
  std::uint64_t flops() const { return 10ULL * rows * (at.heads + at.kv_heads) * at.head_dim; }

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::uint32_t head = b.x, row = b.y, n = at.head_dim, half = n / 2;
    const std::uint32_t position = at.position[row], slot = position % page_positions;
    float* x = qkv + std::size_t{row} * ld + std::size_t{head} * n;
    float* values = b.template shared<float>(n);
    float* partial = b.template shared<float>(16);
    if (head >= at.heads + at.kv_heads) { // a value head
      K* page = at.block(row, position / page_positions, head - at.heads - at.kv_heads);
      b.each([&](std::uint32_t t) {
        for (std::uint32_t i = t; i < n; i += threads)
          narrow(x[i], page[n * page_positions + slot * at.padded() + i]);
      });
      return;
    }
    const bool query = head < at.heads;
    const float* weight = query ? q_norm : k_norm;
    const float factor = query ? scale : 1.0F;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < n; i += threads)
        values[i] = x[i];
    });
    const float inverse = inverse_rms(b, values, n, eps, partial);
    K* page = query ? nullptr : at.block(row, position / page_positions, head - at.heads);
    const float *c = cosine + std::size_t{position} * half,
                *s = sine + std::size_t{position} * half;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < half; i += threads) {
        const float u = weight[i] * (values[i] * inverse);
        const float v = weight[i + half] * (values[i + half] * inverse);
        const float uc = u * c[i], vs = v * s[i], vc = v * c[i], us = u * s[i];
        const float low = (uc - vs) * factor, high = (vc + us) * factor;
        x[i] = low;
        x[i + half] = high;
        if (query) continue;
        narrow(low, page[i * page_positions + slot]);
        narrow(high, page[(i + half) * page_positions + slot]);
      }
    });
  }
};

/// Scores of 64 positions against all query heads of one KV head, for the rows of one tile, which
/// share a page table (one decode row, or neighbours in a prefill chunk).
template <class K>
struct scores_kernel {
  paged_rows<K> at;
  const float* qkv = nullptr; ///< queries first, as rotate leaves them
  std::uint32_t ld = 0;
  const std::uint32_t* tile = nullptr; ///< tile i: rows tile[i] to tile[i + 1]
  std::uint32_t tiles = 0;
  std::uint32_t longest = 0; ///< positions of the longest row; more is allowed
  float* scores = nullptr;   ///< [rows][heads][stride]
  std::uint32_t stride = 0;
  std::uint32_t first_row = 0; ///< row that scores begins with

  static constexpr const char* name = "scores";
  static constexpr std::uint32_t threads = 256, chunk = 64, chunk_pages = chunk / page_positions;
  block_shape grid() const { return {divide_up(longest, chunk), at.kv_heads, tiles}; }
  ADAFLOOR_BODY std::uint32_t key_stride() const { return at.head_dim * page_positions + 16; }
  std::size_t shared_bytes() const {
    return chunk_pages * key_stride() * sizeof(K) + 8ULL * at.head_dim * sizeof(float);
  }
  std::uint64_t bytes() const { // every tile as long as the longest
    const auto positions = std::uint64_t{longest} * tiles;
    return positions * at.kv_heads * at.head_dim * sizeof(K) + positions * at.heads * sizeof(float);
  }
  std::uint64_t flops() const { return 2ULL * longest * tiles * at.heads * at.head_dim; }

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::uint32_t row0 = tile[b.z], rows = tile[b.z + 1] - row0, start = b.x * chunk;
    const std::uint32_t last = at.position[row0 + rows - 1]; // rows ascend in position
    if (start > last) return;
    K* keys = b.template shared<K>(chunk_pages * key_stride());
    float* queries = b.template shared<float>(8 * at.head_dim);
    const std::uint32_t group = at.heads / at.kv_heads, pairs = rows * group, n = at.head_dim;
    const std::uint32_t page_packs = n * page_positions / pack<K>::size;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t q = t; q < chunk_pages * page_packs; q += threads) {
        const std::uint32_t page = q / page_packs, i = q % page_packs * pack<K>::size;
        if (start + page * page_positions > last) break;
        store_pack(keys + page * key_stride() + i,
                   load_pack(at.block(row0, start / page_positions + page, b.y) + i));
      }
    });
    for (std::uint32_t pair0 = 0; pair0 < pairs; pair0 += 8) {
      b.each([&](std::uint32_t t) {
        for (std::uint32_t i = t; i < 8 * n && pair0 + i / n < pairs; i += threads) {
          const std::uint32_t pair = pair0 + i / n;
          queries[i] = qkv[std::size_t{row0 + pair / group} * ld
                           + std::size_t{b.y * group + pair % group} * n + i % n];
        }
      });
      b.each([&](std::uint32_t t) { score(b.y, start, t, row0, pair0, pairs, keys, queries); });
    }
  }

  /// Thread: one position against two of eight queries.
  ADAFLOOR_BODY void score(std::uint32_t kv_head, std::uint32_t start, std::uint32_t t,
                           std::uint32_t row0, std::uint32_t pair0, std::uint32_t pairs,
                           const K* keys, const float* queries) const {
    const std::uint32_t offset = t % chunk, first = t / chunk * 2, n = at.head_dim;
    const std::uint32_t group = at.heads / at.kv_heads, position = start + offset;
    if (pair0 + first >= pairs || position > at.position[row0 + (pairs - 1) / group]) return;
    const K* key = keys + offset / page_positions * key_stride() + offset % page_positions;
    const bool two = pair0 + first + 1 < pairs;
    const float *q0 = queries + first * n, *q1 = two ? q0 + n : q0;
    float s0 = 0, s1 = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const float k = widen(key[i * page_positions]);
      s0 = fmaf(q0[i], k, s0);
      s1 = fmaf(q1[i], k, s1);
    }
    for (std::uint32_t j = 0; j < (two ? 2U : 1U); ++j) {
      const std::uint32_t pair = pair0 + first + j, row = row0 + pair / group;
      const std::uint32_t head = kv_head * group + pair % group;
      if (position <= at.position[row])
        scores[(std::size_t{row - first_row} * at.heads + head) * stride + position] =
            j == 0 ? s0 : s1;
    }
  }
};

/// Scores become unnormalised weights; their sum is added from sixteen strided partial sums.
struct softmax_kernel {
  const std::uint32_t* position = nullptr; ///< by row
  std::uint32_t heads = 0, rows = 0, first_row = 0;
  float* scores = nullptr; ///< [rows][heads][stride]
  std::uint32_t stride = 0;
  float* sums = nullptr;     ///< [rows][heads]
  std::uint32_t longest = 0; ///< for the figures below only

  static constexpr const char* name = "softmax";
  static constexpr std::uint32_t threads = 256, tile = 2048;
  block_shape grid() const { return {heads, rows, 1}; }
  std::size_t shared_bytes() const { return (tile + threads + 16) * sizeof(float); }
  std::uint64_t bytes() const { return 3ULL * rows * heads * longest * sizeof(float); }
  std::uint64_t flops() const { return 20ULL * rows * heads * longest; }

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::uint32_t count = position[first_row + b.y] + 1;
    const std::size_t which = std::size_t{b.y} * heads + b.x;
    float* s = scores + which * stride;
    float* weights = b.template shared<float>(tile);
    float* best = b.template shared<float>(threads);
    float* partial = b.template shared<float>(16);
    b.each([&](std::uint32_t t) {
      float top = s[t < count ? t : 0];
      for (std::uint32_t i = t; i < count; i += threads)
        top = s[i] > top ? s[i] : top;
      best[t] = top;
      if (t < 16) partial[t] = 0;
    });
    for (std::uint32_t width = threads / 2; width > 0; width /= 2)
      b.each([&](std::uint32_t t) {
        if (t < width) best[t] = best[t] > best[t + width] ? best[t] : best[t + width];
      });
    const float shift = best[0];
    for (std::uint32_t i0 = 0; i0 < count; i0 += tile) {
      const std::uint32_t here = least(tile, count - i0);
      b.each([&](std::uint32_t t) {
        for (std::uint32_t i = t; i < here; i += threads)
          s[i0 + i] = weights[i] = exp_body(s[i0 + i] - shift);
      });
      b.each([&](std::uint32_t t) {
        for (std::uint32_t i = t; t < 16 && i < here; i += 16)
          partial[t] = partial[t] + weights[i];
      });
    }
    b.each([&](std::uint32_t t) {
      if (t == 0) sums[which] = sum_sixteen(partial);
    });
  }
};

/// Weighted sums of values: even and odd positions in two chains that are added at the end.
template <class K>
struct mix_kernel {
  paged_rows<K> at;
  std::uint32_t rows = 0, first_row = 0;
  const float* scores = nullptr; ///< weights, [rows][heads][stride]
  std::uint32_t stride = 0;
  const float* sums = nullptr; ///< [rows][heads]
  float* out = nullptr;        ///< [row][ldo], row counted from 0: heads * head_dim
  std::uint32_t ldo = 0;
  std::uint32_t longest = 0; ///< for the figures below only

  static constexpr const char* name = "mix";
  static constexpr std::uint32_t threads = 256, tile = 64, dims = 32;
  block_shape grid() const { return {divide_up(at.padded(), dims), at.kv_heads, rows}; }
  std::size_t shared_bytes() const {
    return tile * dims * sizeof(K) + (8 * tile + 2 * 8 * dims) * sizeof(float);
  }
  std::uint64_t bytes() const {
    const auto positions = std::uint64_t{longest} * rows;
    return positions * at.kv_heads * at.head_dim * sizeof(K) + positions * at.heads * sizeof(float);
  }
  std::uint64_t flops() const { return 2ULL * longest * rows * at.heads * at.head_dim; }

  struct two_sums {
    float v[2];
  };

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::uint32_t row = first_row + b.z, group = at.heads / at.kv_heads;
    K* values = b.template shared<K>(tile * dims);
    float* weights = b.template shared<float>(8 * tile);
    float* both = b.template shared<float>(2 * 8 * dims);
    const std::uint32_t count = at.position[row] + 1;
    typename Block::template local<two_sums> sum(b);
    for (std::uint32_t g0 = 0; g0 < group; g0 += 8) {
      const std::uint32_t heads_here = least(8, group - g0);
      const std::size_t head0 = std::size_t{b.z} * at.heads + b.y * group + g0;
      b.each([&](std::uint32_t t) { sum[t] = {}; });
      for (std::uint32_t p0 = 0; p0 < count; p0 += tile) {
        const std::uint32_t here = least(tile, count - p0);
        b.each([&](std::uint32_t t) {
          load_values(t, b.x, row, b.y, p0, here, values);
          for (std::uint32_t i = t; i < heads_here * tile; i += threads)
            if (i % tile < here) weights[i] = scores[(head0 + i / tile) * stride + p0 + i % tile];
        });
        b.each([&](std::uint32_t t) {
          const std::uint32_t d = t % dims, h = t / (2 * dims) * 2;
          if (h >= heads_here) return;
          const float* w = weights + h * tile;
          const std::uint32_t other = h + 1 < heads_here ? tile : 0;
          for (std::uint32_t p = t / dims % 2; p < here; p += 2) {
            const float v = widen(values[p * dims + d]);
            sum[t].v[0] = fmaf(w[p], v, sum[t].v[0]);
            sum[t].v[1] = fmaf(w[other + p], v, sum[t].v[1]);
          }
        });
      }
      b.each([&](std::uint32_t t) {
        const std::uint32_t h = t / (2 * dims) * 2;
        for (std::uint32_t j = 0; j < 2; ++j)
          both[(t / dims % 2 * 8 + h + j) * dims + t % dims] = sum[t].v[j];
      });
      b.each([&](std::uint32_t t) {
        const std::uint32_t h = t / dims, d = b.x * dims + t % dims;
        if (h >= heads_here || d >= at.head_dim) return;
        const float factor = 1.0F / sums[head0 + h];
        out[std::size_t{row} * ldo + std::size_t{b.y * group + g0 + h} * at.head_dim + d] =
            (both[h * dims + t % dims] + both[(8 + h) * dims + t % dims]) * factor;
      });
    }
  }

  ADAFLOOR_BODY void load_values(std::uint32_t t, std::uint32_t slice, std::uint32_t row,
                                 std::uint32_t kv_head, std::uint32_t p0, std::uint32_t here,
                                 K* values) const {
    constexpr std::uint32_t packs = dims / pack<K>::size;
    for (std::uint32_t q = t; q < here * packs; q += threads) {
      const std::uint32_t p = q / packs, i = q % packs * pack<K>::size, d = slice * dims + i;
      if (d >= at.padded()) continue;
      const std::uint32_t position = p0 + p;
      const K* from = at.block(row, position / page_positions, kv_head)
                      + at.head_dim * page_positions + position % page_positions * at.padded() + d;
      store_pack(values + p * dims + i, load_pack(from));
    }
  }
};

} // namespace adafloor
