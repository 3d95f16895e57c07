#pragma once
// Where kernels run and their memory lies: a stream of a GPU (the CUDA plug-in), or this machine's
// processor, which executes the very same bodies block by block.
#include "gpu/block_attention.hpp"
#include "gpu/block_gemm.hpp"
#include "gpu/block_rows.hpp"
#include "gpu/block_sample.hpp"
#include "messages/result.hpp"

#include <memory>
#include <string>
#include <variant>

namespace adafloor {

using any_kernel =
    std::variant<embed_kernel<float>, embed_kernel<bfloat16>, rms_norm_kernel,
                 gemm_kernel<float, 1>, gemm_kernel<float, 4>, gemm_kernel<bfloat16, 1>,
                 gemm_kernel<bfloat16, 4>, rotate_kernel<float>, rotate_kernel<bfloat16>,
                 scores_kernel<float>, scores_kernel<bfloat16>, softmax_kernel, mix_kernel<float>,
                 mix_kernel<bfloat16>, silu_kernel, route_kernel, permute_kernel, combine_kernel,
                 copy_kernel<float>, copy_kernel<bfloat16>, sample_kernel>;

/// Calls are in order, as if each waited for the one before. Thread: one at a time.
class launcher {
public:
  virtual ~launcher() = default;
  /// "NVIDIA H200", "this processor".
  virtual std::string name() const = 0;

  /// 256-byte aligned, contents undefined. Errors: refused, with figures, when memory is short.
  virtual result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// What was released goes back to the system, for others to use.
  virtual void trim() {}

  /// Errors of these: internal, with what the device said; after one the launcher is of no use.
  virtual result<void> launch(const any_kernel& kernel) = 0;
  /// `from` may be reused after return.
  virtual result<void> upload(void* to, const void* from, std::size_t bytes) = 0;
  /// Returns when the bytes are there, and so when all before is done.
  virtual result<void> download(void* to, const void* from, std::size_t bytes) = 0;

  /// Kernels launched between `begin_graph` and `end_graph` may be kept under `key` and run again
  /// by `replay`; false: nothing is kept, launch them. A graph holds addresses: `forget_graphs`
  /// before any memory that it uses is released, and after every transition.
  virtual bool replay(std::uint64_t /*key*/) { return false; }
  virtual result<void> begin_graph(std::uint64_t /*key*/) { return {}; }
  virtual result<void> end_graph() { return {}; }
  virtual void forget_graphs() {}
};

/// Order in which the threads of a block run between two barriers. Results do not depend on it
/// unless a body races.
enum class thread_order { ascending, descending, interleaved };

/// Executes the bodies on this processor: slow, for tests.
std::unique_ptr<launcher> make_host_launcher(thread_order order = thread_order::ascending);

} // namespace adafloor
