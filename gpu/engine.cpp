#include "gpu/engine.hpp"

#include "gpu/digest.hpp"
#include "gpu/emulated.hpp"
#include "gpu/engine_state.hpp"

#include <algorithm>

namespace adafloor {

namespace {

std::uint64_t fingerprint_of(const model_config& c) {
  std::uint64_t numbers[] = {c.vocab_size,          c.hidden_size,
                             c.num_hidden_layers,   c.num_attention_heads,
                             c.num_key_value_heads, c.head_dim,
                             c.intermediate_size,   c.num_experts,
                             c.num_experts_per_tok, c.moe_intermediate_size,
                             c.norm_topk_prob,      kv_page_tokens};
  return digest64(numbers, sizeof numbers);
}

/// All weights of one rank, read and verified before anything is replaced.
struct loaded_weights {
  qwen3_weights dense;
  std::map<std::uint32_t, expert_ptr> experts;
  std::map<std::string, std::uint64_t> digests;
};

result<loaded_weights> read_weights(const device& reader, const std::string& dir,
                                    const model_config& config,
                                    const std::vector<std::uint32_t>& experts) {
  loaded_weights loaded;
  auto dense = reader.read_dense(dir, config, &loaded.digests);
  if (!dense) return tl::unexpected(dense.error());
  loaded.dense = std::move(*dense);
  auto read = reader.read_experts(dir, config, experts, &loaded.digests);
  if (!read) return tl::unexpected(read.error());
  loaded.experts = std::move(*read);
  return loaded;
}

result<std::unique_ptr<device>> device_of(const engine_options& o) {
  if (o.emulated) return make_emulated_device(o.emulated);
  if (o.make_device) return o.make_device();
  return make_cpu_device();
}

result<void> check_options(const engine_options& o) {
  auto bad = [](const char* name, std::uint64_t value, const std::string& allowed) {
    return bad_input("engine: " + std::string(name) + " is " + std::to_string(value)
                     + ", allowed is " + allowed);
  };
  if (o.world_size == 0) return bad("world_size", o.world_size, "at least 1");
  if (o.self.value >= o.world_size)
    return bad("rank", o.self.value, "less than world_size " + std::to_string(o.world_size));
  if (o.kv_pages == 0) return bad("kv_pages", o.kv_pages, "at least 1");
  if (o.max_num_seqs == 0) return bad("max_num_seqs", o.max_num_seqs, "at least 1");
  if (o.prefill_budget == 0) return bad("prefill_budget", o.prefill_budget, "at least 1");
  return {};
}

} // namespace

engine::engine(std::unique_ptr<state> s) : state_(std::move(s)) {}
engine::~engine() = default;

void engine::state::serve_owned() {
  serving.assign(config.num_experts, nullptr);
  for (auto expert : experts_of(owners, options.self))
    serving[expert] = experts->find(expert);
}

result<std::unique_ptr<engine>> engine::load(const std::string& model_dir, engine_options options) {
  if (auto ok = check_options(options); !ok) return tl::unexpected(ok.error());
  auto s = std::make_unique<state>();
  auto made = device_of(options);
  if (!made) return tl::unexpected(made.error());
  s->device = std::move(*made);
  auto config = s->device->read_config(model_dir);
  if (!config) return tl::unexpected(config.error());
  auto home = home_expert_map(config->num_experts, options.world_size);
  if (!home) return bad_input(model_dir + ": " + home.error().text);
  s->owners = options.owners.owner_of.empty() ? *home : options.owners;
  if (s->owners.owner_of.size() != config->num_experts)
    return bad_input(model_dir + ": expert map has " + std::to_string(s->owners.owner_of.size())
                     + " experts, num_experts is " + std::to_string(config->num_experts));
  auto loaded = read_weights(*s->device, model_dir, *config, experts_of(s->owners, options.self));
  if (!loaded) return tl::unexpected(loaded.error());
  s->dir = model_dir;
  s->config = *config;
  s->version = options.weights_version;
  s->fingerprint = fingerprint_of(*config);
  s->options = std::move(options);
  if (s->options.emulated) s->options.prefill_budget = std::numeric_limits<std::uint32_t>::max();
  s->digests = std::move(loaded->digests);
  s->experts = std::make_unique<expert_store>(s->config, s->fingerprint, s->version,
                                              s->options.expert_slots);
  if (auto ok = s->experts->replace(std::move(loaded->experts), s->version); !ok)
    return tl::unexpected(ok.error());
  s->serve_owned();
  const auto layout = s->device->pages(s->config, s->options.kv_type);
  s->pool = std::make_shared<kv_pool>(layout, s->options.kv_pages);
  s->facts = {s->config.num_hidden_layers,
              s->config.hidden_size,
              s->config.vocab_size,
              s->config.num_experts,
              s->config.num_experts_per_tok,
              s->config.max_position_embeddings,
              layout.page_bytes(),
              s->config.moe() ? s->experts->layout().words() * sizeof(float) : 0,
              loaded->dense.bytes(),
              s->config.eos_tokens,
              s->pool->page_bytes(),
              s->config.moe() ? s->experts->layout().bytes() : 0};
  s->device->use(s->config, std::move(loaded->dense));
  if (auto ok = s->check_budget(); !ok) return tl::unexpected(ok.error());
  s->resize_kv();
  return std::unique_ptr<engine>(new engine(std::move(s)));
}

const model_facts& engine::facts() const {
  return state_->facts;
}
const engine_counters& engine::counters() const {
  return state_->counters;
}
weights_id engine::weights_version() const {
  return state_->version;
}
const std::string& engine::model_dir() const {
  return state_->dir;
}

const expert_map& engine::owners() const {
  return state_->owners;
}
expert_map engine::home_map() const {
  return *home_expert_map(state_->config.num_experts, state_->options.world_size);
}

result<std::vector<std::uint32_t>> engine::prepare_experts(const expert_map& next) {
  auto& s = *state_;
  if (next.owner_of.size() != s.config.num_experts)
    return bad_input("expert map: has " + std::to_string(next.owner_of.size())
                     + " experts, the model has " + std::to_string(s.config.num_experts));
  const auto wanted = experts_of(next, s.options.self);
  if (auto ok = s.make_room(s.experts->occupied_after(wanted)); !ok)
    return tl::unexpected(ok.error());
  auto missing = s.experts->prepare(wanted);
  s.resize_kv();
  return missing;
}
void engine::cancel_prepare() {
  state_->experts->cancel();
  state_->resize_kv();
}
result<expert_loan> engine::lend_expert(std::uint32_t expert) const {
  return state_->experts->lend(expert);
}
expert_landing engine::open_expert_landing() const {
  return state_->experts->open();
}
result<void> engine::import_expert(expert_landing landed) {
  return state_->experts->import(std::move(landed));
}
std::vector<std::uint32_t> engine::resident_experts() const {
  return state_->experts->resident();
}

result<void> engine::reload_experts(const std::vector<std::uint32_t>& experts) {
  auto& s = *state_;
  std::string dir;
  {
    std::lock_guard lock(s.digest_mutex);
    dir = s.dir;
  }
  for (auto expert : experts) {
    if (expert >= s.config.num_experts)
      return bad_input("expert " + std::to_string(expert) + ": the model has "
                       + std::to_string(s.config.num_experts));
    std::map<std::string, std::uint64_t> digests;
    auto weights = s.device->read_experts(dir, s.config, {expert}, &digests);
    if (!weights) return tl::unexpected(weights.error());
    {
      std::lock_guard lock(s.digest_mutex);
      for (const auto& [name, digest] : digests) {
        auto [known, added] = s.digests.emplace(name, digest);
        if (!added && known->second != digest)
          return bad_input(dir + ": tensor " + name
                           + " has changed since the model was loaded; load it as a new version");
      }
    }
    if (auto ok = s.experts->put(expert, weights->at(expert)); !ok) return ok;
  }
  return {};
}

result<void> engine::switch_map(epoch_id epoch, const expert_map& next,
                                const std::vector<rank_id>& members) {
  auto& s = *state_;
  if (auto ok = expert_coverage(next, s.config.num_experts, members); !ok)
    return fail(error_code::refused, ok.error().text);
  for (auto expert : experts_of(next, s.options.self))
    if (!s.experts->find(expert))
      return fail(error_code::refused, "expert map of epoch " + std::to_string(epoch.value)
                                           + ": expert " + std::to_string(expert)
                                           + " belongs to rank "
                                           + std::to_string(s.options.self.value)
                                           + " but is not resident; import or reload it first");
  s.owners = next;
  s.map_epoch = epoch;
  s.experts->settle();
  s.resize_kv();
  s.serve_owned();
  return {};
}
epoch_id engine::map_epoch() const {
  return state_->map_epoch;
}
std::uint32_t engine::drop_unowned() {
  auto& s = *state_;
  const auto dropped = s.experts->drop_except(experts_of(s.owners, s.options.self));
  s.resize_kv();
  return dropped;
}

void tensor_set::add(const tensor_digest& tensor) {
  ++tensors;
  digest += digest64(tensor.name.data(), tensor.name.size(), tensor.digest);
}

result<tensor_set> checkpoint_tensors(const std::string& model_dir) {
  const auto config = read_model_config(model_dir);
  if (!config) return tl::unexpected(config.error());
  const auto source = checkpoint::open(model_dir);
  if (!source) return tl::unexpected(source.error());
  if (auto ok = verify_checkpoint(*source, *config); !ok) return tl::unexpected(ok.error());
  tensor_set all;
  for (const auto& [name, shape] : expected_tensors(*config))
    all.add({name, digest_of(source->tensors().at(name))});
  return all;
}

std::vector<tensor_digest> engine::digests() const {
  std::lock_guard lock(state_->digest_mutex);
  std::vector<tensor_digest> all;
  for (const auto& [name, digest] : state_->digests)
    all.push_back({name, digest});
  return all;
}

result<void> engine::update_weights(const std::string& model_dir, weights_id version,
                                    const std::vector<tensor_digest>& expected) {
  auto& s = *state_;
  if (!s.requests.empty() || !s.imports.empty())
    return fail(error_code::busy, "weights update: " + std::to_string(s.requests.size())
                                      + " requests are still here; drain them first");
  if (version <= s.version)
    return bad_input("weights update: version is " + std::to_string(version.value)
                     + ", allowed is more than the present " + std::to_string(s.version.value));
  auto config = s.device->read_config(model_dir);
  if (!config) return tl::unexpected(config.error());
  if (!config->same_architecture(s.config))
    return bad_input(model_dir + ": is another architecture than " + s.dir
                     + " or has experts of another type; a running engine takes new weights of "
                       "the same shapes and type only");
  s.pool = std::make_shared<kv_pool>(s.pool->layout(), s.options.kv_pages); // its memory first
  s.resize_kv();
  auto loaded = read_weights(*s.device, model_dir, *config, experts_of(s.owners, s.options.self));
  if (!loaded) return tl::unexpected(loaded.error());
  for (const auto& [name, digest] : expected)
    if (auto i = loaded->digests.find(name); i != loaded->digests.end() && i->second != digest)
      return bad_input(model_dir + ": tensor " + name
                       + " has another digest than expected; copy the weights again");
  if (auto ok = s.experts->replace(std::move(loaded->experts), version); !ok) return ok;
  s.device->use(s.config, std::move(loaded->dense));
  {
    std::lock_guard lock(s.digest_mutex);
    s.digests = std::move(loaded->digests);
    s.dir = model_dir;
  }
  s.config.eos_tokens = s.facts.eos_tokens = config->eos_tokens;
  s.version = version;
  s.serve_owned();
  return {};
}

} // namespace adafloor
