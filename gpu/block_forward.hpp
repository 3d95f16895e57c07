#pragma once
// The forward pass of Qwen3 and Qwen3-MoE with the kernels of a launcher. Gives the bits of
// gpu/qwen3 on the CPU, operation by operation.
#include "gpu/device.hpp"
#include "gpu/launcher_memory.hpp"

namespace adafloor {

/// Rows of a prefill chunk that share the loads of a page.
constexpr std::uint32_t tile_rows_max = 16;

/// What a step is computed from, in the launcher's memory. One upload.
struct step_input {
  std::vector<std::uint32_t> token, position, table, tile, wanted;
  std::vector<sample_row> how; ///< by row of `wanted`
  std::vector<void*> pages;    ///< page tables, one after the other
  kv_dtype kv = kv_dtype::float32;
  std::uint32_t longest = 0; ///< positions of the longest row
  bool decode = false;       ///< each row is a tile of its own
  std::uint32_t rows() const { return static_cast<std::uint32_t>(token.size()); }
};

/// Thread: the engine's.
class block_forward {
public:
  virtual ~block_forward() = default;

  /// Weights to the launcher's memory. Errors: of the launcher; bad_input (mixed types).
  virtual result<void> load(const qwen3_weights& weights) = 0;
  /// From now on these experts are served; uploads what is new, releases what is gone.
  virtual result<void> serve(const std::vector<expert_ptr>& experts) = 0;
  /// Computes the rows; with `exchange`, MoE layers go through the group, rows or not.
  virtual result<void> run(const step_input& in, expert_parallel* exchange) = 0;
  /// (row, expert) pairs of other ranks or own ones, on their way through the group.
  virtual result<void> run_jobs(std::size_t layer, const std::vector<expert_job>& jobs) = 0;

  /// Of the last run.
  virtual const std::vector<sampled_row>& chosen() const = 0;
  virtual result<float> logit(std::size_t wanted, token_id token) = 0;
  virtual result<void> read_logits(std::size_t wanted, float_buffer* out) = 0;
};

/// Keeps weights as bfloat16 where the embedding's values allow it, else as float32. `config` and
/// `where` outlive it.
std::unique_ptr<block_forward> make_block_forward(launcher& where, const model_config& config,
                                                  const qwen3_weights& weights);

} // namespace adafloor
