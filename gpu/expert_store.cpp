#include "gpu/expert_store.hpp"

#include "gpu/byte_io.hpp"

#include <algorithm>
#include <cassert>

namespace adafloor {

namespace {

constexpr std::uint64_t blob_magic = 0x32545045584641ULL; // "AFXEPT2"
constexpr std::size_t foot_bytes = 6 * sizeof(std::uint64_t) + sizeof(std::uint32_t);

} // namespace

std::uint64_t expert_weights::computed_digest() const {
  return wide_digest64(words.data(), words.size() * sizeof(float));
}

std::vector<std::pair<std::string, std::vector<std::uint64_t>>>
expert_tensors(const model_config& config, std::uint32_t expert) {
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors;
  std::uint64_t hidden = config.hidden_size, inner = config.moe_intermediate_size;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    auto prefix =
        "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert);
    tensors.push_back({prefix + ".gate_proj.weight", {inner, hidden}});
    tensors.push_back({prefix + ".up_proj.weight", {inner, hidden}});
    tensors.push_back({prefix + ".down_proj.weight", {hidden, inner}});
  }
  return tensors;
}

result<expert_ptr> read_expert(const checkpoint& source, const model_config& config,
                               std::uint32_t expert,
                               std::map<std::string, std::uint64_t>* digests) {
  const auto layout = expert_layout_of(config);
  auto weights = std::make_shared<expert_weights>();
  weights->words = mapped_floats(layout.words());
  auto* halves = reinterpret_cast<std::uint16_t*>(weights->words.data());
  const auto part = packed_shape_of(layout.hidden, layout.intermediate).floats();
  const std::size_t offsets[3] = {0, part, 2 * part};
  std::size_t which = 0;
  for (const auto& [name, shape] : expert_tensors(config, expert)) {
    const auto at = which / 3 * layout.layer_weights() + offsets[which % 3];
    ++which;
    if (layout.half) {
      auto values = source.read_half(name, shape);
      if (!values) return tl::unexpected(values.error());
      pack_weight(values->data(), shape[0], shape[1], halves + at);
    } else {
      auto values = source.read(name, shape);
      if (!values) return tl::unexpected(values.error());
      pack_weight(values->data(), shape[0], shape[1], weights->words.data() + at);
    }
    (*digests)[name] = digest_of(source.tensors().at(name));
    source.release(name);
  }
  weights->digest = weights->computed_digest();
  return expert_ptr(std::move(weights));
}

expert_layout expert_layout_of(const model_config& config) {
  return {config.num_hidden_layers, config.hidden_size, config.moe_intermediate_size,
          config.half_experts};
}

bool has_half_experts(const checkpoint& source, const model_config& config) {
  for (std::uint32_t expert = 0; expert < config.num_experts; ++expert)
    for (const auto& [name, shape] : expert_tensors(config, expert))
      if (source.tensors().at(name).type != "BF16") return false;
  return config.moe();
}

expert_store::expert_store(const model_config& config, std::uint64_t model, weights_id version,
                           std::uint32_t slots)
  : layout_(expert_layout_of(config)), model_(model), slots_(slots), version_(version) {}

result<void> expert_store::check_slots(std::size_t wanted) const {
  if (slots_ == 0 || wanted <= slots_) return {};
  return fail(error_code::refused, "expert store: " + std::to_string(wanted)
                                       + " experts would be resident or reserved, there are "
                                       + std::to_string(slots_)
                                       + " slots; drop experts or raise the number of slots");
}

result<void> expert_store::replace(std::map<std::uint32_t, expert_ptr> experts,
                                   weights_id version) {
  std::lock_guard lock(mutex_);
  if (auto ok = check_slots(experts.size()); !ok) return ok;
  resident_ = std::move(experts);
  version_ = version;
  reserved_.clear();
  brought_.clear();
  return {};
}

std::vector<std::uint32_t>
expert_store::missing_of(const std::vector<std::uint32_t>& wanted) const {
  std::vector<std::uint32_t> missing;
  for (auto expert : wanted)
    if (resident_.count(expert) == 0) missing.push_back(expert);
  return missing;
}

std::size_t expert_store::count_after(const std::vector<std::uint32_t>& wanted) const {
  auto kept = resident_.size();
  for (auto expert : brought_)
    if (!std::binary_search(wanted.begin(), wanted.end(), expert)) --kept;
  return kept + missing_of(wanted).size();
}

std::size_t expert_store::occupied() const {
  std::lock_guard lock(mutex_);
  return resident_.size() + reserved_.size();
}

std::size_t expert_store::occupied_after(const std::vector<std::uint32_t>& wanted) const {
  std::lock_guard lock(mutex_);
  return count_after(wanted);
}

result<std::vector<std::uint32_t>> expert_store::prepare(const std::vector<std::uint32_t>& wanted) {
  std::lock_guard lock(mutex_);
  auto missing = missing_of(wanted);
  if (auto ok = check_slots(count_after(wanted)); !ok) return tl::unexpected(ok.error());
  for (auto i = brought_.begin(); i != brought_.end();) {
    bool stays = std::binary_search(wanted.begin(), wanted.end(), *i);
    if (!stays) resident_.erase(*i);
    i = stays ? std::next(i) : brought_.erase(i);
  }
  reserved_ = {missing.begin(), missing.end()};
  return missing;
}

void expert_store::cancel() {
  std::lock_guard lock(mutex_);
  for (auto expert : brought_)
    resident_.erase(expert);
  brought_.clear();
  reserved_.clear();
}

void expert_store::settle() {
  std::lock_guard lock(mutex_);
  brought_.clear();
  reserved_.clear();
}

result<expert_loan> expert_store::lend(std::uint32_t expert) const {
  expert_ptr weights;
  weights_id version;
  {
    std::lock_guard lock(mutex_);
    auto i = resident_.find(expert);
    if (i == resident_.end())
      return bad_input("expert " + std::to_string(expert)
                       + " is not resident on this rank; ask its owner");
    weights = i->second;
    version = version_;
  }
  const bytes_view bytes{reinterpret_cast<const std::byte*>(weights->words.data()),
                         weights->words.size() * sizeof(float)};
  byte_writer foot;
  foot.put(blob_magic);
  foot.put(model_);
  foot.put(version.value);
  foot.put(expert);
  foot.put<std::uint64_t>(weights->words.size());
  foot.put(weights->digest);
  expert_loan loan{bytes, foot.seal(), std::move(weights)};
  assert(loan.foot.size() == foot_bytes);
  return loan;
}

expert_landing expert_store::open() const {
  auto weights = std::make_shared<expert_weights>();
  weights->words = mapped_floats(layout_.words());
  auto* bytes = reinterpret_cast<std::byte*>(weights->words.data());
  return {bytes, layout_.words() * sizeof(float), 0, byte_string(foot_bytes), std::move(weights)};
}

result<void> expert_store::import(expert_landing landed) {
  byte_reader foot({landed.foot.data(), landed.foot.size()});
  if (!foot.unseal()) return bad_input("expert blob: checksum differs; send it again");
  auto magic = foot.get<std::uint64_t>();
  auto model = foot.get<std::uint64_t>();
  weights_id version{foot.get<std::uint64_t>()};
  auto expert = foot.get<std::uint32_t>();
  auto words = foot.get<std::uint64_t>();
  auto digest = foot.get<std::uint64_t>();
  if (!foot.ok() || magic != blob_magic || model != model_ || words != layout_.words()
      || foot.left() > 0)
    return bad_input("expert blob: is of another kind or model");
  if (landed.digest != digest)
    return bad_input("expert blob: checksum of expert " + std::to_string(expert)
                     + " differs; send it again");
  {
    std::lock_guard lock(mutex_);
    if (version != version_)
      return bad_input("expert blob: has weights version " + std::to_string(version.value)
                       + ", this rank serves " + std::to_string(version_.value));
  }
  landed.memory->digest = digest;
  return put(expert, std::move(landed.memory));
}

result<void> expert_store::put(std::uint32_t expert, expert_ptr weights) {
  std::lock_guard lock(mutex_);
  if (resident_.count(expert) > 0) return {};
  if (reserved_.erase(expert) == 0)
    return bad_input("expert " + std::to_string(expert)
                     + " has no reserved slot; prepare the expert map first");
  resident_.emplace(expert, std::move(weights));
  brought_.insert(expert);
  return {};
}

expert_ptr expert_store::find(std::uint32_t expert) const {
  std::lock_guard lock(mutex_);
  auto i = resident_.find(expert);
  return i == resident_.end() ? nullptr : i->second;
}

std::vector<std::uint32_t> expert_store::resident() const {
  std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> experts;
  for (const auto& [expert, weights] : resident_)
    experts.push_back(expert);
  return experts;
}

std::uint32_t expert_store::drop_except(const std::vector<std::uint32_t>& kept) {
  std::lock_guard lock(mutex_);
  std::uint32_t dropped = 0;
  for (auto i = resident_.begin(); i != resident_.end();) {
    bool stays = std::binary_search(kept.begin(), kept.end(), i->first) || brought_.count(i->first);
    dropped += stays ? 0 : 1;
    i = stays ? std::next(i) : resident_.erase(i);
  }
  return dropped;
}

} // namespace adafloor
