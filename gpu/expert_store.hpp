#pragma once
// The experts that are resident on this rank. An expert is one immutable block of all its layers,
// so it can be exported by any thread while steps read it.
#include "gpu/engine.hpp"
#include "gpu/kernels.hpp"
#include "gpu/mapped_memory.hpp"
#include "gpu/model_config.hpp"
#include "gpu/safetensors.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace adafloor {

/// Weights of one expert: per layer {gate, up: packed [hidden][padded intermediate] side by side;
/// down: packed [intermediate][hidden]}, as float32 or, where the checkpoint has them so, bfloat16.
struct expert_layout {
  std::size_t layers = 0, hidden = 0, intermediate = 0;
  bool half = false; ///< bfloat16
  packed_shape gate_up() const {
    return {hidden, 2 * packed_shape_of(hidden, intermediate).panels};
  }
  packed_shape down() const { return packed_shape_of(intermediate, hidden); }
  std::size_t layer_weights() const { return gate_up().floats() + down().floats(); }
  std::size_t weights() const { return layers * layer_weights(); }
  /// What they take: words of four bytes, each a float32 or two of bfloat16.
  std::size_t words() const { return half ? weights() / 2 : weights(); }
  /// Memory of one expert, in whole pages of the system.
  std::uint64_t bytes() const { return mapped_floats::rounded(words()) * sizeof(float); }
};

expert_layout expert_layout_of(const model_config& config);

struct expert_weights {
  mapped_floats words;      ///< of an expert_layout
  std::uint64_t digest = 0; ///< wide_digest64 of the words, when they were made or came in
  std::uint64_t computed_digest() const;
  const float* floats() const { return words.data(); }
  const std::uint16_t* halves() const {
    return reinterpret_cast<const std::uint16_t*>(words.data());
  }
};

using expert_ptr = std::shared_ptr<const expert_weights>;

/// Names and shapes of one expert's tensors in a checkpoint: gate, up, down of each layer.
std::vector<std::pair<std::string, std::vector<std::uint64_t>>>
expert_tensors(const model_config& config, std::uint32_t expert);

/// Are all tensors of experts stored as bfloat16? `source` fits `config`.
bool has_half_experts(const checkpoint& source, const model_config& config);

/// Reads one expert; adds the digest of each tensor read to `digests`.
result<expert_ptr> read_expert(const checkpoint& source, const model_config& config,
                               std::uint32_t expert, std::map<std::string, std::uint64_t>* digests);

/// Any thread.
class expert_store {
public:
  /// `slots` 0: no bound. `model` names architecture and thus which blobs fit.
  expert_store(const model_config& config, std::uint64_t model, weights_id version,
               std::uint32_t slots);

  const expert_layout& layout() const { return layout_; }

  /// Puts experts in without a reservation (load, update). Errors: refused (slots).
  result<void> replace(std::map<std::uint32_t, expert_ptr> experts, weights_id version);
  /// Experts that hold memory: resident or reserved.
  std::size_t occupied() const;
  /// `occupied` after a successful `prepare(wanted)`; `wanted` ascending.
  std::size_t occupied_after(const std::vector<std::uint32_t>& wanted) const;
  /// See engine::prepare_experts; `wanted` ascending.
  result<std::vector<std::uint32_t>> prepare(const std::vector<std::uint32_t>& wanted);
  /// Drops reservations and what came in for them.
  void cancel();
  /// What came in stays, further reservations end (after a switch of maps).
  void settle();

  result<expert_loan> lend(std::uint32_t expert) const;
  expert_landing open() const;
  result<void> import(expert_landing landed);
  result<void> put(std::uint32_t expert, expert_ptr weights);

  /// Null when not resident.
  expert_ptr find(std::uint32_t expert) const;
  std::vector<std::uint32_t> resident() const;
  /// Drops all others; returns how many. `kept` ascending.
  std::uint32_t drop_except(const std::vector<std::uint32_t>& kept);

private:
  result<void> check_slots(std::size_t wanted) const;
  std::vector<std::uint32_t> missing_of(const std::vector<std::uint32_t>& wanted) const;
  std::size_t count_after(const std::vector<std::uint32_t>& wanted) const;

  const expert_layout layout_;
  const std::uint64_t model_;
  const std::uint32_t slots_;
  mutable std::mutex mutex_; // guards all below
  weights_id version_;
  std::map<std::uint32_t, expert_ptr> resident_;
  std::set<std::uint32_t> reserved_; ///< prepared, not here yet
  std::set<std::uint32_t> brought_;  ///< came in for a preparation that is not settled
};

} // namespace adafloor
