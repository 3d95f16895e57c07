// Damaged and unsupported model folders are refused with file, tensor or key, value and remedy.
#define BOOST_TEST_MODULE checkpoint
#include "gpu/engine.hpp"
#include "gpu/model_config.hpp"
#include "gpu/safetensors.hpp"
#include "tests/gpu/engine_world.hpp"
#include "tests/gpu/model_files.hpp"

using namespace adafloor;
using namespace adafloor::tests;
using nlohmann::json;

namespace {

const std::string small = golden + "fixtures/moe_e8k2_norm_tied_kv1";
const std::string sharded = golden + "fixtures/moe_e16k4_raw_untied_kv2_sharded";
const std::string up_proj = "model.layers.1.mlp.experts.3.up_proj.weight";

/// Loads a damaged copy of `model`; the error must contain all parts.
void refused(const std::string& model, const std::function<void(const scratch_folder&)>& damage,
             const std::vector<std::string>& parts) {
  scratch_folder folder;
  folder.copy_from(model);
  damage(folder);
  auto loaded = engine::load(folder.path(), {});
  BOOST_REQUIRE_MESSAGE(!loaded, "loaded in spite of damage, expected: " << parts.front());
  BOOST_TEST((loaded.error().code == error_code::bad_input));
  for (const auto& part : parts)
    BOOST_TEST(contains(loaded.error().text, part),
               "'" << loaded.error().text << "' should contain '" << part << "'");
}

void refused_header(const std::function<void(json&)>& edit, const std::vector<std::string>& parts) {
  refused(
      small, [&](const scratch_folder& f) { edit_header(f.file("model.safetensors"), edit); },
      parts);
}

void refused_config(const std::string& key, const json& value,
                    const std::vector<std::string>& parts) {
  refused(
      small,
      [&](const scratch_folder& f) {
        edit_json(f.file("config.json"), [&](json& config) {
          config[key] = value;
          if (value == "(absent)") config.erase(key);
        });
      },
      parts);
}

} // namespace

BOOST_AUTO_TEST_CASE(whole_models_load) {
  for (const auto& model : {small, sharded}) {
    auto loaded = must(engine::load(model, {}));
    BOOST_TEST(loaded->resident_experts().size() == loaded->facts().experts);
    BOOST_TEST(loaded->digests().size() == checkpoint::open(model)->tensors().size());
  }
}

BOOST_AUTO_TEST_CASE(bfloat16_is_widened) {
  auto narrow = must(checkpoint::open(golden + "models/collatz-moe-v3-bf16"));
  auto wide = must(checkpoint::open(collatz));
  auto a = must(narrow.read("lm_head.weight", {16, 64}));
  auto b = must(wide.read("lm_head.weight", {16, 64}));
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::fabs(double(a[i] - b[i])) / (1e-6 + std::fabs(double(b[i]))));
  BOOST_TEST(worst > 0.0);
  BOOST_TEST(worst < 0.005); // eight bits of mantissa
}

BOOST_AUTO_TEST_CASE(missing_files) {
  refused(small, [](const scratch_folder& f) { std::filesystem::remove(f.file("config.json")); },
          {"config.json: cannot be opened"});
  refused(small,
          [](const scratch_folder& f) { std::filesystem::remove(f.file("model.safetensors")); },
          {"neither model.safetensors nor model.safetensors.index.json"});
  refused(sharded,
          [](const scratch_folder& f) {
            std::filesystem::remove(f.file("model-00002-of-00003.safetensors"));
          },
          {"model-00002-of-00003.safetensors: cannot be opened"});
}

BOOST_AUTO_TEST_CASE(truncated_at_any_length) {
  auto whole = read_all(small + "/model.safetensors");
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100},
                           std::size_t{5'000}, whole.size() / 2, whole.size() - 1})
    refused(small,
            [&](const scratch_folder& f) {
              std::filesystem::resize_file(f.file("model.safetensors"), size);
            },
            {"model.safetensors: "});
  refused(small,
          [&](const scratch_folder& f) {
            std::filesystem::resize_file(f.file("model.safetensors"), whole.size() - 4);
          },
          {"tensor model.norm.weight", "the file has"});
}

BOOST_AUTO_TEST_CASE(absurd_headers) {
  auto length = [](std::uint64_t n) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &n, 8);
    return bytes;
  };
  for (const auto& text :
       {length(~0ULL), length(1ULL << 40) + "{}", length(2) + "[]", length(4) + "{\"a\"",
        length(30) + R"({"a":{"dtype":"F32"},"a":null})", length(2) + "\xff\xff"})
    refused(small, [&](const scratch_folder& f) { write_all(f.file("model.safetensors"), text); },
            {"model.safetensors"});
  BOOST_TEST(!checkpoint::open("/dev").has_value());
}

BOOST_AUTO_TEST_CASE(wrong_entries) {
  refused_header([](json& h) { h.erase(up_proj); },
                 {"tensor " + up_proj + " is missing", "[48, 64]"});
  refused_header(
      [](json& h) {
        h[up_proj]["shape"] = {64, 48};
      },
      {"tensor " + up_proj + " has shape [64, 48]", "asks for [48, 64]"});
  refused_header(
      [](json& h) {
        h[up_proj]["shape"] = {48, 65};
      },
      {up_proj, "its shape [48, 65] in F32 needs 12480"});
  refused_header([](json& h) { h[up_proj]["shape"] = {1ULL << 40, 1ULL << 40}; }, {up_proj});
  refused_header([](json& h) { h[up_proj]["shape"] = {-48, 64}; }, {up_proj, "shape"});
  refused_header([](json& h) { h[up_proj]["dtype"] = "F33"; }, {up_proj, "dtype \"F33\""});
  refused_header([](json& h) { h[up_proj]["data_offsets"] = {5}; }, {up_proj, "data_offsets"});
  refused_header([](json& h) { h[up_proj]["data_offsets"] = {8, 4}; }, {up_proj});
  refused_header([](json& h) { h[up_proj] = 5; }, {up_proj});
  refused_header(
      [](json& h) {
        h[up_proj]["data_offsets"] =
            h["model.layers.1.mlp.experts.2.up_proj.weight"]["data_offsets"];
      },
      {"overlap", up_proj});
  refused_header(
      [](json& h) {
        h[up_proj]["dtype"] = "F16";
        h[up_proj]["shape"] = {96, 64};
      },
      {up_proj});
  refused_header(
      [](json& h) {
        h["model.layers.0.mlp.shared_expert.up_proj.weight"] = h[up_proj];
        h.erase(up_proj);
      },
      {up_proj + " is missing"});
  refused_header(
      [](json& h) {
        h["model.layers.0.self_attn.q_proj.bias"] = {
            {"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
      },
      {"tensor model.layers.0.self_attn.q_proj.bias", "has no place"});
}

BOOST_AUTO_TEST_CASE(half_precision_floats_are_refused_by_type) {
  refused_header(
      [](json& h) {
        auto end = h[up_proj]["data_offsets"][1].get<std::uint64_t>();
        h[up_proj]["dtype"] = "F16";
        h[up_proj]["data_offsets"] = {end - 48 * 64 * 2, end};
      },
      {up_proj + " has type F16, allowed are F32 and BF16"});
}

BOOST_AUTO_TEST_CASE(shards_and_index_must_agree) {
  auto index = "model.safetensors.index.json";
  auto edit_map = [&](const std::function<void(json&)>& edit) {
    return [edit, index](const scratch_folder& f) {
      edit_json(f.file(index), [&](json& whole) { edit(whole["weight_map"]); });
    };
  };
  refused(sharded,
          edit_map([](json& m) { m["lm_head.weight"] = "model-00002-of-00003.safetensors"; }),
          {"tensor lm_head.weight is missing", "says that it is there"});
  refused(sharded, edit_map([](json& m) { m.erase("lm_head.weight"); }),
          {"lm_head.weight is not in"});
  refused(sharded, edit_map([](json& m) { m["lm_head.weight"] = "../x.safetensors"; }),
          {"weight_map.lm_head.weight"});
  refused(sharded, edit_map([](json& m) { m["lm_head.weight"] = 5; }),
          {"weight_map.lm_head.weight is 5"});
  refused(sharded, [&](const scratch_folder& f) { write_all(f.file(index), "{"); },
          {"needs a JSON object with weight_map"});
  refused(sharded,
          [&](const scratch_folder& f) { // a shard twice under two names: "3 of 3" would be a lie
            std::filesystem::copy_file(f.file("model-00001-of-00003.safetensors"),
                                       f.file("model-00002-of-00003.safetensors"),
                                       std::filesystem::copy_options::overwrite_existing);
          },
          {"model-00002-of-00003.safetensors: tensor ", "is missing"});
}

BOOST_AUTO_TEST_CASE(unsupported_keys_are_named) {
  const std::pair<const char*, json> keys[] = {
      {"use_sliding_window", true},
      {"attention_bias", true},
      {"mlp_only_layers", {0}},
      {"decoder_sparse_step", 2},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"shared_expert_intermediate_size", 64},
      {"n_shared_experts", 1},
      {"hidden_act", "gelu"},
      {"layer_types", {"full_attention", "sliding_attention"}}};
  for (const auto& [key, value] : keys)
    refused_config(
        key, value,
        {"config.json: " + std::string(key) + " is " + value.dump(), "does not support"});
}

BOOST_AUTO_TEST_CASE(harmless_keys_pass) {
  scratch_folder folder;
  folder.copy_from(small);
  edit_json(folder.file("config.json"), [](json& config) {
    config["sliding_window"] = 4096; // off, as use_sliding_window is false
    config["rope_scaling"] = {{"rope_type", "default"}};
    config["layer_types"] = {"full_attention", "full_attention"};
    config["quantization_config"] = nullptr;
    config["something_new"] = "x";
    config["eos_token_id"] = {2, 3};
  });
  std::filesystem::remove(folder.file("generation_config.json"));
  auto loaded = must(engine::load(folder.path(), {}));
  BOOST_TEST((loaded->facts().eos_tokens == std::vector<token_id>{2, 3}));
}

BOOST_AUTO_TEST_CASE(wrong_config_values) {
  refused_config("architectures", {"LlamaForCausalLM"},
                 {"architectures is \"LlamaForCausalLM\"", "Qwen3MoeForCausalLM"});
  refused_config("hidden_size", "(absent)", {"hidden_size is missing"});
  refused_config("hidden_size", -4, {"hidden_size is -4", "allowed"});
  refused_config("hidden_size", 128, {"has shape", "config.json asks for"});
  refused_config("num_key_value_heads", 3, {"num_attention_heads is 4", "num_key_value_heads 3"});
  refused_config("num_experts_per_tok", 9, {"num_experts_per_tok is 9", "num_experts 8"});
  refused_config("head_dim", 15, {"head_dim is 15"});
  refused_config("rope_theta", "x", {"rope_theta"});
  refused_config("num_hidden_layers", 3, {"model.layers.2."});
  refused_config("num_hidden_layers", 1, {"model.layers.1.", "has no place"});
  refused(small, [](const scratch_folder& f) { write_all(f.file("config.json"), "[1, 2"); },
          {"config.json: is no JSON object"});
  refused(small,
          [](const scratch_folder& f) {
            edit_json(f.file("generation_config.json"), [](json& g) { g["eos_token_id"] = 97; });
          },
          {"generation_config.json: eos_token_id is 97", "vocab_size 97"});
}

BOOST_AUTO_TEST_CASE(impossible_options) {
  auto error_with = [](engine_options options) { return text_of(engine::load(small, options)); };
  engine_options options;
  options.world_size = 3;
  BOOST_TEST(contains(error_with(options), "3 ranks do not divide 8 experts"));
  options.world_size = 2;
  options.self = rank_id{2};
  BOOST_TEST(contains(error_with(options), "rank is 2"));
  options = {};
  options.kv_pages = 0;
  BOOST_TEST(contains(error_with(options), "kv_pages is 0"));
  options = {};
  options.expert_slots = 7;
  BOOST_TEST(contains(error_with(options), "7 slots"));
}

BOOST_AUTO_TEST_CASE(any_changed_byte_is_survived) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + std::string(32, '\x3f');
  scratch_folder folder;
  auto path = folder.file("model.safetensors");
  write_all(path, file);
  BOOST_TEST(must(checkpoint::open(folder.path())).tensors().size() == 2U);
  std::size_t opened = 0, tried = 0;
  for (std::size_t at = 0; at < 8 + header.size(); ++at)
    for (char with : {'\0', '9', '}', '"', '\xff'}) {
      auto changed = file;
      changed[at] = with;
      write_all(path, changed);
      ++tried;
      auto source = checkpoint::open(folder.path());
      if (!source) continue;
      ++opened;
      for (const auto& [name, tensor] : source->tensors()) // whatever is accepted can be read
        if (tensor.type == "F32" || tensor.type == "BF16")
          BOOST_TEST(source->read(name, tensor.shape).has_value());
    }
  BOOST_TEST(opened < tried / 2);
}
