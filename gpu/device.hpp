#pragma once
// What the steps of a rank are computed on: this machine's CPU, a GPU, or the emulation of a larger
// machine.
// The engine keeps the books (requests, KV pages, experts); its device reads weights, computes rows
// and takes part in the exchanges of the group.
#include "gpu/expert_parallel.hpp"
#include "gpu/kv_pool.hpp"
#include "gpu/qwen3_weights.hpp"
#include "gpu/sampler.hpp"

#include <limits>

namespace adafloor {

/// One position to compute. Rows of a request stand in order of position. Everything before the
/// first of them is in the KV pool or computed by rows of other requests that stand before it.
struct forward_row {
  token_id token = 0;
  std::uint32_t position = 0;
  const page_index* pages = nullptr; ///< page table of the request; covers `position`
  bool wants_logits = false;
  /// A token is to be drawn after this row: `sample` will be called with these. Null: not.
  const sampling_spec* sampling = nullptr;
  std::uint64_t random_key = 0;
};

/// What a rank knows of the decode steps ahead.
struct step_outlook {
  std::uint32_t running = 0;           ///< requests that get a token in the next step
  std::uint64_t kv_tokens = 0;         ///< response tokens of these
  std::uint64_t kv_prompt_tokens = 0;  ///< prompt tokens of these
  std::uint64_t recomputed_tokens = 0; ///< so far: taken in again after preemption
  std::uint64_t received_tokens = 0;   ///< so far: whose KV other ranks sent here
  bool hold = false;                   ///< no time may pass: the group waits for a decision
  /// Decode steps after which something of this rank changes: a request ends or the pool is full.
  std::uint32_t steps = std::numeric_limits<std::uint32_t>::max();
};

/// Thread: the engine's, unless said otherwise.
class device {
public:
  virtual ~device() = default;

  // --- weights ----------------------------------------------------------------------------------
  // Errors of all: bad_input naming file, key or tensor. `digests` gets that of each tensor read.
  virtual result<model_config> read_config(const std::string& dir) const = 0;
  virtual result<qwen3_weights> read_dense(const std::string& dir, const model_config& config,
                                           std::map<std::string, std::uint64_t>* digests) const = 0;
  /// Any thread.
  virtual result<std::map<std::uint32_t, expert_ptr>>
  read_experts(const std::string& dir, const model_config& config,
               const std::vector<std::uint32_t>& experts,
               std::map<std::string, std::uint64_t>* digests) const = 0;
  /// What a KV page of this model looks like here.
  virtual kv_layout pages(const model_config& config, kv_dtype type) const = 0;
  /// From the next step on these are computed with; `config` outlives the device.
  virtual void use(const model_config& config, qwen3_weights dense) = 0;

  // --- steps ------------------------------------------------------------------------------------
  /// Begins a step of the group; returns how many decode steps `run` is to be called for before
  /// the next `begin`. A device that computes says 1.
  virtual result<std::uint32_t> begin(const step_group& step, const step_outlook& ahead) = 0;
  /// Computes rows and writes their keys and values.
  virtual result<void> run(const std::vector<forward_row>& rows, kv_pool& pool) = 0;
  /// The token after row `i` of those that wanted logits in the last run.
  virtual result<sampled_token> sample(std::size_t i, const sampling_spec& spec,
                                       std::uint64_t random_key, std::uint32_t position) = 0;
  /// ln probability of `token` after that row.
  virtual result<float> logprob(std::size_t i, token_id token) = 0;
  /// Of that row, the vocabulary long; null: this device has none.
  virtual const float* logits(std::size_t i) const = 0;

  /// By member, of the last step.
  virtual const std::vector<step_header>& headers() const = 0;
  virtual std::uint64_t pairs_computed() const = 0;
  virtual std::chrono::nanoseconds exchange_time() const = 0;

  // --- pages ------------------------------------------------------------------------------------
  // A request's pages leave and arrive through the pool's memory, which is not where every device
  // has them.
  /// `pool.data(page)` has the page's bytes afterwards.
  virtual result<void> page_to_host(kv_pool& /*pool*/, page_index /*page*/) { return {}; }
  /// `pool.data(page)` was written.
  virtual result<void> page_from_host(kv_pool& /*pool*/, page_index /*page*/) { return {}; }

  // --- time -------------------------------------------------------------------------------------
  // A device that computes takes the time that it takes: its clock is the machine's, and nothing
  // needs to pass by order.
  virtual time_point now() const {
    return std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
  }
  /// Until here the last step was a pause of the group: copies that it had to wait for.
  virtual time_point paused_until() const { return {}; }
  virtual result<void> start_rollout(communicator*) { return {}; }
  virtual void pass_exit(std::size_t /*from*/, std::size_t /*to*/) {}
  virtual result<device_pause> pass_restore(communicator*) { return device_pause{now(), now()}; }
};

/// Computes on this machine's CPU.
std::unique_ptr<device> make_cpu_device();

class launcher;
/// Computes with the kernels of a launcher (gpu/launcher.hpp): the same bits as the CPU's.
std::unique_ptr<device> make_launcher_device(std::unique_ptr<launcher> where);

} // namespace adafloor
