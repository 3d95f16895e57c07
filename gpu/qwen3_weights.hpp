#pragma once
// Dense weights of a Qwen3 model as the kernels want them.
#include "gpu/kernels.hpp"
#include "gpu/model_config.hpp"
#include "gpu/safetensors.hpp"

#include <map>
#include <string>
#include <vector>

namespace adafloor {

struct qwen3_layer {
  float_buffer input_norm, post_norm; ///< [padded hidden]
  float_buffer q_norm, k_norm;        ///< [padded head_dim]
  float_buffer qkv;                   ///< packed [hidden][(q heads + 2 kv heads) * head_dim]
  float_buffer o;                     ///< packed [q heads * head_dim][hidden]
  float_buffer router;                ///< MoE: packed [hidden][experts]
  float_buffer gate_up, down;         ///< dense: as expert_layout of one layer
};

struct qwen3_weights {
  float_buffer embedding; ///< [vocabulary][padded hidden]
  std::vector<qwen3_layer> layers;
  float_buffer final_norm;
  float_buffer head;         ///< packed [hidden][vocabulary]
  float_buffer cosine, sine; ///< [max positions][head_dim / 2]
  std::uint64_t bytes() const;
};

/// Every tensor that a checkpoint of this architecture must have, with its shape; experts included.
std::map<std::string, std::vector<std::uint64_t>> expected_tensors(const model_config& config);

/// The checkpoint has exactly the expected tensors (a tied head and rotary buffers may be there
/// besides). Errors: bad_input naming file, tensor and shapes.
result<void> verify_checkpoint(const checkpoint& source, const model_config& config);

/// The configuration of a folder whose checkpoint was verified; of the weights only headers are
/// read. Errors: those of read_model_config and verify_checkpoint.
result<model_config> read_checkpoint_config(const std::string& dir);

/// Reads everything but the experts; adds the digest of each tensor read to `digests`.
result<qwen3_weights> read_dense_weights(const checkpoint& source, const model_config& config,
                                         std::map<std::string, std::uint64_t>* digests);

} // namespace adafloor
