#include "gpu/block_forward.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {

namespace {

/// Scores are kept for so many floats at a time.
constexpr std::size_t score_floats = std::size_t{64} << 20;

std::uint32_t as_u32(std::size_t n) {
  return static_cast<std::uint32_t>(n);
}

/// One of the weights' matrices or vectors.
template <class T>
result<void> load_array(launcher& where, device_array<T>* to, const float_buffer& values,
                        const char* what) {
  if (auto ok = to->need(where, values.size()); !ok) return ok;
  return upload_as(where, to->data(), values.data(), values.size(), what);
}

template <class W>
struct block_layer {
  device_array<float> input_norm, post_norm, q_norm, k_norm;
  device_array<W> qkv, o, router, gate_up, down;

  result<void> load(launcher& where, const qwen3_layer& from) {
    const std::pair<device_array<float>*, const float_buffer*> vectors[] = {
        {&input_norm, &from.input_norm},
        {&post_norm, &from.post_norm},
        {&q_norm, &from.q_norm},
        {&k_norm, &from.k_norm}};
    for (const auto& [to, values] : vectors)
      if (auto ok = load_array(where, to, *values, "norm"); !ok) return ok;
    const std::pair<device_array<W>*, const float_buffer*> matrices[] = {{&qkv, &from.qkv},
                                                                         {&o, &from.o},
                                                                         {&router, &from.router},
                                                                         {&gate_up, &from.gate_up},
                                                                         {&down, &from.down}};
    for (const auto& [to, values] : matrices)
      if (auto ok = load_array(where, to, *values, "layer"); !ok) return ok;
    return {};
  }
};

/// The step_input's arrays in the launcher's memory, at addresses that depend on their lengths
/// only.
struct input_arrays {
  const std::uint32_t *token = nullptr, *position = nullptr, *table = nullptr, *tile = nullptr,
                      *wanted = nullptr;
  const sample_row* how = nullptr;
  void* const* pages = nullptr;
};

template <class W>
class block_forward_of final : public block_forward {
public:
  block_forward_of(launcher& where, const model_config& c)
    : launcher_(where), config_(c), hidden_(c.hidden_size),
      stride_(as_u32(round_up_lanes(hidden_))), q_width_(c.num_attention_heads * c.head_dim),
      qkv_(packed_shape_of(hidden_, q_width_ + 2ULL * c.num_key_value_heads * c.head_dim)),
      head_shape_(packed_shape_of(hidden_, c.vocab_size)), experts_(expert_layout_of(c)),
      resident_(c.num_experts) {}

  result<void> load(const qwen3_weights& w) override {
    layers_.resize(w.layers.size());
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (auto ok = layers_[i].load(launcher_, w.layers[i]); !ok) return ok;
    if (auto ok = load_array(launcher_, &embedding_, w.embedding, "embedding"); !ok) return ok;
    if (auto ok = load_array(launcher_, &final_norm_, w.final_norm, "final norm"); !ok) return ok;
    if (auto ok = load_array(launcher_, &head_, w.head, "head"); !ok) return ok;
    if (auto ok = load_array(launcher_, &cosine_, w.cosine, "rotation"); !ok) return ok;
    return load_array(launcher_, &sine_, w.sine, "rotation");
  }
  result<void> serve(const std::vector<expert_ptr>& experts) override;
  result<void> run(const step_input& in, expert_parallel* exchange) override;
  result<void> run_jobs(std::size_t layer, const std::vector<expert_job>& jobs) override;

  const std::vector<sampled_row>& chosen() const override { return chosen_; }
  result<float> logit(std::size_t wanted, token_id token) override {
    float value = 0;
    const float* from =
        logits_.data() + wanted * head_shape_.columns() + static_cast<std::size_t>(token);
    if (auto ok = launcher_.download(&value, from, sizeof value); !ok)
      return tl::unexpected(ok.error());
    return value;
  }
  result<void> read_logits(std::size_t wanted, float_buffer* out) override {
    const auto columns = head_shape_.columns();
    out->resize(columns);
    return launcher_.download(out->data(), logits_.data() + wanted * columns,
                              columns * sizeof(float));
  }

private:
  struct resident_expert {
    std::weak_ptr<const expert_weights> source;
    device_array<W> weights;
  };

  /// Keeps the first error.
  void add(const any_kernel& kernel) {
    if (launched_) launched_ = launcher_.launch(kernel);
  }
  result<void> take_launched() { return std::exchange(launched_, result<void>{}); }

  result<void> upload_expert(W* to, const expert_weights& from, const std::string& name);
  result<void> upload_input(const step_input& in);
  result<void> make_room(const step_input& in, std::uint32_t stride);
  void compute(const step_input& in);
  void attend(const step_input& in, const block_layer<W>& w, std::size_t layer) {
    if (in.kv == kv_dtype::bfloat16)
      attend_pages<bfloat16>(in, w, layer);
    else
      attend_pages<float>(in, w, layer);
  }
  template <class K>
  void attend_pages(const step_input& in, const block_layer<W>& w, std::size_t layer);
  void dense_feed_forward(const block_layer<W>& w, std::uint32_t rows);
  void local_experts(const block_layer<W>& w, std::uint32_t rows, std::size_t layer);
  void expert_products(std::size_t layer, std::uint32_t pairs, const float* x,
                       const std::uint32_t* gather);
  result<void> group_experts(const step_input& in, std::size_t layer, expert_parallel& exchange);
  result<void> finish(const step_input& in);
  void norm(const float* weight, const std::uint32_t* row, std::uint32_t rows) {
    add(rms_norm_kernel{x_.data(), weight, row, rows, as_u32(hidden_), stride_,
                        config_.rms_norm_eps, h_.data()});
  }
  void final_logits(const step_input& in) {
    const auto wanted = as_u32(in.wanted.size());
    if (wanted == 0) return;
    norm(final_norm_.data(), at_.wanted, wanted);
    product(h_.data(), stride_, wanted, head_.data(), head_shape_, logits_.data(), false);
    add(sample_kernel{logits_.data(), wanted, config_.vocab_size, as_u32(head_shape_.columns()),
                      at_.how, sampled_.data()});
  }

  template <int R>
  gemm_kernel<W, R> gemm_of(const float* x, std::uint32_t ldx, std::uint32_t rows,
                            packed_shape shape, float* y) const {
    gemm_kernel<W, R> g;
    g.x = x;
    g.ldx = ldx;
    g.rows = rows;
    g.k = as_u32(shape.k);
    g.panels = as_u32(shape.panels);
    g.y = y;
    g.ldy = as_u32(shape.columns());
    return g;
  }
  void product(const float* x, std::uint32_t ldx, std::uint32_t rows, const W* weight,
               packed_shape shape, float* y, bool add_to) {
    const auto with = [&](auto g) {
      g.weight = weight;
      g.add = add_to;
      add(g);
    };
    if (rows <= 16)
      with(gemm_of<1>(x, ldx, rows, shape, y));
    else
      with(gemm_of<4>(x, ldx, rows, shape, y));
  }

  launcher& launcher_;
  const model_config& config_;
  const std::size_t hidden_;
  const std::uint32_t stride_, q_width_;
  const packed_shape qkv_, head_shape_;
  const expert_layout experts_;
  result<void> launched_;

  std::vector<block_layer<W>> layers_;
  device_array<W> embedding_, head_;
  device_array<float> final_norm_, cosine_, sine_;
  std::vector<resident_expert> resident_; ///< by expert
  device_array<const W*> expert_table_;   ///< by expert; null where not resident

  device_array<std::byte> input_;
  input_arrays at_;
  std::uint32_t score_stride_ = 0;
  device_array<float> x_, h_, mixed_, qkv_rows_, scores_, sums_, inner_, active_, outputs_, logits_,
      router_, weight_, arrived_;
  device_array<std::uint32_t> chosen_expert_, offsets_, place_, row_of_;
  device_array<sampled_row> sampled_;
  std::vector<sampled_row> chosen_;
  std::vector<std::uint64_t> seen_; ///< shapes of decode steps that ran once
  float_buffer host_x_, host_h_, host_router_, host_rows_, host_out_;
};

template <class W>
result<void> block_forward_of<W>::upload_expert(W* to, const expert_weights& from,
                                                const std::string& name) {
  const auto count = experts_.weights();
  if (!experts_.half) return upload_as(launcher_, to, from.floats(), count, name);
  if constexpr (std::is_same_v<W, bfloat16>)
    return launcher_.upload(to, from.halves(), count * sizeof(W));
  std::vector<float> wide(count);
  for (std::size_t i = 0; i < count; ++i)
    wide[i] = widen(bfloat16{from.halves()[i]});
  return upload_as(launcher_, to, wide.data(), count, name);
}

template <class W>
result<void> block_forward_of<W>::serve(const std::vector<expert_ptr>& experts) {
  bool changed = expert_table_.size() == 0 && !experts.empty(), gone = false;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    auto& here = resident_[e];
    if (here.weights.size() == 0 ? !experts[e] : here.source.lock() == experts[e]) continue;
    changed = true;
    gone = gone || here.weights.size() > 0;
    here.weights.reset();
    here.source = experts[e];
  }
  if (!changed) return {};
  launcher_.forget_graphs();
  if (gone) launcher_.trim();
  std::vector<const W*> table(experts.size(), nullptr);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    auto& here = resident_[e].weights;
    if (experts[e] && here.size() == 0) {
      if (auto ok = here.need(launcher_, experts_.weights()); !ok) return ok;
      if (auto ok = upload_expert(here.data(), *experts[e], "expert " + std::to_string(e)); !ok)
        return ok;
    }
    table[e] = here.data();
  }
  return expert_table_.assign(launcher_, table);
}

/// Arrays one after the other in one upload; page tables, whose length varies, at the end.
template <class W>
result<void> block_forward_of<W>::upload_input(const step_input& in) {
  std::vector<std::byte> bytes;
  const auto put = [&](const auto& values) {
    const auto at = (bytes.size() + 15) / 16 * 16;
    bytes.resize(at + values.size() * sizeof(values[0]));
    if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), bytes.size() - at);
    return at;
  };
  const auto token = put(in.token), position = put(in.position), table = put(in.table),
             tile = put(in.tile), wanted = put(in.wanted), how = put(in.how), pages = put(in.pages);
  if (auto ok = input_.need(launcher_, bytes.size() + bytes.size() / 2); !ok) return ok;
  const auto* base = input_.data();
  const auto ids = [base](std::size_t at) {
    return reinterpret_cast<const std::uint32_t*>(base + at);
  };
  at_ = {ids(token),
         ids(position),
         ids(table),
         ids(tile),
         ids(wanted),
         reinterpret_cast<const sample_row*>(base + how),
         reinterpret_cast<void* const*>(base + pages)};
  return launcher_.upload(input_.data(), bytes.data(), bytes.size());
}

template <class W>
result<void> block_forward_of<W>::make_room(const step_input& in, std::uint32_t score_stride) {
  const std::size_t rows = in.rows(), heads = config_.num_attention_heads;
  const std::size_t pairs = rows * config_.num_experts_per_tok;
  const auto ffn = config_.moe()
                       ? experts_.gate_up().columns()
                       : 2 * packed_shape_of(hidden_, config_.intermediate_size).columns();
  const auto ffn_rows = config_.moe() ? pairs : rows;
  const auto score_rows =
      std::min(rows, std::max<std::size_t>(tile_rows_max, score_floats / heads / score_stride));
  const std::pair<device_array<float>*, std::size_t> wanted[] = {
      {&x_, rows * stride_},
      {&h_, rows * stride_},
      {&mixed_, rows * round_up_lanes(q_width_)},
      {&qkv_rows_, rows * qkv_.columns()},
      {&scores_, score_rows * heads * score_stride},
      {&sums_, rows * heads},
      {&inner_, ffn_rows * ffn},
      {&active_, ffn_rows * ffn / 2},
      {&outputs_, pairs * stride_},
      {&router_, rows * round_up_lanes(config_.num_experts)},
      {&weight_, pairs},
      {&logits_, in.wanted.size() * head_shape_.columns()}};
  for (const auto& [array, size] : wanted)
    if (auto ok = array->need(launcher_, size); !ok) return ok;
  const std::pair<device_array<std::uint32_t>*, std::size_t> ids[] = {
      {&chosen_expert_, pairs},
      {&place_, pairs},
      {&row_of_, pairs},
      {&offsets_, config_.num_experts + 1ULL}};
  for (const auto& [array, size] : ids)
    if (auto ok = array->need(launcher_, size); !ok) return ok;
  score_stride_ = score_stride;
  return sampled_.need(launcher_, in.wanted.size());
}

template <class W>
template <class K>
void block_forward_of<W>::attend_pages(const step_input& in, const block_layer<W>& w,
                                       std::size_t layer) {
  const auto rows = in.rows(), heads = config_.num_attention_heads;
  const auto ld = as_u32(qkv_.columns()), mixed = as_u32(round_up_lanes(q_width_));
  const paged_rows<K> at{at_.position,
                         at_.table,
                         reinterpret_cast<K* const*>(at_.pages),
                         heads,
                         config_.num_key_value_heads,
                         config_.head_dim,
                         as_u32(layer)};
  product(h_.data(), stride_, rows, w.qkv.data(), qkv_, qkv_rows_.data(), false);
  add(rotate_kernel<K>{at, qkv_rows_.data(), ld, rows, w.q_norm.data(), w.k_norm.data(),
                       cosine_.data(), sine_.data(), config_.rms_norm_eps,
                       1.0F / std::sqrt(static_cast<float>(config_.head_dim))});
  const auto room = as_u32(scores_.size() / heads / score_stride_);
  for (std::uint32_t t = 0; t + 1 < in.tile.size();) {
    auto end = t + 1; // tiles whose scores fit; one tile fits by how they are cut
    while (end + 1 < in.tile.size() && in.tile[end + 1] - in.tile[t] <= room)
      ++end;
    const auto first = in.tile[t], count = in.tile[end] - first;
    add(scores_kernel<K>{at, qkv_rows_.data(), ld, at_.tile + t, end - t, in.longest,
                         scores_.data(), score_stride_, first});
    add(softmax_kernel{at_.position, heads, count, first, scores_.data(), score_stride_,
                       sums_.data(), in.longest});
    add(mix_kernel<K>{at, count, first, scores_.data(), score_stride_, sums_.data(), mixed_.data(),
                      mixed, in.longest});
    t = end;
  }
  product(mixed_.data(), mixed, rows, w.o.data(), packed_shape_of(q_width_, hidden_), x_.data(),
          true);
}

template <class W>
void block_forward_of<W>::dense_feed_forward(const block_layer<W>& w, std::uint32_t rows) {
  const auto half = packed_shape_of(hidden_, config_.intermediate_size);
  const packed_shape both{hidden_, 2 * half.panels};
  product(h_.data(), stride_, rows, w.gate_up.data(), both, inner_.data(), false);
  add(silu_kernel{inner_.data(), rows, as_u32(half.columns()), active_.data()});
  product(active_.data(), as_u32(half.columns()), rows, w.down.data(),
          packed_shape_of(config_.intermediate_size, hidden_), x_.data(), true);
}

/// Rows of x, sorted by expert (offsets_), through their experts to outputs_.
template <class W>
void block_forward_of<W>::expert_products(std::size_t layer, std::uint32_t pairs, const float* x,
                                          const std::uint32_t* gather) {
  const auto up = experts_.gate_up(), down = experts_.down();
  const auto inner = as_u32(up.columns() / 2);
  const auto grouped = [&](auto g, std::size_t skip, const std::uint32_t* rows) {
    g.gather = rows;
    g.segments = config_.num_experts;
    g.offsets = offsets_.data();
    g.segment_weight = expert_table_.data();
    g.segment_skip = layer * experts_.layer_weights() + skip;
    add(g);
  };
  if (pairs <= 16 * config_.num_experts) { // sixteen rows per expert on average
    grouped(gemm_of<1>(x, stride_, pairs, up, inner_.data()), 0, gather);
    add(silu_kernel{inner_.data(), pairs, inner, active_.data()});
    grouped(gemm_of<1>(active_.data(), inner, pairs, down, outputs_.data()), up.floats(), nullptr);
  } else {
    grouped(gemm_of<4>(x, stride_, pairs, up, inner_.data()), 0, gather);
    add(silu_kernel{inner_.data(), pairs, inner, active_.data()});
    grouped(gemm_of<4>(active_.data(), inner, pairs, down, outputs_.data()), up.floats(), nullptr);
  }
}

template <class W>
void block_forward_of<W>::local_experts(const block_layer<W>& w, std::uint32_t rows,
                                        std::size_t layer) {
  const auto router = packed_shape_of(hidden_, config_.num_experts);
  const auto top = config_.num_experts_per_tok, pairs = rows * top;
  product(h_.data(), stride_, rows, w.router.data(), router, router_.data(), false);
  add(route_kernel{router_.data(), rows, config_.num_experts, as_u32(router.columns()), top,
                   config_.norm_topk_prob, chosen_expert_.data(), weight_.data()});
  add(permute_kernel{chosen_expert_.data(), pairs, top, config_.num_experts, offsets_.data(),
                     place_.data(), row_of_.data()});
  expert_products(layer, pairs, h_.data(), row_of_.data());
  add(combine_kernel{outputs_.data(), place_.data(), weight_.data(), rows, top, stride_,
                     x_.data()});
}

/// Rows travel through host memory: the exchange and its order are those of the CPU.
template <class W>
result<void> block_forward_of<W>::group_experts(const step_input& in, std::size_t layer,
                                                expert_parallel& exchange) {
  const auto rows = in.rows();
  const auto router = packed_shape_of(hidden_, config_.num_experts);
  host_x_.resize(rows * std::size_t{stride_});
  host_h_.resize(host_x_.size());
  host_router_.resize(rows * router.columns());
  if (rows > 0) {
    product(h_.data(), stride_, rows, layers_[layer].router.data(), router, router_.data(), false);
    if (auto ok = take_launched(); !ok) return ok;
    const auto bytes = host_x_.size() * sizeof(float);
    if (auto ok = launcher_.download(host_h_.data(), h_.data(), bytes); !ok) return ok;
    if (auto ok = launcher_.download(host_x_.data(), x_.data(), bytes); !ok) return ok;
    if (auto ok = launcher_.download(host_router_.data(), router_.data(),
                                     host_router_.size() * sizeof(float));
        !ok)
      return ok;
  }
  if (auto ok =
          exchange.routed_layer(layer, host_router_.data(), host_h_.data(), rows, host_x_.data());
      !ok)
    return ok;
  return launcher_.upload(x_.data(), host_x_.data(), host_x_.size() * sizeof(float));
}

template <class W>
result<void> block_forward_of<W>::run_jobs(std::size_t layer, const std::vector<expert_job>& jobs) {
  if (jobs.empty()) return {};
  const auto pairs = jobs.size(), hidden_bytes = hidden_ * sizeof(float);
  std::vector<std::uint32_t> offsets(config_.num_experts + 1ULL, 0);
  host_rows_.assign(pairs * stride_, 0.0F);
  for (std::size_t i = 0; i < pairs; ++i) {
    ++offsets[jobs[i].expert + 1ULL];
    std::memcpy(host_rows_.data() + i * stride_, jobs[i].row, hidden_bytes);
  }
  for (std::size_t e = 0; e < config_.num_experts; ++e)
    offsets[e + 1] += offsets[e];
  const auto inner = experts_.gate_up().columns();
  const std::pair<device_array<float>*, std::size_t> wanted[] = {
      {&inner_, pairs * inner}, {&active_, pairs * inner / 2}, {&outputs_, pairs * stride_}};
  for (const auto& [array, size] : wanted)
    if (auto ok = array->need(launcher_, size); !ok) return ok;
  if (auto ok = offsets_.assign(launcher_, offsets); !ok) return ok;
  if (auto ok = arrived_.assign(launcher_, host_rows_.data(), host_rows_.size()); !ok) return ok;
  expert_products(layer, as_u32(pairs), arrived_.data(), nullptr);
  if (auto ok = take_launched(); !ok) return ok;
  host_out_.resize(pairs * stride_);
  if (auto ok =
          launcher_.download(host_out_.data(), outputs_.data(), host_out_.size() * sizeof(float));
      !ok)
    return ok;
  for (std::size_t i = 0; i < pairs; ++i)
    std::memcpy(jobs[i].out, host_out_.data() + i * stride_, hidden_bytes);
  return {};
}

/// All of a step that needs no other rank.
template <class W>
void block_forward_of<W>::compute(const step_input& in) {
  const auto rows = in.rows();
  add(embed_kernel<W>{embedding_.data(), at_.token, rows, stride_, x_.data()});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto& w = layers_[layer];
    norm(w.input_norm.data(), nullptr, rows);
    attend(in, w, layer);
    norm(w.post_norm.data(), nullptr, rows);
    if (config_.moe())
      local_experts(w, rows, layer);
    else
      dense_feed_forward(w, rows);
  }
  final_logits(in);
}

template <class W>
result<void> block_forward_of<W>::finish(const step_input& in) {
  if (auto ok = take_launched(); !ok) return ok;
  chosen_.resize(in.wanted.size());
  return launcher_.download(chosen_.data(), sampled_.data(), chosen_.size() * sizeof(sampled_row));
}

/// Decode steps of one shape are captured when it comes the second time. Lengths of rows are
/// rounded up to powers of two in it, so that it stays the same for many steps.
template <class W>
result<void> block_forward_of<W>::run(const step_input& given, expert_parallel* exchange) {
  auto in = given;
  in.longest = 256;
  while (in.longest < given.longest)
    in.longest *= 2;
  if (in.rows() > 0) {
    if (auto ok = upload_input(in); !ok) return ok;
    if (auto ok = make_room(in, in.longest); !ok) return ok;
  }
  if (exchange == nullptr) {
    if (in.rows() == 0) return finish(in);
    const auto key = (std::uint64_t{in.longest} << 32) | (std::uint64_t{in.rows()} << 16)
                     | std::uint64_t{in.wanted.size()};
    const bool fits = in.decode && in.rows() < 65536;
    if (fits && launcher_.replay(key)) return finish(in);
    const bool capture = fits && std::find(seen_.begin(), seen_.end(), key) != seen_.end();
    if (fits && !capture) seen_.push_back(key);
    if (capture)
      if (auto ok = launcher_.begin_graph(key); !ok) return ok;
    compute(in);
    if (capture)
      if (auto ok = launcher_.end_graph(); !ok) return ok;
    return finish(in);
  }
  if (in.rows() > 0)
    add(embed_kernel<W>{embedding_.data(), at_.token, in.rows(), stride_, x_.data()});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (in.rows() > 0) {
      norm(layers_[layer].input_norm.data(), nullptr, in.rows());
      attend(in, layers_[layer], layer);
      norm(layers_[layer].post_norm.data(), nullptr, in.rows());
    }
    if (auto ok = group_experts(in, layer, *exchange); !ok) return ok;
  }
  final_logits(in);
  return finish(in);
}

} // namespace

std::unique_ptr<block_forward> make_block_forward(launcher& where, const model_config& config,
                                                  const qwen3_weights& weights) {
  const bool half = std::all_of(weights.embedding.begin(), weights.embedding.end(),
                                [](float value) { return (bits_of(value) & 0xFFFFU) == 0; });
  if (half) return std::make_unique<block_forward_of<bfloat16>>(where, config);
  return std::make_unique<block_forward_of<float>>(where, config);
}

} // namespace adafloor
