// What each kernel of a GPU has to move and to compute at the shapes of Qwen3-30B-A3B, what an H200
// needs for that at least, and, where there is a GPU, what it takes. Weights are bfloat16, KV pages
// float32, one rank has all experts.
//
//     kernels_bench [rows] [positions of each row] [prefill]
#include "gpu/kernels.hpp"
#include "gpu/plugin.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace adafloor;

namespace {

constexpr double h200_bytes_per_second = 4.8e12; // NVIDIA's data sheet: HBM3e
constexpr double h200_flops = 67e12;             // likewise: float32, no tensor cores

constexpr std::uint32_t layers = 48, hidden = 2048, heads = 32, kv_heads = 4, head_dim = 128,
                        experts = 128, top = 8, inner = 768, vocabulary = 151936;

using W = bfloat16;

void must(const result<void>& done) {
  if (done) return;
  std::fprintf(stderr, "%s\n", done.error().text.c_str());
  std::exit(1);
}

/// Memory of the device, zero, and numbers that kernels look at; null without a device.
class bench_memory {
public:
  explicit bench_memory(launcher* where) : where_(where) {}
  template <class T>
  T* zeros(std::size_t count) {
    return put(std::vector<T>(count));
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    if (where_ == nullptr) return nullptr;
    auto memory = where_->allocate(values.size() * sizeof(T));
    if (!memory) must(tl::unexpected(memory.error()));
    must(where_->upload(*memory, values.data(), values.size() * sizeof(T)));
    return static_cast<T*>(*memory);
  }

private:
  launcher* where_;
};

struct bench_row {
  std::string what;
  std::uint32_t launches; ///< per step
  any_kernel kernel;
};

struct bench_shape {
  std::uint32_t rows, positions;
  bool prefill;
};

template <int R>
gemm_kernel<W, R> gemm_of(const bench_shape& s, std::uint32_t k, std::uint32_t n, bench_memory& m) {
  gemm_kernel<W, R> g;
  g.x = m.zeros<float>(std::size_t{s.rows} * k);
  g.ldx = k;
  g.rows = s.rows;
  g.weight = m.zeros<W>(std::size_t{k} * n);
  g.k = k;
  g.panels = n / 16;
  g.y = m.zeros<float>(std::size_t{s.rows} * n);
  g.ldy = n;
  return g;
}

any_kernel dense(const bench_shape& s, std::uint32_t k, std::uint32_t n, bench_memory& m) {
  if (s.rows <= 16) return gemm_of<1>(s, k, n, m);
  return gemm_of<4>(s, k, n, m);
}

/// All experts, each with its share of the pairs.
any_kernel grouped(const bench_shape& s, std::uint32_t k, std::uint32_t n, bench_memory& m) {
  const std::uint32_t pairs = s.rows * top;
  const bench_shape all{pairs, s.positions, s.prefill};
  std::vector<std::uint32_t> offsets;
  std::vector<const W*> weights;
  auto* first = m.zeros<W>(std::size_t{experts} * k * n);
  for (std::uint32_t e = 0; e <= experts; ++e) {
    offsets.push_back(pairs * e / experts);
    weights.push_back(first == nullptr ? nullptr : first + std::size_t{e} * k * n);
  }
  const auto with = [&](auto g) -> any_kernel {
    g.segments = experts;
    g.offsets = m.put(offsets);
    g.segment_weight = m.put(weights);
    return g;
  };
  if (pairs <= 16 * experts) return with(gemm_of<1>(all, k, n, m));
  return with(gemm_of<4>(all, k, n, m));
}

std::vector<bench_row> attention(const bench_shape& s, bench_memory& m) {
  const auto last = s.positions - 1, tile_rows = s.prefill ? 16U : 1U;
  const auto pages = divide_up(s.positions, page_positions);
  const std::size_t page_floats =
      std::size_t{kv_heads} * page_positions * 2 * head_dim; // of one layer
  std::vector<std::uint32_t> position(s.rows), table(s.rows), tile;
  std::vector<float*> page_table;
  const auto requests = divide_up(s.rows, tile_rows);
  auto* first = m.zeros<float>(requests * pages * page_floats);
  for (std::size_t p = 0; p < std::size_t{requests} * pages; ++p)
    page_table.push_back(first == nullptr ? nullptr : first + p * page_floats);
  for (std::uint32_t r = 0; r < s.rows; ++r) {
    position[r] = last - (s.prefill ? tile_rows - 1 - r % tile_rows : 0);
    table[r] = r / tile_rows * pages;
    if (r % tile_rows == 0) tile.push_back(r);
  }
  tile.push_back(s.rows);
  const std::uint32_t width = (heads + 2 * kv_heads) * head_dim, stride = pages * page_positions;
  const paged_rows<float> at{
      m.put(position), m.put(table), m.put(page_table), heads, kv_heads, head_dim, 0};
  auto* qkv = m.zeros<float>(std::size_t{s.rows} * width);
  auto* scores = m.zeros<float>(std::size_t{s.rows} * heads * stride);
  auto* sums = m.zeros<float>(std::size_t{s.rows} * heads);
  auto* half = m.zeros<float>(std::size_t{s.positions} * head_dim / 2);
  auto* norm = m.zeros<float>(head_dim);
  auto* out = m.zeros<float>(std::size_t{s.rows} * heads * head_dim);
  return {
      {"q/k norm, rotation, store", layers,
       rotate_kernel<float>{at, qkv, width, s.rows, norm, norm, half, half, 1e-6F, 1}},
      {"attention scores", layers,
       scores_kernel<float>{at, qkv, width, m.put(tile),
                            static_cast<std::uint32_t>(tile.size()) - 1, s.positions, scores,
                            stride, 0}},
      {"attention softmax", layers,
       softmax_kernel{at.position, heads, s.rows, 0, scores, stride, sums, s.positions}},
      {"attention values", layers,
       mix_kernel<float>{at, s.rows, 0, scores, stride, sums, out, heads * head_dim, s.positions}}};
}

std::vector<bench_row> kernels_of(const bench_shape& s, bench_memory& m) {
  const auto rows = s.rows, pairs = rows * top;
  auto* x = m.zeros<float>(std::size_t{rows} * hidden);
  auto* h = m.zeros<float>(std::size_t{rows} * hidden);
  auto* norm = m.zeros<float>(hidden);
  auto* logits = m.zeros<float>(std::size_t{rows} * experts);
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < pairs; ++i)
    chosen.push_back(i * 37 % experts);
  auto* expert = m.put(chosen);
  auto* weight = m.zeros<float>(pairs);
  auto* offsets = m.zeros<std::uint32_t>(experts + 1);
  auto* place = m.zeros<std::uint32_t>(pairs);
  auto* row = m.zeros<std::uint32_t>(pairs);
  auto* outputs = m.zeros<float>(std::size_t{pairs} * hidden);
  auto* both = m.zeros<float>(std::size_t{pairs} * 2 * inner);
  const std::uint32_t sampled = s.prefill ? 1 : rows;
  std::vector<bench_row> all = {
      {"embedding", 1,
       embed_kernel<W>{m.zeros<W>(std::size_t{1024} * hidden), m.zeros<std::uint32_t>(rows), rows,
                       hidden, x}},
      {"RMS norm", 2 * layers + 1,
       rms_norm_kernel{x, norm, nullptr, rows, hidden, hidden, 1e-6F, h}},
      {"query, key, value", layers, dense(s, hidden, (heads + 2 * kv_heads) * head_dim, m)}};
  for (auto& a : attention(s, m))
    all.push_back(a);
  const bench_shape head{sampled, s.positions, s.prefill};
  const std::vector<bench_row> rest = {
      {"attention output", layers, dense(s, heads * head_dim, hidden, m)},
      {"router", layers, dense(s, hidden, experts, m)},
      {"softmax and top 8", layers,
       route_kernel{logits, rows, experts, experts, top, true, expert, weight}},
      {"permutation", layers, permute_kernel{expert, pairs, top, experts, offsets, place, row}},
      {"experts, gate and up", layers, grouped(s, hidden, 2 * inner, m)},
      {"experts, SiLU", layers,
       silu_kernel{both, pairs, inner, m.zeros<float>(std::size_t{pairs} * inner)}},
      {"experts, down", layers, grouped(s, inner, hidden, m)},
      {"combination", layers, combine_kernel{outputs, place, weight, rows, top, hidden, x}},
      {"head", 1, dense(head, hidden, vocabulary, m)},
      {"sampling", 1,
       sample_kernel{m.zeros<float>(std::size_t{sampled} * vocabulary), sampled, vocabulary,
                     vocabulary, m.zeros<sample_row>(sampled), m.zeros<sampled_row>(sampled)}}};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

/// Seconds of one launch, mean of twenty after two for warmth.
double measure(launcher& l, const any_kernel& kernel, const void* probe) {
  float sink = 0;
  constexpr int times = 20;
  for (int i = 0; i < 2; ++i)
    must(l.launch(kernel));
  must(l.download(&sink, probe, sizeof sink));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i)
    must(l.launch(kernel));
  must(l.download(&sink, probe, sizeof sink));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
}

} // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < std::min(argc, 3); ++i)
    if (std::strspn(argv[i], "0123456789") != std::strlen(argv[i]) || std::atoi(argv[i]) < 1) {
      std::fprintf(
          stderr,
          "%s: '%s' is no number of at least 1\nkernels_bench [ROWS [POSITIONS [prefill]]]\n",
          argv[0], argv[i]);
      return 2;
    }
  const auto number = [&](int i, std::uint32_t otherwise) {
    return argc > i ? static_cast<std::uint32_t>(std::strtoul(argv[i], nullptr, 10)) : otherwise;
  };
  const bench_shape shape{number(1, 64), number(2, 4096), argc > 3};
  auto gpu = open_cuda(0);
  launcher* where = gpu ? gpu->get() : nullptr;
  std::printf("%s of %u rows, %u positions each; %s\n", shape.prefill ? "prefill" : "decode",
              shape.rows, shape.positions,
              gpu ? (*gpu)->name().c_str() : ("not measured: " + gpu.error().text).c_str());
  bench_memory memory(where);
  const void* probe = memory.zeros<float>(64);
  std::printf("%-26s %8s %10s %10s %12s %12s %7s\n", "kernel", "launches", "MB", "GFLOP", "H200 us",
              "measured us", "bound");
  double bound_step = 0, measured_step = 0;
  for (const auto& row : kernels_of(shape, memory)) {
    const auto bytes = std::visit([](const auto& k) { return double(k.bytes()); }, row.kernel);
    const auto flops = std::visit([](const auto& k) { return double(k.flops()); }, row.kernel);
    const auto by_memory = bytes / h200_bytes_per_second, by_arithmetic = flops / h200_flops;
    const auto bound = std::max(by_memory, by_arithmetic);
    const auto took = where ? measure(*where, row.kernel, probe) : 0;
    bound_step += bound * row.launches;
    measured_step += took * row.launches;
    std::printf("%-26s %8u %10.2f %10.3f %12.2f ", row.what.c_str(), row.launches, bytes / 1e6,
                flops / 1e9, bound * 1e6);
    if (where)
      std::printf("%12.2f ", took * 1e6);
    else
      std::printf("%12s ", "-");
    std::printf("%7s\n", by_memory >= by_arithmetic ? "memory" : "flops");
  }
  std::printf("step: at least %.2f ms on an H200", bound_step * 1e3);
  if (where) std::printf(", measured %.2f ms", measured_step * 1e3);
  std::printf(" (%.0f tokens/s%s)\n", shape.rows / (where ? measured_step : bound_step),
              where ? "" : " at most");
  return 0;
}
