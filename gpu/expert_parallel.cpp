#include "gpu/expert_parallel.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace adafloor {

namespace {

constexpr std::size_t header_bytes = 4 * 8 + 2 * 4 + 8; // step_header and the map's hash

template <class T>
void append(std::vector<std::byte>& out, const T& value) {
  auto at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <class T>
T read_at(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void append_header(std::vector<std::byte>& out, const step_header& h, std::uint64_t map_hash) {
  append(out, h.epoch.value);
  append(out, h.step);
  append(out, h.ready_epoch.value);
  append(out, h.live_requests);
  append(out, h.finished_requests);
  append(out, h.kv_tokens);
  append(out, map_hash);
}

} // namespace

expert_parallel::expert_parallel(const model_config& config, expert_compute compute)
  : experts_(config.num_experts), top_(config.num_experts_per_tok), hidden_(config.hidden_size),
    stride_(round_up_lanes(config.hidden_size)),
    inner_(round_up_lanes(config.moe_intermediate_size)), renormalise_(config.norm_topk_prob),
    layout_(expert_layout_of(config)), compute_(std::move(compute)) {
  row_.assign(stride_, 0.0F);
}

result<void> expert_parallel::begin(const step_group& step) {
  step_ = step;
  members_ = step.group ? step.group->members().size() : 1;
  self_index_ = step.group ? step.group->self_index() : 0;
  exchange_time_ = {};
  pairs_computed_ = 0;
  headers_.assign(members_, step.mine);
  outgoing_.resize(members_);
  local_.resize(1);
  sent_pairs_.assign(members_, 0);
  map_hash_ = expert_map_hash(*step.owners);
  std::vector<rank_id> alone = {step.self};
  const auto& members = step.group ? step.group->members() : alone;
  if (auto ok = expert_coverage(*step.owners, static_cast<std::uint32_t>(experts_), members); !ok)
    return ok;
  member_of_expert_.resize(experts_);
  for (std::size_t e = 0; e < experts_; ++e)
    member_of_expert_[e] = static_cast<std::uint32_t>(
        std::lower_bound(members.begin(), members.end(), step.owners->owner_of[e])
        - members.begin());
  return {};
}

/// Softmax over all experts, the `top_` largest (lower expert first among equals), weights in
/// ascending order of expert.
void expert_parallel::choose(const float* logits, std::size_t row) {
  const auto& k = kernels();
  float sum = k.exp_row(logits, experts_, k.max_row(logits, experts_), probabilities_.data());
  for (std::size_t e = 0; e < experts_; ++e)
    ranking_[e] = {probabilities_[e] / sum, static_cast<std::uint32_t>(e)};
  std::partial_sort(ranking_.begin(), ranking_.begin() + static_cast<std::ptrdiff_t>(top_),
                    ranking_.end(), [](const auto& a, const auto& b) {
                      return a.first > b.first || (a.first == b.first && a.second < b.second);
                    });
  float total = 1.0F;
  if (renormalise_) {
    total = 0.0F;
    for (std::size_t i = 0; i < top_; ++i)
      total += ranking_[i].first;
  }
  auto* chosen = pairs_.data() + row * top_;
  for (std::size_t i = 0; i < top_; ++i)
    chosen[i] = {ranking_[i].second, member_of_expert_[ranking_[i].second], 0,
                 ranking_[i].first / total};
  std::sort(chosen, chosen + top_,
            [](const routed_pair& a, const routed_pair& b) { return a.expert < b.expert; });
}

void expert_parallel::route(const float* logits, std::size_t rows) {
  auto columns = round_up_lanes(experts_);
  probabilities_.resize(columns);
  ranking_.resize(experts_);
  pairs_.resize(rows * top_);
  for (std::size_t r = 0; r < rows; ++r)
    choose(logits + r * columns, r);
}

void expert_parallel::fill_frames(std::size_t layer, const float* h, std::size_t rows) {
  auto hidden_bytes = hidden_ * sizeof(float);
  std::vector<std::uint32_t> row_count(members_, 0), last_row(members_, UINT32_MAX);
  std::fill(sent_pairs_.begin(), sent_pairs_.end(), 0);
  for (std::size_t i = 0; i < pairs_.size() && rows > 0; ++i) {
    auto& pair = pairs_[i];
    auto row = static_cast<std::uint32_t>(i / top_);
    pair.slot = sent_pairs_[pair.member]++;
    if (last_row[pair.member] != row) {
      last_row[pair.member] = row;
      ++row_count[pair.member];
    }
  }
  std::vector<std::byte*> pair_at(members_), row_at(members_);
  for (std::size_t m = 0; m < members_; ++m) {
    auto& frame = outgoing_[m];
    frame.clear();
    if (layer == 0) append_header(frame, step_.mine, map_hash_);
    bool remote = m != self_index_;
    append<std::uint32_t>(frame, remote ? row_count[m] : 0);
    append<std::uint32_t>(frame, remote ? sent_pairs_[m] : 0);
    auto at = frame.size();
    if (remote) frame.resize(at + sent_pairs_[m] * 8ULL + row_count[m] * hidden_bytes);
    pair_at[m] = frame.data() + at;
    row_at[m] = pair_at[m] + sent_pairs_[m] * 8ULL;
    row_count[m] = 0;
    last_row[m] = UINT32_MAX;
  }
  for (std::size_t i = 0; i < pairs_.size() && rows > 0; ++i) {
    const auto& pair = pairs_[i];
    auto m = pair.member;
    if (m == self_index_) continue;
    auto row = static_cast<std::uint32_t>(i / top_);
    if (last_row[m] != row) {
      last_row[m] = row;
      std::memcpy(row_at[m] + row_count[m]++ * hidden_bytes, h + row * stride_, hidden_bytes);
    }
    std::uint32_t index = row_count[m] - 1;
    std::memcpy(pair_at[m] + pair.slot * 8ULL, &index, 4);
    std::memcpy(pair_at[m] + pair.slot * 8ULL + 4, &pair.expert, 4);
  }
}

result<void> expert_parallel::exchange(std::size_t layer, exchange_id::phase_kind phase) {
  views_.resize(members_);
  for (std::size_t m = 0; m < members_; ++m)
    views_[m] = {outgoing_[m].data(), outgoing_[m].size()};
  auto start = std::chrono::steady_clock::now();
  auto done = step_.group->exchange({step_.mine.step, static_cast<std::uint16_t>(layer), phase},
                                    views_, &incoming_);
  exchange_time_ += std::chrono::steady_clock::now() - start;
  if (done && incoming_.size() != members_)
    return fail(error_code::internal, "communicator: returned " + std::to_string(incoming_.size())
                                          + " frames for " + std::to_string(members_) + " members");
  return done;
}

tl::unexpected<error> expert_parallel::broken(std::size_t member, const std::string& what) const {
  return fail(error_code::internal, "expert exchange: frame of rank "
                                        + std::to_string(step_.group->members()[member].value)
                                        + " in step " + std::to_string(step_.mine.step) + ": "
                                        + what);
}

result<void> expert_parallel::accept_header(std::size_t member, bytes_view* frame) {
  if (frame->size < header_bytes) return broken(member, "too short for a header");
  const auto* p = frame->data;
  auto& h = headers_[member];
  h.epoch = epoch_id{read_at<std::uint64_t>(p)};
  h.step = read_at<std::uint64_t>(p + 8);
  h.ready_epoch = epoch_id{read_at<std::uint64_t>(p + 16)};
  h.live_requests = read_at<std::uint32_t>(p + 24);
  h.finished_requests = read_at<std::uint32_t>(p + 28);
  h.kv_tokens = read_at<std::uint64_t>(p + 32);
  if (h.epoch != step_.mine.epoch || h.step != step_.mine.step)
    return broken(member, "is of epoch " + std::to_string(h.epoch.value) + " step "
                              + std::to_string(h.step) + ", expected epoch "
                              + std::to_string(step_.mine.epoch.value) + " step "
                              + std::to_string(step_.mine.step));
  if (read_at<std::uint64_t>(p + 40) != map_hash_) return broken(member, "uses another expert map");
  frame->data += header_bytes;
  frame->size -= header_bytes;
  return {};
}

result<void> expert_parallel::accept_frame(std::size_t layer, std::size_t member,
                                           bytes_view frame) {
  if (layer == 0)
    if (auto ok = accept_header(member, &frame); !ok) return ok;
  auto hidden_bytes = hidden_ * sizeof(float);
  if (frame.size < 8) return broken(member, "too short");
  auto rows = read_at<std::uint32_t>(frame.data), pairs = read_at<std::uint32_t>(frame.data + 4);
  if (frame.size != 8 + pairs * 8ULL + rows * static_cast<std::uint64_t>(hidden_bytes))
    return broken(member, "has " + std::to_string(frame.size) + " bytes, its counts need others");
  const auto* pair = frame.data + 8;
  const auto* first_row = pair + pairs * 8ULL;
  outgoing_[member].resize(pairs * hidden_bytes);
  for (std::uint32_t i = 0; i < pairs; ++i, pair += 8) {
    auto row = read_at<std::uint32_t>(pair), expert = read_at<std::uint32_t>(pair + 4);
    if (row >= rows) return broken(member, "names row " + std::to_string(row));
    if (expert >= experts_ || member_of_expert_[expert] != self_index_)
      return broken(member, "asks for expert " + std::to_string(expert)
                                + ", which this rank does not serve");
    jobs_.push_back(
        {expert, first_row + row * hidden_bytes, outgoing_[member].data() + i * hidden_bytes});
  }
  return {};
}

result<void> expert_parallel::accept_frames(std::size_t layer) {
  for (std::size_t m = 0; m < members_; ++m)
    if (auto ok = accept_frame(layer, m, incoming_[m]); !ok) return ok;
  return {};
}

/// y = x times the matrix that begins `at` weights into the expert.
void expert_parallel::multiply(const float_buffer& x, std::size_t ldx, std::size_t rows,
                               const expert_weights& expert, std::size_t at, packed_shape shape,
                               float_buffer& y) const {
  const auto& k = kernels();
  if (layout_.half)
    k.gemm_half(x.data(), ldx, rows, expert.halves() + at, shape, y.data(), shape.columns());
  else
    k.gemm(x.data(), ldx, rows, expert.floats() + at, shape, y.data(), shape.columns());
}

void expert_parallel::run_expert(std::size_t layer, std::uint32_t expert, std::size_t first,
                                 std::size_t count) {
  const auto& k = kernels();
  auto hidden_bytes = hidden_ * sizeof(float);
  auto up = layout_.gate_up(), down = layout_.down();
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(gathered_.data() + i * stride_, jobs_[first + i].row, hidden_bytes);
  const auto& weights = *(*step_.experts)[expert];
  const auto at = layer * layout_.layer_weights();
  multiply(gathered_, stride_, count, weights, at, up, gate_up_);
  for (std::size_t i = 0; i < count; ++i)
    k.silu_mul(gate_up_.data() + i * up.columns(), gate_up_.data() + i * up.columns() + inner_,
               inner_, activated_.data() + i * inner_);
  multiply(activated_, inner_, count, weights, at + up.floats(), down, outputs_);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(jobs_[first + i].out, outputs_.data() + i * down.columns(), hidden_bytes);
}

result<void> expert_parallel::run_jobs(std::size_t layer) {
  constexpr std::size_t rows_at_once = 48;
  std::stable_sort(jobs_.begin(), jobs_.end(),
                   [](const expert_job& a, const expert_job& b) { return a.expert < b.expert; });
  pairs_computed_ += jobs_.size();
  if (compute_) return compute_(layer, jobs_);
  gathered_.resize(rows_at_once * stride_);
  gate_up_.resize(rows_at_once * layout_.gate_up().columns());
  activated_.resize(rows_at_once * inner_);
  outputs_.resize(rows_at_once * layout_.down().columns());
  for (std::size_t first = 0; first < jobs_.size();) {
    auto expert = jobs_[first].expert;
    auto last = first;
    while (last < jobs_.size() && jobs_[last].expert == expert && last - first < rows_at_once)
      ++last;
    run_expert(layer, expert, first, last - first);
    first = last;
  }
  return {};
}

result<void> expert_parallel::add_up(std::size_t rows, float* x) {
  auto hidden_bytes = hidden_ * sizeof(float);
  for (std::size_t m = 0; step_.group && m < members_; ++m)
    if (m != self_index_ && incoming_[m].size != sent_pairs_[m] * hidden_bytes)
      return broken(m, "combine has " + std::to_string(incoming_[m].size) + " bytes, expected "
                           + std::to_string(sent_pairs_[m] * hidden_bytes));
  float_buffer sum(stride_);
  for (std::size_t r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::size_t i = r * top_; i < (r + 1) * top_; ++i) {
      const auto& pair = pairs_[i];
      const auto* from =
          pair.member == self_index_ ? local_[0].data() : incoming_[pair.member].data;
      std::memcpy(row_.data(), from + pair.slot * hidden_bytes, hidden_bytes);
      kernels().add_scaled(sum.data(), row_.data(), pair.weight, stride_);
    }
    kernels().add(x + r * stride_, sum.data(), stride_);
  }
  return {};
}

result<void> expert_parallel::layer(std::size_t index, const float* router, const float* h,
                                    std::size_t rows, float* x) {
  auto shape = packed_shape_of(hidden_, experts_);
  logits_.resize(rows * shape.columns());
  if (rows > 0) kernels().gemm(h, stride_, rows, router, shape, logits_.data(), shape.columns());
  return routed_layer(index, logits_.data(), h, rows, x);
}

result<void> expert_parallel::routed_layer(std::size_t index, const float* logits, const float* h,
                                           std::size_t rows, float* x) {
  auto hidden_bytes = hidden_ * sizeof(float);
  pairs_.clear();
  jobs_.clear();
  if (rows > 0) route(logits, rows);
  fill_frames(index, h, rows);
  if (step_.group) {
    if (auto ok = exchange(index, exchange_id::dispatch); !ok) return ok;
    if (auto ok = accept_frames(index); !ok) return ok;
  }
  local_[0].resize(sent_pairs_[self_index_] * hidden_bytes);
  for (std::size_t i = 0; i < pairs_.size(); ++i)
    if (pairs_[i].member == self_index_)
      jobs_.push_back({pairs_[i].expert, reinterpret_cast<const std::byte*>(h + i / top_ * stride_),
                       local_[0].data() + pairs_[i].slot * hidden_bytes});
  if (auto ok = run_jobs(index); !ok) return ok;
  if (step_.group) {
    outgoing_[self_index_].clear();
    if (auto ok = exchange(index, exchange_id::combine); !ok) return ok;
  }
  return add_up(rows, x);
}

result<void> expert_parallel::headers_only() {
  if (!step_.group) return {};
  for (auto& frame : outgoing_) {
    frame.clear();
    append_header(frame, step_.mine, map_hash_);
  }
  if (auto ok = exchange(0, exchange_id::header); !ok) return ok;
  for (std::size_t m = 0; m < members_; ++m)
    if (auto ok = accept_header(m, &incoming_[m]); !ok) return ok;
  return {};
}

} // namespace adafloor
