// Times of cuBLAS for the products of one decode step of Qwen3-30B-A3B, to stand beside those of
// kernels_bench: bfloat16 on tensor cores, whose sums have an order of their own. Argument: rows.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace {

struct product {
  const char* what;
  int k, n, batch; ///< batch: experts, each with its share of the (row, expert) pairs
};

constexpr product products[] = {{"query, key, value", 2048, 5120, 1},
                                {"attention output", 4096, 2048, 1},
                                {"router", 2048, 128, 1},
                                {"experts, gate and up", 2048, 1536, 128},
                                {"experts, down", 768, 2048, 128},
                                {"head", 2048, 151936, 1}};

void must(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "cublas_bench: %s failed\n", what);
  std::exit(1);
}

void run(cublasHandle_t blas, const product& p, int rows) {
  const int m = p.batch == 1 ? rows : (rows * 8 + p.batch - 1) / p.batch;
  const size_t a = size_t(p.k) * p.n, b = size_t(p.k) * m, c = size_t(p.n) * m;
  void *weight = nullptr, *x = nullptr, *y = nullptr;
  must(cudaMalloc(&weight, a * p.batch * 2) == cudaSuccess, "cudaMalloc");
  must(cudaMalloc(&x, b * p.batch * 2) == cudaSuccess, "cudaMalloc");
  must(cudaMalloc(&y, c * p.batch * 4) == cudaSuccess, "cudaMalloc");
  cudaMemset(weight, 0, a * p.batch * 2);
  cudaMemset(x, 0, b * p.batch * 2);
  const float one = 1, zero = 0;
  const auto once = [&] {
    must(cublasGemmStridedBatchedEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, p.n, m, p.k, &one, weight,
                                    CUDA_R_16BF, p.k, (long long)a, x, CUDA_R_16BF, p.k,
                                    (long long)b, &zero, y, CUDA_R_32F, p.n, (long long)c, p.batch,
                                    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)
             == CUBLAS_STATUS_SUCCESS,
         p.what);
  };
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  once();
  cudaEventRecord(from);
  for (int i = 0; i < 20; ++i)
    once();
  cudaEventRecord(to);
  must(cudaEventSynchronize(to) == cudaSuccess, "cudaEventSynchronize");
  float ms = 0;
  cudaEventElapsedTime(&ms, from, to);
  std::printf("%-26s %8d rows %12.2f us\n", p.what, m, ms * 1000 / 20);
  cudaFree(weight);
  cudaFree(x);
  cudaFree(y);
}

} // namespace

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 64;
  cublasHandle_t blas = nullptr;
  must(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
  for (const auto& p : products)
    run(blas, p, rows);
  cublasDestroy(blas);
  return 0;
}
