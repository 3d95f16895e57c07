#pragma once
// Matrix products: dense, and one per expert over the rows that it is given.
#include "gpu/block.hpp"

namespace adafloor {

/// y[r][n] = sum over k of x[r][k] * w[k][n], per element one chain of fused multiply-adds in
/// ascending order of k, as the CPU's gemm: the same bits, whatever rows stand beside it. Weights
/// are packed in panels of sixteen columns ([panel][k][16], kernels.hpp) of storage type W.
///
/// A block makes 32 columns of one segment, 16 * R rows at a time: all threads bring a slice of 128
/// of the weights and of x to shared memory, and fetch the next one while they multiply.
template <class W, int R>
struct gemm_kernel {
  const float* x = nullptr; ///< 16-byte aligned; rows are padded with zeros to sixteen floats
  std::uint32_t ldx = 0;
  const std::uint32_t* gather = nullptr; ///< row i of the product is of x[gather[i]]; null: x[i]
  std::uint32_t rows = 0;
  const W* weight = nullptr;
  std::uint32_t segments = 1;
  const std::uint32_t* offsets = nullptr;   ///< segment s: rows offsets[s] to offsets[s + 1]
  const W* const* segment_weight = nullptr; ///< by segment; may be null where it has no rows
  std::size_t segment_skip = 0;             ///< elements from there to the matrix
  std::uint32_t k = 0, panels = 0;
  float* y = nullptr; ///< [rows][ldy]
  std::uint32_t ldy = 0;
  bool add = false; ///< y = y + product

  static constexpr const char* name = "gemm";
  static constexpr std::uint32_t threads = 256, depth = 128, tile_rows = 16 * R;
  static constexpr std::uint32_t panel_stride = depth * 16 + 16, x_stride = depth + 4;
  static constexpr std::uint32_t panel_packs = depth * 16 / pack<W>::size;
  static constexpr std::uint32_t w_packs = 2 * panel_packs / threads;
  static constexpr std::uint32_t x_packs = tile_rows * depth / 4 / threads;

  block_shape grid() const { return {divide_up(panels, 2), segments, 1}; }
  std::size_t shared_bytes() const {
    return 2 * panel_stride * sizeof(W) + tile_rows * x_stride * sizeof(float);
  }
  std::uint64_t bytes() const { // read and written once each; segments: all of their weights
    return std::uint64_t{segments} * k * panels * 16 * sizeof(W)
           + std::uint64_t{rows} * (k + panels * 16) * sizeof(float);
  }
  std::uint64_t flops() const { return 2ULL * rows * k * panels * 16; }

  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::uint32_t first = offsets ? offsets[b.y] : 0,
                        last = offsets ? offsets[b.y + 1] : rows;
    if (first == last) return;
    const W* w = (segment_weight ? segment_weight[b.y] + segment_skip : weight)
                 + std::size_t{b.x} * 2 * k * 16;
    W* w_tile = b.template shared<W>(2 * panel_stride);
    float* x_tile = b.template shared<float>(tile_rows * x_stride);
    for (std::uint32_t row = first; row < last; row += tile_rows)
      tile(b, w, row, least(tile_rows, last - row), w_tile, x_tile);
  }

  /// What a thread holds of the next slice.
  struct ahead {
    pack<W> w[w_packs];
    pack<float> x[x_packs];
  };

  ADAFLOOR_BODY void fetch(std::uint32_t t, ahead& next, const W* w, std::uint32_t panels_here,
                           std::uint32_t row0, std::uint32_t count, std::uint32_t k0) const {
    for (std::uint32_t i = 0; i < w_packs; ++i) {
      const std::uint32_t q = t + i * threads, panel = q / panel_packs;
      const std::uint32_t at = q % panel_packs * pack<W>::size;
      if (panel < panels_here && k0 + at / 16 < k)
        next.w[i] = load_pack(w + std::size_t{panel} * k * 16 + std::size_t{k0} * 16 + at);
    }
    for (std::uint32_t i = 0; i < x_packs; ++i) {
      const std::uint32_t q = t + i * threads, row = q / (depth / 4), at = q % (depth / 4) * 4;
      if (row < count && k0 + at < k) {
        const std::uint32_t from = gather ? gather[row0 + row] : row0 + row;
        next.x[i] = load_pack(x + std::size_t{from} * ldx + k0 + at);
      }
    }
  }
  ADAFLOOR_BODY void keep(std::uint32_t t, const ahead& next, W* w_tile, float* x_tile) const {
    for (std::uint32_t i = 0; i < w_packs; ++i) {
      const std::uint32_t q = t + i * threads;
      store_pack(w_tile + q / panel_packs * panel_stride + q % panel_packs * pack<W>::size,
                 next.w[i]);
    }
    for (std::uint32_t i = 0; i < x_packs; ++i) {
      const std::uint32_t q = t + i * threads;
      store_pack(x_tile + q / (depth / 4) * x_stride + q % (depth / 4) * 4, next.x[i]);
    }
  }

  /// Thread: two columns, rows group, group + 16, ... of which `live` exist.
  ADAFLOOR_BODY static void multiply(std::uint32_t t, float* sums, const W* w_tile,
                                     const float* x_tile, std::uint32_t live,
                                     std::uint32_t depth_k) {
    const std::uint32_t column = t % 16 * 2;
    const W* w = w_tile + column / 16 * panel_stride + column % 16;
    const float* xs = x_tile + t / 16 * x_stride;
    std::uint32_t kk = 0;
    for (; kk + 4 <= depth_k; kk += 4) {
      float left[4], right[4];
      for (std::uint32_t j = 0; j < 4; ++j) {
        left[j] = widen(w[(kk + j) * 16]);
        right[j] = widen(w[(kk + j) * 16 + 1]);
      }
      for (std::uint32_t r = 0; r < R; ++r) {
        if (r >= live) break;
        const auto xv = load_pack(xs + r * 16 * x_stride + kk);
        for (std::uint32_t j = 0; j < 4; ++j) {
          sums[2 * r] = fmaf(xv.v[j], left[j], sums[2 * r]);
          sums[2 * r + 1] = fmaf(xv.v[j], right[j], sums[2 * r + 1]);
        }
      }
    }
    for (; kk < depth_k; ++kk)
      for (std::uint32_t r = 0; r < R; ++r) {
        if (r >= live) break;
        const float xv = xs[r * 16 * x_stride + kk];
        sums[2 * r] = fmaf(xv, widen(w[kk * 16]), sums[2 * r]);
        sums[2 * r + 1] = fmaf(xv, widen(w[kk * 16 + 1]), sums[2 * r + 1]);
      }
  }

  template <class Block>
  ADAFLOOR_BODY void tile(Block& b, const W* w, std::uint32_t row0, std::uint32_t count, W* w_tile,
                          float* x_tile) const {
    typename Block::template local<ahead> next(b);
    struct sums_of {
      float v[2 * R];
    };
    typename Block::template local<sums_of> sums(b);
    const std::uint32_t panels_here = least(2, panels - b.x * 2);
    b.each([&](std::uint32_t t) {
      sums[t] = {};
      next[t] = {};
      fetch(t, next[t], w, panels_here, row0, count, 0);
    });
    for (std::uint32_t k0 = 0; k0 < k; k0 += depth) {
      b.each([&](std::uint32_t t) { keep(t, next[t], w_tile, x_tile); });
      b.each([&](std::uint32_t t) {
        if (k0 + depth < k) fetch(t, next[t], w, panels_here, row0, count, k0 + depth);
        const std::uint32_t group = t / 16, live = group < count ? divide_up(count - group, 16) : 0;
        multiply(t, sums[t].v, w_tile, x_tile, live, least(depth, k - k0));
      });
    }
    b.each([&](std::uint32_t t) {
      const std::uint32_t column = t % 16 * 2;
      if (column / 16 >= panels_here) return;
      for (std::uint32_t r = 0; r < R; ++r) {
        const std::uint32_t row = t / 16 + r * 16;
        if (row >= count) break;
        float* out = y + std::size_t{row0 + row} * ldy + b.x * 32 + column;
        out[0] = add ? out[0] + sums[t].v[2 * r] : sums[t].v[2 * r];
        out[1] = add ? out[1] + sums[t].v[2 * r + 1] : sums[t].v[2 * r + 1];
      }
    });
  }
};

} // namespace adafloor
