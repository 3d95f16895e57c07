#include "gpu/qwen3.hpp"

#include "gpu/block.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {

namespace {

void keep(float x, float& to) {
  to = x;
}
void keep(float x, std::uint16_t& to) {
  bfloat16 narrowed;
  narrow(x, narrowed);
  to = narrowed.bits;
}

} // namespace

qwen3_forward::qwen3_forward(const model_config& config, const qwen3_weights& weights)
  : config_(config), weights_(weights), hidden_(config.hidden_size),
    stride_(round_up_lanes(hidden_)), heads_(config.num_attention_heads),
    kv_heads_(config.num_key_value_heads), head_dim_(config.head_dim), q_width_(heads_ * head_dim_),
    qkv_columns_(packed_shape_of(hidden_, q_width_ + 2 * kv_heads_ * head_dim_).columns()),
    vocabulary_stride_(packed_shape_of(hidden_, config.vocab_size).columns()) {}

void qwen3_forward::embed(const std::vector<forward_row>& rows) {
  x_.resize(rows.size() * stride_);
  h_.resize(rows.size() * stride_);
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::copy_n(weights_.embedding.data() + static_cast<std::size_t>(rows[r].token) * stride_,
                stride_, x_.data() + r * stride_);
}

void qwen3_forward::norm_rows(const float_buffer& weight, std::size_t rows) {
  for (std::size_t r = 0; r < rows; ++r)
    kernels().rms_norm(x_.data() + r * stride_, weight.data(), hidden_, config_.rms_norm_eps,
                       h_.data() + r * stride_);
}

template <class K>
void qwen3_forward::store_keys_values(const forward_row& row, const float* qkv, std::size_t layer,
                                      kv_pool& pool) const {
  auto slot = row.position % kv_page_tokens;
  auto page = row.pages[row.position / kv_page_tokens];
  auto value_stride = pool.layout().padded_head_dim();
  for (std::size_t head = 0; head < kv_heads_; ++head) {
    K* block = pool.block<K>(page, layer, head);
    const float* key = qkv + q_width_ + head * head_dim_;
    const float* value = key + kv_heads_ * head_dim_;
    for (std::size_t i = 0; i < head_dim_; ++i)
      keep(key[i], block[i * kv_page_tokens + slot]);
    for (std::size_t i = 0; i < head_dim_; ++i)
      keep(value[i], block[head_dim_ * kv_page_tokens + slot * value_stride + i]);
  }
}

template <class K>
void qwen3_forward::attend_row(const forward_row& row, const float* qkv, std::size_t layer,
                               kv_pool& pool, float* out) {
  auto positions = static_cast<std::size_t>(row.position) + 1;
  auto pages = (positions + kv_page_tokens - 1) / kv_page_tokens;
  auto group = heads_ / kv_heads_, padded = pool.layout().padded_head_dim();
  auto& blocks = std::get<std::vector<const K*>>(blocks_);
  blocks.resize(pages);
  scores_.resize(std::max(scores_.size(), group * pages * kv_page_tokens));
  head_out_.resize(group * padded);
  for (std::size_t head = 0; head < kv_heads_; ++head) {
    for (std::size_t p = 0; p < pages; ++p)
      blocks[p] = pool.block<K>(row.pages[p], layer, head);
    float* direct = out + head * group * head_dim_;
    bool fits = padded == head_dim_;
    const attention_task<K> task{qkv + head * group * head_dim_,
                                 head_dim_,
                                 group,
                                 blocks.data(),
                                 positions,
                                 head_dim_,
                                 scores_.data(),
                                 fits ? direct : head_out_.data(),
                                 padded};
    if constexpr (std::is_same_v<K, float>)
      kernels().attention(task);
    else
      kernels().attention_half(task);
    for (std::size_t g = 0; !fits && g < group; ++g)
      std::copy_n(head_out_.data() + g * padded, head_dim_, direct + g * head_dim_);
  }
}

template <class K>
void qwen3_forward::attend_pages(const std::vector<forward_row>& rows, std::size_t layer,
                                 kv_pool& pool) {
  for (std::size_t r = 0; r < rows.size(); ++r)
    store_keys_values<K>(rows[r], qkv_.data() + r * qkv_columns_, layer, pool);
  for (std::size_t r = 0; r < rows.size(); ++r)
    attend_row<K>(rows[r], qkv_.data() + r * qkv_columns_, layer, pool,
                  mixed_.data() + r * q_width_);
}

void qwen3_forward::attend(const std::vector<forward_row>& rows, std::size_t layer, kv_pool& pool) {
  const auto& k = kernels();
  const auto& w = weights_.layers[layer];
  auto half = head_dim_ / 2;
  float scale = 1.0F / std::sqrt(static_cast<float>(head_dim_));
  qkv_.resize(rows.size() * qkv_columns_);
  mixed_.resize(rows.size() * q_width_);
  k.gemm(h_.data(), stride_, rows.size(), w.qkv.data(), {hidden_, qkv_columns_ / lanes},
         qkv_.data(), qkv_columns_);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    float* qkv = qkv_.data() + r * qkv_columns_;
    const float* cosine = weights_.cosine.data() + rows[r].position * half;
    const float* sine = weights_.sine.data() + rows[r].position * half;
    for (std::size_t head = 0; head < heads_ + kv_heads_; ++head)
      k.norm_rotate(qkv + head * head_dim_, head < heads_ ? w.q_norm.data() : w.k_norm.data(),
                    head_dim_, config_.rms_norm_eps, cosine, sine, head < heads_ ? scale : 1.0F);
  }
  if (pool.layout().type == kv_dtype::bfloat16)
    attend_pages<std::uint16_t>(rows, layer, pool);
  else
    attend_pages<float>(rows, layer, pool);
  projected_.resize(rows.size() * stride_);
  k.gemm(mixed_.data(), q_width_, rows.size(), w.o.data(), packed_shape_of(q_width_, hidden_),
         projected_.data(), stride_);
  k.add(x_.data(), projected_.data(), rows.size() * stride_);
}

void qwen3_forward::dense_feed_forward(const qwen3_layer& layer, std::size_t rows) {
  const auto& k = kernels();
  auto half = packed_shape_of(hidden_, config_.intermediate_size);
  packed_shape both{hidden_, 2 * half.panels};
  inner_.resize(rows * both.columns());
  activated_.resize(rows * half.columns());
  projected_.resize(rows * stride_);
  k.gemm(h_.data(), stride_, rows, layer.gate_up.data(), both, inner_.data(), both.columns());
  for (std::size_t r = 0; r < rows; ++r)
    k.silu_mul(inner_.data() + r * both.columns(),
               inner_.data() + r * both.columns() + half.columns(), half.columns(),
               activated_.data() + r * half.columns());
  k.gemm(activated_.data(), half.columns(), rows, layer.down.data(),
         packed_shape_of(config_.intermediate_size, hidden_), projected_.data(), stride_);
  k.add(x_.data(), projected_.data(), rows * stride_);
}

void qwen3_forward::project_logits(const std::vector<forward_row>& rows) {
  std::size_t wanted = 0;
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r].wants_logits)
      kernels().rms_norm(x_.data() + r * stride_, weights_.final_norm.data(), hidden_,
                         config_.rms_norm_eps, h_.data() + wanted++ * stride_);
  logits_.resize(wanted * vocabulary_stride_);
  if (wanted > 0)
    kernels().gemm(h_.data(), stride_, wanted, weights_.head.data(),
                   {hidden_, vocabulary_stride_ / lanes}, logits_.data(), vocabulary_stride_);
}

result<void> qwen3_forward::run(const std::vector<forward_row>& rows, kv_pool& pool,
                                expert_parallel& experts) {
  if (!config_.moe()) {
    if (auto ok = experts.headers_only(); !ok) return ok;
    if (rows.empty()) return {};
  }
  embed(rows);
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const auto& w = weights_.layers[layer];
    if (!rows.empty()) {
      norm_rows(w.input_norm, rows.size());
      attend(rows, layer, pool);
      norm_rows(w.post_norm, rows.size());
    }
    if (config_.moe()) {
      if (auto ok = experts.layer(layer, w.router.data(), h_.data(), rows.size(), x_.data()); !ok)
        return ok;
    } else {
      dense_feed_forward(w, rows.size());
    }
  }
  project_logits(rows);
  return {};
}

} // namespace adafloor
