#pragma once
// The forward pass of Qwen3 and Qwen3-MoE over a batch of rows of any requests and positions.
#include "gpu/device.hpp"

#include <tuple>
#include <vector>

namespace adafloor {

class qwen3_forward {
public:
  qwen3_forward(const model_config& config, const qwen3_weights& weights);

  /// Computes the rows, writes their keys and values, and leaves logits of those that want them.
  /// An MoE model exchanges with the group that `experts` was begun with, rows or not.
  result<void> run(const std::vector<forward_row>& rows, kv_pool& pool, expert_parallel& experts);

  /// Row i of those that wanted logits, with padding.
  const float* logits(std::size_t i) const { return logits_.data() + i * vocabulary_stride_; }

private:
  void embed(const std::vector<forward_row>& rows);
  void attend(const std::vector<forward_row>& rows, std::size_t layer, kv_pool& pool);
  template <class K>
  void store_keys_values(const forward_row& row, const float* qkv, std::size_t layer,
                         kv_pool& pool) const;
  template <class K>
  void attend_row(const forward_row& row, const float* qkv, std::size_t layer, kv_pool& pool,
                  float* out);
  /// Keys and values of all rows to their pages, then each row's attention to mixed_.
  template <class K>
  void attend_pages(const std::vector<forward_row>& rows, std::size_t layer, kv_pool& pool);
  void norm_rows(const float_buffer& weight, std::size_t rows);
  void dense_feed_forward(const qwen3_layer& layer, std::size_t rows);
  void project_logits(const std::vector<forward_row>& rows);

  const model_config& config_;
  const qwen3_weights& weights_;
  std::size_t hidden_, stride_, heads_, kv_heads_, head_dim_, q_width_, qkv_columns_;
  std::size_t vocabulary_stride_;
  float_buffer x_, h_, qkv_, mixed_, projected_, inner_, activated_, logits_, scores_, head_out_;
  std::tuple<std::vector<const float*>, std::vector<const std::uint16_t*>> blocks_; // by KV type
};

} // namespace adafloor
