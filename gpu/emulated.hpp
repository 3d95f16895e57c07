#pragma once
// A device without arithmetic, for runs of many ranks on few cores. Requests, KV pages and experts
// are real, with bytes of a chosen size; what a step or a pause takes is what a cost model says,
// `time_scale` times as fast as that.
//
// Time: members agree in every step on the time that has passed, so it is the same on all of them
// and late members do not delay it: who is behind does not wait until it has caught up. A step
// covers all decode steps until something changes on some member. Times are of one clock per rank
// that begins with the rollout, so machines need not agree on theirs.
//
// Tokens are a function of the prompt, sampling.seed and random_key alone. They are derived from
// marks that each position leaves in its KV page and reads from the page before, so a page that is
// lost or mixed up changes them. There is no end token: a request ends at max_tokens. Prompts cost
// nothing; what is computed again after a preemption does.
#include "gpu/device.hpp"

#include <functional>

namespace adafloor {

/// What a group has to do in one decode step.
struct group_load {
  int ranks = 0;
  int active = 0;           ///< ranks with live requests
  int batch = 0;            ///< live requests of the fullest rank
  int live = 0;             ///< of all ranks
  double max_kv_tokens = 0; ///< resident tokens of the fullest rank after the step
};

/// How long things take, in the model's seconds. Unset functions: nothing.
struct emulated_costs {
  std::function<double(const group_load&)> decode_step;
  std::function<double(int from, int to)> exit; ///< paid by the whole old group
  std::function<double(double tokens)> copy;    ///< KV tokens to one rank; stops the whole group
  double restore_seconds = 0;
  double recompute_per_second = 0;  ///< tokens after preemption; 0: free
  bool count_prompt_tokens = false; ///< prompts count as resident tokens
};

struct emulation {
  std::uint32_t experts = 128;
  std::uint32_t expert_bytes = 4096; ///< of one expert, all layers; at least 192, in steps of 192
  std::uint32_t kv_page_bytes = 256; ///< at least 64, in steps of 4
  std::uint32_t max_positions = 1U << 20;
  double time_scale = 1; ///< seconds of the clock per second of the model
  emulated_costs costs;
};

/// Tokens that an emulated device knows: 0 to 31.
constexpr std::uint32_t emulated_vocabulary = 32;

std::unique_ptr<device> make_emulated_device(std::shared_ptr<const emulation> how);

} // namespace adafloor
