#pragma once
// The mixture-of-experts layers of one step across the group: rows travel to the owners of their
// experts (dispatch), each (row, expert) pair's unweighted output travels back (combine), and the
// row's home rank adds them up in ascending order of expert. The step's headers ride on the first
// dispatch.
//
// Frame of a dispatch: [first layer: header, map hash] u32 rows, u32 pairs,
// pairs x {u32 row, u32 expert}, rows x hidden float32. Frame of a combine: pairs x hidden float32.
#include "gpu/communicator.hpp"
#include "gpu/expert_map.hpp"
#include "gpu/expert_store.hpp"
#include "gpu/kernels.hpp"

#include <chrono>
#include <functional>
#include <vector>

namespace adafloor {

/// What a rank needs to know to take part in a step.
struct step_group {
  communicator* group = nullptr; ///< null: this rank alone
  step_header mine;
  const expert_map* owners = nullptr;
  rank_id self;
  const std::vector<expert_ptr>* experts = nullptr; ///< by expert; null where not owned
};

/// A (row, expert) pair to compute.
struct expert_job {
  std::uint32_t expert = 0;
  const std::byte* row = nullptr; ///< hidden float32, any alignment
  std::byte* out = nullptr;       ///< hidden float32, any alignment
};

/// Computes the jobs of a layer, which are in ascending order of expert.
using expert_compute =
    std::function<result<void>(std::size_t layer, const std::vector<expert_job>&)>;

class expert_parallel {
public:
  /// `compute` unset: the experts are computed on this machine's CPU.
  explicit expert_parallel(const model_config& config, expert_compute compute = {});

  /// Starts a step. Errors: bad_input when an expert's owner is not in the group.
  result<void> begin(const step_group& step);
  /// x[r] += weighted sum of the experts' outputs for h[r]; both [rows][padded hidden]. `router`:
  /// packed. Every member calls it for every layer, with rows or without.
  result<void> layer(std::size_t index, const float* router, const float* h, std::size_t rows,
                     float* x);
  /// The same with the router's logits at hand: [rows][padded experts].
  result<void> routed_layer(std::size_t index, const float* logits, const float* h,
                            std::size_t rows, float* x);
  /// Exchanges the headers alone (a dense model in a group).
  result<void> headers_only();

  /// By member; of the present step once its first layer is done.
  const std::vector<step_header>& headers() const { return headers_; }
  std::uint64_t pairs_computed() const { return pairs_computed_; }
  std::chrono::nanoseconds exchange_time() const { return exchange_time_; }

private:
  struct routed_pair {
    std::uint32_t expert = 0, member = 0, slot = 0; ///< slot: place in that member's frame
    float weight = 0;
  };
  using bytes = std::vector<std::byte>;

  void route(const float* logits, std::size_t rows);
  void choose(const float* logits, std::size_t row);
  void fill_frames(std::size_t layer, const float* h, std::size_t rows);
  result<void> exchange(std::size_t layer, exchange_id::phase_kind phase);
  result<void> accept_frames(std::size_t layer);
  result<void> accept_frame(std::size_t layer, std::size_t member, bytes_view frame);
  result<void> accept_header(std::size_t member, bytes_view* frame);
  tl::unexpected<error> broken(std::size_t member, const std::string& what) const;
  result<void> run_jobs(std::size_t layer);
  void multiply(const float_buffer& x, std::size_t ldx, std::size_t rows,
                const expert_weights& expert, std::size_t at, packed_shape shape,
                float_buffer& y) const;
  void run_expert(std::size_t layer, std::uint32_t expert, std::size_t first, std::size_t count);
  result<void> add_up(std::size_t rows, float* x);

  const std::size_t experts_, top_, hidden_, stride_, inner_;
  const bool renormalise_;
  const expert_layout layout_;
  step_group step_;
  std::size_t members_ = 1, self_index_ = 0;
  std::uint64_t map_hash_ = 0;
  std::vector<std::uint32_t> member_of_expert_;
  std::vector<step_header> headers_;
  std::uint64_t pairs_computed_ = 0;
  std::chrono::nanoseconds exchange_time_{0};

  float_buffer logits_, probabilities_, gathered_, gate_up_, activated_, outputs_, row_;
  std::vector<routed_pair> pairs_; ///< rows * top, ascending expert within a row
  std::vector<std::pair<float, std::uint32_t>> ranking_;
  std::vector<std::uint32_t> sent_pairs_; ///< by member
  std::vector<bytes> outgoing_, local_;   ///< by member; local_[0]: outputs of own pairs
  std::vector<bytes_view> views_, incoming_;
  std::vector<expert_job> jobs_;
  const expert_compute compute_;
};

} // namespace adafloor
