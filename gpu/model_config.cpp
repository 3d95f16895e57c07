#include "gpu/model_config.hpp"

#include "gpu/files.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

namespace adafloor {

namespace {

using nlohmann::json;
constexpr std::uint64_t config_bytes_max = 16'000'000;

result<json> read_object(const std::string& path) {
  auto text = read_text_file(path, config_bytes_max);
  if (!text) return tl::unexpected(text.error());
  auto object = json::parse(*text, nullptr, false);
  if (object.is_discarded() || !object.is_object()) return bad_input(path + ": is no JSON object");
  return object;
}

/// Reads keys of one object; keeps the first error.
class key_reader {
public:
  key_reader(std::string path, const json& object) : path_(std::move(path)), object_(object) {}

  std::uint32_t count(const char* key, std::uint32_t low, std::uint32_t high,
                      std::uint32_t missing = 0) {
    auto i = object_.find(key);
    if ((i == object_.end() || i->is_null()) && missing != 0) return missing;
    if (i == object_.end() || !i->is_number_unsigned() || i->get<std::uint64_t>() < low
        || i->get<std::uint64_t>() > high) {
      wrong(key, i, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
      return low;
    }
    return i->get<std::uint32_t>();
  }

  float real(const char* key, double low, double high) {
    auto i = object_.find(key);
    if (i == object_.end() || !i->is_number() || !(i->get<double>() >= low)
        || !(i->get<double>() <= high)) {
      wrong(key, i, "a number from " + json(low).dump() + " to " + json(high).dump());
      return 1;
    }
    return i->get<float>();
  }

  bool flag(const char* key, bool missing) {
    auto i = object_.find(key);
    if (i == object_.end() || i->is_null()) return missing;
    if (!i->is_boolean()) {
      wrong(key, i, "true or false");
      return missing;
    }
    return i->get<bool>();
  }

  /// Token ids: one or a list; absent gives none.
  std::vector<token_id> tokens(const char* key, std::uint32_t vocabulary) {
    std::vector<token_id> ids;
    auto i = object_.find(key);
    if (i == object_.end() || i->is_null()) return ids;
    for (const auto& value : i->is_array() ? *i : json::array({*i})) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= vocabulary) {
        wrong(key, i, "token ids below vocab_size " + std::to_string(vocabulary));
        return {};
      }
      ids.push_back(value.get<token_id>());
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  void fail_with(const std::string& text) {
    if (error_.empty()) error_ = path_ + ": " + text;
  }
  const std::string& error() const { return error_; }

private:
  void wrong(const char* key, json::const_iterator i, const std::string& allowed) {
    auto found = i == object_.end() ? std::string("is missing") : "is " + i->dump();
    fail_with(std::string(key) + " " + found + ", allowed is " + allowed);
  }

  std::string path_;
  const json& object_;
  std::string error_;
};

bool is_off(const json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>())
         || (value.is_number() && value.get<double>() == 0)
         || ((value.is_array() || value.is_object()) && value.empty());
}

bool plain_rope(const json& value) {
  if (value.is_null()) return true;
  if (!value.is_object()) return false;
  for (const char* key : {"rope_type", "type"})
    if (auto i = value.find(key); i != value.end() && *i != "default") return false;
  static const std::set<std::string> known = {"rope_type", "type", "rope_theta"};
  return std::all_of(value.items().begin(), value.items().end(),
                     [](const auto& item) { return known.count(item.key()) > 0; });
}

/// The first key whose value asks for arithmetic that this engine does not have; empty: none.
std::string unsupported_key(const json& config) {
  for (const char* key : {"use_sliding_window",
                          "attention_bias",
                          "mlp_bias",
                          "qkv_bias",
                          "mlp_only_layers",
                          "quantization_config",
                          "quantization",
                          "compression_config",
                          "shared_expert_intermediate_size",
                          "n_shared_experts",
                          "num_shared_experts",
                          "moe_shared_expert_intermediate_size",
                          "first_k_dense_replace",
                          "n_group",
                          "topk_group",
                          "attn_logit_softcapping",
                          "final_logit_softcapping",
                          "logit_softcapping",
                          "attention_sinks",
                          "num_nextn_predict_layers",
                          "use_mla",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "linear_num_value_heads",
                          "no_rope_layers",
                          "vision_config",
                          "text_config"})
    if (auto i = config.find(key); i != config.end() && !is_off(*i)) return key;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (auto i = config.find(key); i != config.end() && !plain_rope(*i)) return key;
  auto differs = [&](const char* key, const json& only) {
    auto i = config.find(key);
    return i != config.end() && !i->is_null() && *i != only;
  };
  if (differs("decoder_sparse_step", 1)) return "decoder_sparse_step";
  if (differs("hidden_act", "silu")) return "hidden_act";
  if (differs("scoring_func", "softmax")) return "scoring_func";
  if (differs("partial_rotary_factor", 1.0)) return "partial_rotary_factor";
  if (differs("routed_scaling_factor", 1.0)) return "routed_scaling_factor";
  if (auto i = config.find("sliding_window");
      i != config.end() && !is_off(*i) && !config.contains("use_sliding_window"))
    return "sliding_window";
  if (auto i = config.find("layer_types"); i != config.end() && !i->is_null()) {
    if (!i->is_array()) return "layer_types";
    for (const auto& type : *i)
      if (type != "full_attention") return "layer_types";
  }
  return {};
}

/// "Qwen3MoeForCausalLM" or "Qwen3ForCausalLM", or an error text.
std::string architecture(const json& config, key_reader& keys) {
  std::string name;
  if (auto i = config.find("architectures");
      i != config.end() && i->is_array() && i->size() == 1 && (*i)[0].is_string())
    name = (*i)[0].get<std::string>();
  else if (auto type = config.find("model_type"); type != config.end() && type->is_string())
    name = *type == "qwen3_moe" ? "Qwen3MoeForCausalLM"
           : *type == "qwen3"   ? "Qwen3ForCausalLM"
                                : type->get<std::string>();
  if (name != "Qwen3MoeForCausalLM" && name != "Qwen3ForCausalLM")
    keys.fail_with("architectures is \"" + name
                   + "\", allowed are Qwen3MoeForCausalLM and Qwen3ForCausalLM");
  return name;
}

void read_shape(key_reader& keys, model_config& c) {
  c.vocab_size = keys.count("vocab_size", 1, 1U << 24);
  c.hidden_size = keys.count("hidden_size", 1, 1U << 16);
  c.num_hidden_layers = keys.count("num_hidden_layers", 1, 1024);
  c.num_attention_heads = keys.count("num_attention_heads", 1, 1024);
  c.num_key_value_heads = keys.count("num_key_value_heads", 1, 1024, c.num_attention_heads);
  c.head_dim = keys.count("head_dim", 2, 1024, std::max(1U, c.hidden_size / c.num_attention_heads));
  c.max_position_embeddings = keys.count("max_position_embeddings", 1, 1U << 20);
  c.rms_norm_eps = keys.real("rms_norm_eps", 0, 1);
  c.rope_theta = keys.real("rope_theta", 1, 1e12);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  if (c.num_attention_heads % c.num_key_value_heads != 0)
    keys.fail_with("num_attention_heads is " + std::to_string(c.num_attention_heads)
                   + ", allowed are multiples of num_key_value_heads "
                   + std::to_string(c.num_key_value_heads));
  if (c.head_dim % 2 != 0)
    keys.fail_with("head_dim is " + std::to_string(c.head_dim) + ", allowed are even numbers");
}

void read_experts(key_reader& keys, model_config& c) {
  c.num_experts = keys.count("num_experts", 1, 1U << 16);
  c.num_experts_per_tok = keys.count("num_experts_per_tok", 1, 1024);
  c.moe_intermediate_size = keys.count("moe_intermediate_size", 1, 1U << 20);
  c.norm_topk_prob = keys.flag("norm_topk_prob", false);
  if (c.num_experts_per_tok > c.num_experts)
    keys.fail_with("num_experts_per_tok is " + std::to_string(c.num_experts_per_tok)
                   + ", allowed are at most num_experts " + std::to_string(c.num_experts));
}

} // namespace

bool model_config::same_architecture(const model_config& other) const {
  auto shape = [](const model_config& c) {
    return std::tie(c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_attention_heads,
                    c.num_key_value_heads, c.head_dim, c.intermediate_size,
                    c.max_position_embeddings, c.rms_norm_eps, c.rope_theta, c.tie_word_embeddings,
                    c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size, c.norm_topk_prob,
                    c.half_experts);
  };
  return shape(*this) == shape(other);
}

result<model_config> read_model_config(const std::string& dir) {
  auto path = dir + "/config.json";
  auto object = read_object(path);
  if (!object) return tl::unexpected(object.error());
  key_reader keys(path, *object);
  auto name = architecture(*object, keys);
  if (auto key = unsupported_key(*object); !key.empty())
    keys.fail_with(key + " is " + (*object)[key].dump()
                   + ", which this engine does not support; use a model without it");
  model_config config;
  read_shape(keys, config);
  if (name == "Qwen3MoeForCausalLM")
    read_experts(keys, config);
  else
    config.intermediate_size = keys.count("intermediate_size", 1, 1U << 20);
  config.eos_tokens = keys.tokens("eos_token_id", config.vocab_size);
  if (!keys.error().empty()) return bad_input(keys.error());

  auto generation_path = dir + "/generation_config.json";
  if (!file_exists(generation_path)) return config;
  auto generation = read_object(generation_path);
  if (!generation) return tl::unexpected(generation.error());
  key_reader more(generation_path, *generation);
  if (auto eos = more.tokens("eos_token_id", config.vocab_size); !eos.empty())
    config.eos_tokens = eos;
  if (generation->contains("max_new_tokens"))
    config.max_new_tokens = more.count("max_new_tokens", 1, 1U << 30);
  if (!more.error().empty()) return bad_input(more.error());
  return config;
}

} // namespace adafloor
