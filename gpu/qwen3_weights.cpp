#include "gpu/qwen3_weights.hpp"

#include "gpu/expert_store.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {

namespace {

using shape_list = std::vector<std::uint64_t>;

std::string layer_prefix(std::uint32_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

/// Reads tensors one by one and keeps the first error.
class tensor_reader {
public:
  tensor_reader(const checkpoint& source, std::map<std::string, std::uint64_t>* digests)
    : source_(source), digests_(digests) {}

  std::vector<float> values(const std::string& name, const shape_list& shape) {
    if (failed()) return {};
    auto read = source_.read(name, shape);
    if (!read) {
      error_ = read.error();
      return {};
    }
    (*digests_)[name] = digest_of(source_.tensors().at(name));
    source_.release(name);
    return std::move(*read);
  }
  /// [n], zero behind.
  float_buffer vector(const std::string& name, std::uint64_t n) {
    auto flat = values(name, {n});
    float_buffer padded(round_up_lanes(n), 0.0F);
    std::copy(flat.begin(), flat.end(), padded.begin());
    return padded;
  }
  /// Matrices [n_i][k] stacked by output, packed; no second copy of a large one is made.
  float_buffer packed(const std::vector<std::pair<std::string, std::uint64_t>>& parts,
                      std::uint64_t k) {
    std::uint64_t columns = 0;
    for (const auto& [name, n] : parts)
      columns += n;
    float_buffer out(packed_shape_of(k, columns).floats());
    std::vector<float> rest; // columns of a panel that is not full yet
    std::uint64_t done = 0;
    for (const auto& [name, n] : parts) {
      auto part = values(name, {n, k});
      if (failed()) return {};
      if (!rest.empty()) {
        rest.insert(rest.end(), part.begin(), part.end());
        part.swap(rest);
        rest.clear();
      }
      const auto here = part.size() / k;
      pack_weight(part.data(), here, k, out.data() + done * k);
      const auto whole = here / lanes * lanes;
      done += whole;
      rest.assign(part.begin() + static_cast<std::ptrdiff_t>(whole * k), part.end());
    }
    return out;
  }
  bool failed() const { return !error_.text.empty(); }
  const error& first_error() const { return error_; }

private:
  const checkpoint& source_;
  std::map<std::string, std::uint64_t>* digests_;
  error error_;
};

qwen3_layer read_layer(tensor_reader& in, const model_config& c, std::uint32_t index) {
  qwen3_layer layer;
  auto prefix = layer_prefix(index), attn = prefix + "self_attn.", mlp = prefix + "mlp.";
  std::uint64_t q = std::uint64_t{c.num_attention_heads} * c.head_dim;
  std::uint64_t kv = std::uint64_t{c.num_key_value_heads} * c.head_dim;
  layer.input_norm = in.vector(prefix + "input_layernorm.weight", c.hidden_size);
  layer.post_norm = in.vector(prefix + "post_attention_layernorm.weight", c.hidden_size);
  layer.q_norm = in.vector(attn + "q_norm.weight", c.head_dim);
  layer.k_norm = in.vector(attn + "k_norm.weight", c.head_dim);
  layer.qkv = in.packed(
      {{attn + "q_proj.weight", q}, {attn + "k_proj.weight", kv}, {attn + "v_proj.weight", kv}},
      c.hidden_size);
  layer.o = in.packed({{attn + "o_proj.weight", c.hidden_size}}, q);
  if (c.moe()) {
    layer.router = in.packed({{mlp + "gate.weight", c.num_experts}}, c.hidden_size);
    return layer;
  }
  layer.gate_up = in.packed({{mlp + "gate_proj.weight", c.intermediate_size}}, c.hidden_size);
  auto up = in.packed({{mlp + "up_proj.weight", c.intermediate_size}}, c.hidden_size);
  layer.gate_up.insert(layer.gate_up.end(), up.begin(), up.end());
  layer.down = in.packed({{mlp + "down_proj.weight", c.hidden_size}}, c.intermediate_size);
  return layer;
}

/// Angles are rounded to float32 where the reference implementation rounds them.
void fill_rotation(const model_config& c, qwen3_weights* weights) {
  std::size_t half = c.head_dim / 2;
  std::vector<float> frequency(half);
  for (std::size_t i = 0; i < half; ++i) {
    float exponent = static_cast<float>(2 * i) / static_cast<float>(c.head_dim);
    frequency[i] = 1.0F
                   / static_cast<float>(
                       std::pow(static_cast<double>(c.rope_theta), static_cast<double>(exponent)));
  }
  weights->cosine.resize(c.max_position_embeddings * half);
  weights->sine.resize(c.max_position_embeddings * half);
  for (std::size_t p = 0; p < c.max_position_embeddings; ++p)
    for (std::size_t i = 0; i < half; ++i) {
      float angle = static_cast<float>(p) * frequency[i];
      weights->cosine[p * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      weights->sine[p * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
}

bool may_be_there(const std::string& name, const model_config& config) {
  return (config.tie_word_embeddings && name == "lm_head.weight")
         || name.find("rotary_emb.inv_freq") != std::string::npos;
}

} // namespace

std::uint64_t qwen3_weights::bytes() const {
  auto floats = embedding.size() + final_norm.size() + head.size() + cosine.size() + sine.size();
  for (const auto& l : layers)
    floats += l.input_norm.size() + l.post_norm.size() + l.q_norm.size() + l.k_norm.size()
              + l.qkv.size() + l.o.size() + l.router.size() + l.gate_up.size() + l.down.size();
  return floats * sizeof(float);
}

std::map<std::string, shape_list> expected_tensors(const model_config& c) {
  std::map<std::string, shape_list> all;
  std::uint64_t hidden = c.hidden_size, inner = c.intermediate_size;
  std::uint64_t q = std::uint64_t{c.num_attention_heads} * c.head_dim;
  std::uint64_t kv = std::uint64_t{c.num_key_value_heads} * c.head_dim;
  all["model.embed_tokens.weight"] = {c.vocab_size, hidden};
  all["model.norm.weight"] = {hidden};
  if (!c.tie_word_embeddings) all["lm_head.weight"] = {c.vocab_size, hidden};
  for (std::uint32_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    auto prefix = layer_prefix(layer), attn = prefix + "self_attn.", mlp = prefix + "mlp.";
    all[prefix + "input_layernorm.weight"] = {hidden};
    all[prefix + "post_attention_layernorm.weight"] = {hidden};
    all[attn + "q_norm.weight"] = all[attn + "k_norm.weight"] = {c.head_dim};
    all[attn + "q_proj.weight"] = {q, hidden};
    all[attn + "k_proj.weight"] = all[attn + "v_proj.weight"] = {kv, hidden};
    all[attn + "o_proj.weight"] = {hidden, q};
    if (c.moe()) {
      all[mlp + "gate.weight"] = {c.num_experts, hidden};
    } else {
      all[mlp + "gate_proj.weight"] = all[mlp + "up_proj.weight"] = {inner, hidden};
      all[mlp + "down_proj.weight"] = {hidden, inner};
    }
  }
  for (std::uint32_t expert = 0; expert < c.num_experts; ++expert)
    for (auto& [name, shape] : expert_tensors(c, expert))
      all.emplace(std::move(name), std::move(shape));
  return all;
}

result<void> verify_checkpoint(const checkpoint& source, const model_config& config) {
  auto expected = expected_tensors(config);
  for (const auto& [name, shape] : expected)
    if (auto found = source.find(name, shape); !found) return tl::unexpected(found.error());
  for (const auto& [name, view] : source.tensors())
    if (expected.count(name) == 0 && !may_be_there(name, config))
      return bad_input(view.file + ": tensor " + name + " of shape " + shape_text(view.shape)
                       + " has no place in this architecture; config.json and weights do not "
                         "belong together, or the model has parts that are not supported");
  return {};
}

result<model_config> read_checkpoint_config(const std::string& dir) {
  auto config = read_model_config(dir);
  if (!config) return config;
  const auto source = checkpoint::open(dir);
  if (!source) return tl::unexpected(source.error());
  if (auto ok = verify_checkpoint(*source, *config); !ok) return tl::unexpected(ok.error());
  config->half_experts = has_half_experts(*source, *config);
  return config;
}

result<qwen3_weights> read_dense_weights(const checkpoint& source, const model_config& config,
                                         std::map<std::string, std::uint64_t>* digests) {
  tensor_reader in(source, digests);
  qwen3_weights weights;
  std::size_t hidden = config.hidden_size, stride = round_up_lanes(hidden);
  auto embedding = in.values("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers && !in.failed(); ++layer)
    weights.layers.push_back(read_layer(in, config, layer));
  weights.final_norm = in.vector("model.norm.weight", hidden);
  if (!config.tie_word_embeddings)
    weights.head = in.packed({{"lm_head.weight", config.vocab_size}}, hidden);
  if (in.failed()) return tl::unexpected(in.first_error());
  if (config.tie_word_embeddings) {
    weights.head.resize(packed_shape_of(hidden, config.vocab_size).floats());
    pack_weight(embedding.data(), config.vocab_size, hidden, weights.head.data());
  }
  weights.embedding.assign(config.vocab_size * stride, 0.0F);
  for (std::size_t token = 0; token < config.vocab_size; ++token)
    std::copy_n(embedding.data() + token * hidden, hidden,
                weights.embedding.data() + token * stride);
  fill_rotation(config, &weights);
  return weights;
}

} // namespace adafloor
