#pragma once
// config.json and generation_config.json of a Hugging Face model folder.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <string>
#include <vector>

namespace adafloor {

/// Shape of a Qwen3 model; names follow config.json.
struct model_config {
  std::uint32_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  std::uint32_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  std::uint32_t intermediate_size = 0; ///< dense feed-forward; unused by an MoE model
  std::uint32_t max_position_embeddings = 0;
  float rms_norm_eps = 0, rope_theta = 0;
  bool tie_word_embeddings = false;
  std::uint32_t num_experts = 0; ///< 0: dense (Qwen3ForCausalLM)
  std::uint32_t num_experts_per_tok = 0, moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  bool half_experts = false; ///< the checkpoint has all experts as bfloat16; not of config.json
  std::vector<token_id> eos_tokens; ///< ascending
  std::uint32_t max_new_tokens = 0; ///< of generation_config.json; 0: not given

  bool moe() const { return num_experts > 0; }
  /// True when weights of `other` fit this model.
  bool same_architecture(const model_config& other) const;
};

/// Reads both files, not the weights; generation_config.json may be missing, then config.json's
/// eos_token_id holds. Errors: bad_input naming file, key, value and what is allowed. Keys that
/// change the arithmetic in a way this engine does not have (sliding window, shared experts, rope
/// scaling, quantisation, attention bias, dense layers in between) are refused by name.
result<model_config> read_model_config(const std::string& dir);

} // namespace adafloor
