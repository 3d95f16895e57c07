#pragma once
// What is computed row by row: embedding, norms, routing to experts, their activation and sum, and
// copies between layouts. All give the same bits as the CPU's functions.
#include "gpu/block.hpp"

namespace adafloor {

/// x[r] = embedding[token[r]]; both padded to `stride`.
template <class W>
struct embed_kernel {
  const W* embedding = nullptr;
  const std::uint32_t* token = nullptr;
  std::uint32_t rows = 0, stride = 0;
  float* x = nullptr;

  static constexpr const char* name = "embed";
  static constexpr std::uint32_t threads = 256;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const { return 0; }
  std::uint64_t bytes() const { return std::uint64_t{rows} * stride * (sizeof(W) + 4); }
  std::uint64_t flops() const { return 0; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const W* from = embedding + std::size_t{token[b.x]} * stride;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < stride; i += threads)
        x[std::size_t{b.x} * stride + i] = widen(from[i]);
    });
  }
};

/// out[i] = weight * x[r] / sqrt(mean(x[r]^2) + eps), r = row[i] or i; padding stays zero.
struct rms_norm_kernel {
  const float *x = nullptr, *weight = nullptr; ///< rows and weight padded with zeros to `stride`
  const std::uint32_t* row = nullptr;          ///< null: all rows in order
  std::uint32_t rows = 0, n = 0, stride = 0;
  float eps = 0;
  float* out = nullptr;

  static constexpr const char* name = "rms_norm";
  static constexpr std::uint32_t threads = 256;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const { return (stride + 16) * sizeof(float); }
  std::uint64_t bytes() const { return 8ULL * rows * stride; }
  std::uint64_t flops() const { return 4ULL * rows * n; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const float* from = x + std::size_t{row ? row[b.x] : b.x} * stride;
    float* values = b.template shared<float>(stride);
    float* partial = b.template shared<float>(16);
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < stride; i += threads)
        values[i] = from[i];
    });
    const float factor = inverse_rms(b, values, n, eps, partial);
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < stride; i += threads)
        out[std::size_t{b.x} * stride + i] = weight[i] * (values[i] * factor);
    });
  }
};

/// out[r][i] = gate / (1 + exp(-gate)) * up; gate = x[r][i], up = x[r][n + i].
struct silu_kernel {
  const float* x = nullptr; ///< [rows][2 n]
  std::uint32_t rows = 0, n = 0;
  float* out = nullptr; ///< [rows][n]

  static constexpr const char* name = "silu";
  static constexpr std::uint32_t threads = 256;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const { return 0; }
  std::uint64_t bytes() const { return 12ULL * rows * n; }
  std::uint64_t flops() const { return 16ULL * rows * n; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const float* gate = x + std::size_t{b.x} * 2 * n;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < n; i += threads)
        out[std::size_t{b.x} * n + i] = gate[i] / (1.0F + exp_body(0.0F - gate[i])) * gate[n + i];
    });
  }
};

/// Softmax over all experts, the `top` largest (lower expert first among equals), optionally
/// renormalised; written in ascending order of expert.
struct route_kernel {
  const float* logits = nullptr; ///< [rows][ld]
  std::uint32_t rows = 0, experts = 0, ld = 0, top = 0;
  bool renormalise = false;
  std::uint32_t* expert = nullptr; ///< [rows][top]
  float* weight = nullptr;         ///< [rows][top]

  static constexpr const char* name = "route";
  static constexpr std::uint32_t threads = 128;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const {
    return (experts + threads + 16 + top) * sizeof(float) + (threads + top) * sizeof(std::uint32_t)
           + 80;
  }
  std::uint64_t bytes() const { return 4ULL * rows * (experts + 2 * top); }
  std::uint64_t flops() const { return std::uint64_t{rows} * experts * (20 + top); }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const float* row = logits + std::size_t{b.x} * ld;
    float* probability = b.template shared<float>(experts);
    float* best = b.template shared<float>(threads);
    float* partial = b.template shared<float>(16);
    float* chosen_p = b.template shared<float>(top);
    auto* which = b.template shared<std::uint32_t>(threads);
    auto* chosen = b.template shared<std::uint32_t>(top);
    b.each([&](std::uint32_t t) {
      float most = row[0];
      for (std::uint32_t i = t; i < experts; i += threads)
        most = row[i] > most ? row[i] : most;
      best[t] = most;
    });
    for (std::uint32_t width = threads / 2; width > 0; width /= 2)
      b.each([&](std::uint32_t t) {
        if (t < width) best[t] = best[t] > best[t + width] ? best[t] : best[t + width];
      });
    const float shift = best[0];
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < experts; i += threads)
        probability[i] = exp_body(row[i] - shift);
    });
    b.each([&](std::uint32_t t) {
      float sum = 0;
      for (std::uint32_t i = t; t < 16 && i < experts; i += 16)
        sum = sum + probability[i];
      if (t < 16) partial[t] = sum;
    });
    b.each([&](std::uint32_t t) {
      if (t == 0) sum_sixteen(partial);
    });
    const float sum = partial[0];
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < experts; i += threads)
        probability[i] = probability[i] / sum;
    });
    for (std::uint32_t i = 0; i < top; ++i)
      choose_next(b, i, probability, best, which, chosen_p, chosen);
    b.each([&](std::uint32_t t) {
      if (t == 0) write_ascending(b.x, chosen_p, chosen);
    });
  }

  /// The largest probability that is left; its place is taken out with -1.
  template <class Block>
  ADAFLOOR_BODY void choose_next(Block& b, std::uint32_t i, float* probability, float* best,
                                 std::uint32_t* which, float* chosen_p,
                                 std::uint32_t* chosen) const {
    b.each([&](std::uint32_t t) {
      float most = -1;
      std::uint32_t at = 0;
      for (std::uint32_t e = t; e < experts; e += threads)
        if (probability[e] > most) {
          most = probability[e];
          at = e;
        }
      best[t] = most;
      which[t] = at;
    });
    keep_highest(b, threads, best, which);
    b.each([&](std::uint32_t t) {
      if (t != 0) return;
      chosen_p[i] = best[0];
      chosen[i] = which[0];
      probability[which[0]] = -1;
    });
  }

  ADAFLOOR_BODY void write_ascending(std::uint32_t row, float* p, std::uint32_t* e) const {
    float total = 1.0F;
    if (renormalise) {
      total = 0.0F;
      for (std::uint32_t i = 0; i < top; ++i)
        total = total + p[i];
    }
    for (std::uint32_t i = 1; i < top; ++i)
      for (std::uint32_t j = i; j > 0 && e[j] < e[j - 1]; --j) {
        const std::uint32_t at = e[j];
        const float probability = p[j];
        e[j] = e[j - 1];
        p[j] = p[j - 1];
        e[j - 1] = at;
        p[j - 1] = probability;
      }
    for (std::uint32_t i = 0; i < top; ++i) {
      expert[std::size_t{row} * top + i] = e[i];
      weight[std::size_t{row} * top + i] = p[i] / total;
    }
  }
};

/// Sorts (row, expert) pairs by expert, rows in order within one: where each expert's rows begin,
/// where each pair went and which row each place holds.
struct permute_kernel {
  const std::uint32_t* expert = nullptr; ///< [pairs]
  std::uint32_t pairs = 0, top = 0, experts = 0;
  std::uint32_t* offsets = nullptr; ///< [experts + 1]
  std::uint32_t* place = nullptr;   ///< by pair
  std::uint32_t* row = nullptr;     ///< by place

  static constexpr const char* name = "permute";
  static constexpr std::uint32_t threads = 256;
  block_shape grid() const { return {}; }
  std::size_t shared_bytes() const { return experts * sizeof(std::uint32_t); }
  std::uint64_t bytes() const { return 12ULL * pairs; }
  std::uint64_t flops() const { return 0; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    auto* first = b.template shared<std::uint32_t>(experts);
    b.each([&](std::uint32_t t) {
      for (std::uint32_t e = t; e < experts; e += threads) {
        std::uint32_t count = 0;
        for (std::uint32_t i = 0; i < pairs; ++i)
          count += expert[i] == e ? 1 : 0;
        first[e] = count;
      }
    });
    b.each([&](std::uint32_t t) {
      if (t != 0) return;
      std::uint32_t at = 0;
      for (std::uint32_t e = 0; e < experts; ++e) {
        const std::uint32_t count = first[e];
        offsets[e] = first[e] = at;
        at += count;
      }
      offsets[experts] = at;
    });
    b.each([&](std::uint32_t t) {
      for (std::uint32_t e = t; e < experts; e += threads) {
        std::uint32_t at = first[e];
        for (std::uint32_t i = 0; i < pairs; ++i)
          if (expert[i] == e) {
            place[i] = at;
            row[at++] = i / top;
          }
      }
    });
  }
};

/// x[r] += sum of weight * output over the row's pairs, in their order (ascending expert).
struct combine_kernel {
  const float* outputs = nullptr;       ///< [place][stride]
  const std::uint32_t* place = nullptr; ///< [rows][top]
  const float* weight = nullptr;        ///< [rows][top]
  std::uint32_t rows = 0, top = 0, stride = 0;
  float* x = nullptr; ///< [rows][stride]

  static constexpr const char* name = "combine";
  static constexpr std::uint32_t threads = 256;
  block_shape grid() const { return {rows, 1, 1}; }
  std::size_t shared_bytes() const { return 0; }
  std::uint64_t bytes() const { return 4ULL * rows * stride * (top + 2); }
  std::uint64_t flops() const { return 2ULL * rows * stride * top; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::size_t first = std::size_t{b.x} * top;
    b.each([&](std::uint32_t t) {
      for (std::uint32_t i = t; i < stride; i += threads) {
        float sum = 0;
        for (std::uint32_t j = 0; j < top; ++j)
          sum = fmaf(weight[first + j], outputs[std::size_t{place[first + j]} * stride + i], sum);
        x[std::size_t{b.x} * stride + i] = x[std::size_t{b.x} * stride + i] + sum;
      }
    });
  }
};

/// Elements from one storage type to another: experts and pages between the float32 of the wire and
/// what the device keeps. Page i of `pages` (or `flat` alone) stands against bytes i of
/// `flat_wire`.
template <class K>
struct copy_kernel {
  K* const* pages = nullptr;
  std::uint32_t count = 0;
  std::size_t elements = 0; ///< of a page
  float* wire = nullptr;    ///< [count][elements]
  bool to_wire = false;

  static constexpr const char* name = "copy";
  static constexpr std::uint32_t threads = 256, per_block = 4096;
  block_shape grid() const {
    return {static_cast<std::uint32_t>((elements + per_block - 1) / per_block), count, 1};
  }
  std::size_t shared_bytes() const { return 0; }
  std::uint64_t bytes() const { return std::uint64_t{count} * elements * (sizeof(K) + 4); }
  std::uint64_t flops() const { return 0; }
  template <class Block>
  ADAFLOOR_BODY void operator()(Block& b) const {
    const std::size_t first = std::size_t{b.x} * per_block;
    K* page = pages[b.y];
    float* flat = wire + b.y * elements;
    b.each([&](std::uint32_t t) {
      for (std::size_t i = first + t; i < first + per_block && i < elements; i += threads) {
        if (to_wire)
          flat[i] = widen(page[i]);
        else
          narrow(flat[i], page[i]);
      }
    });
  }
};

} // namespace adafloor
