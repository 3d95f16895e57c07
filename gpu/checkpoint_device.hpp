#pragma once
// What all devices that compute have in common: they read Hugging Face folders into host memory.
#include "gpu/device.hpp"

namespace adafloor {

class checkpoint_device : public device {
public:
  result<model_config> read_config(const std::string& dir) const override {
    return read_checkpoint_config(dir);
  }
  result<qwen3_weights> read_dense(const std::string& dir, const model_config& config,
                                   std::map<std::string, std::uint64_t>* digests) const override {
    auto source = checkpoint::open(dir);
    if (!source) return tl::unexpected(source.error());
    return read_dense_weights(*source, config, digests);
  }
  result<std::map<std::uint32_t, expert_ptr>>
  read_experts(const std::string& dir, const model_config& config,
               const std::vector<std::uint32_t>& experts,
               std::map<std::string, std::uint64_t>* digests) const override {
    auto source = checkpoint::open(dir);
    if (!source) return tl::unexpected(source.error());
    std::map<std::uint32_t, expert_ptr> read;
    for (auto expert : experts) {
      auto weights = read_expert(*source, config, expert, digests);
      if (!weights) return tl::unexpected(weights.error());
      read.emplace(expert, std::move(*weights));
    }
    return read;
  }
  kv_layout pages(const model_config& c, kv_dtype type) const override {
    return {c.num_hidden_layers, c.num_key_value_heads, c.head_dim, type};
  }
};

} // namespace adafloor
