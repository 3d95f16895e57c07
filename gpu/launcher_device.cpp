// The device that computes with a launcher's kernels. The engine's books stay in host memory; KV
// pages and weights have their bytes in the launcher's.
#include "gpu/block_forward.hpp"
#include "gpu/checkpoint_device.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {

namespace {

class launcher_device final : public checkpoint_device {
public:
  explicit launcher_device(std::unique_ptr<launcher> where) : launcher_(std::move(where)) {}
  ~launcher_device() override {
    release_pages();
    forward_.reset();
  }

  /// Weights are uploaded by the next run, whose result can say what went wrong.
  void use(const model_config& config, qwen3_weights dense) override {
    config_ = &config;
    fresh_ = std::move(dense);
    release_pages(); // no request holds one
    if (chooser_) return;
    chooser_.emplace(config.vocab_size);
    exchange_.emplace(config, [this](std::size_t layer, const std::vector<expert_job>& jobs) {
      return forward_->run_jobs(layer, jobs);
    });
  }

  result<std::uint32_t> begin(const step_group& step, const step_outlook&) override {
    step_ = step;
    local_pairs_ = 0;
    const auto epoch = step.group != nullptr ? step.group->epoch() : epoch_id{};
    if (epoch != epoch_) launcher_->forget_graphs(); // none outlives its group
    epoch_ = epoch;
    if (auto ok = exchange_->begin(step); !ok) return tl::unexpected(ok.error());
    return 1;
  }
  result<void> run(const std::vector<forward_row>& rows, kv_pool& pool) override;

  result<sampled_token> sample(std::size_t i, const sampling_spec& spec, std::uint64_t random_key,
                               std::uint32_t position) override;
  result<float> logprob(std::size_t i, token_id token) override {
    const auto& row = forward_->chosen()[i];
    if (!std::isfinite(row.log_sum))
      return fail(error_code::internal, "a logit is not finite; the weights are damaged");
    auto logit = forward_->logit(i, token);
    if (!logit) return tl::unexpected(logit.error());
    return static_cast<float>(static_cast<double>(*logit) - static_cast<double>(row.top)
                              - row.log_sum);
  }
  const float* logits(std::size_t i) const override {
    if (!forward_->read_logits(i, &row_)) std::fill(row_.begin(), row_.end(), NAN);
    return row_.data();
  }

  result<void> page_to_host(kv_pool& pool, page_index page) override {
    return launcher_->download(pool.data(page), pages_[page], pool.layout().page_bytes());
  }
  result<void> page_from_host(kv_pool& pool, page_index page) override {
    if (auto ok = need_page(page, pool); !ok) return ok;
    return launcher_->upload(pages_[page], pool.data(page), pool.layout().page_bytes());
  }

  const std::vector<step_header>& headers() const override { return exchange_->headers(); }
  std::uint64_t pairs_computed() const override {
    return exchange_->pairs_computed() + local_pairs_;
  }
  std::chrono::nanoseconds exchange_time() const override { return exchange_->exchange_time(); }

private:
  result<void> load_fresh();
  result<void> need_page(page_index page, const kv_pool& pool);
  void release_surplus(const kv_pool& pool);
  result<step_input> input_of(const std::vector<forward_row>& rows, kv_pool& pool);
  void release_pages() {
    for (auto* page : pages_)
      if (page != nullptr) launcher_->release(page);
    pages_.clear();
    held_pages_ = 0;
  }

  std::unique_ptr<launcher> launcher_; // first in, last out
  const model_config* config_ = nullptr;
  std::optional<qwen3_weights> fresh_;
  std::unique_ptr<block_forward> forward_;
  std::optional<expert_parallel> exchange_;
  std::optional<sampler> chooser_;
  step_group step_;
  epoch_id epoch_; ///< of its group
  std::uint64_t local_pairs_ = 0;
  std::vector<void*> pages_; ///< by page of the pool; null where there is no memory
  std::size_t held_pages_ = 0;
  std::vector<sample_row> how_;
  mutable float_buffer row_;
};

result<void> launcher_device::load_fresh() {
  if (!fresh_) return {};
  launcher_->forget_graphs();
  forward_.reset(); // its memory first
  launcher_->trim();
  forward_ = make_block_forward(*launcher_, *config_, *fresh_);
  auto loaded = forward_->load(*fresh_);
  if (loaded) fresh_.reset();
  return loaded;
}

result<void> launcher_device::need_page(page_index page, const kv_pool& pool) {
  if (page >= pages_.size()) pages_.resize(page + 1, nullptr);
  if (pages_[page] != nullptr) return {};
  auto memory = launcher_->allocate(pool.layout().page_bytes());
  if (!memory) return tl::unexpected(memory.error());
  pages_[page] = *memory;
  ++held_pages_;
  return {};
}

/// The pool became smaller: pages that nobody holds give their memory to experts.
void launcher_device::release_surplus(const kv_pool& pool) {
  const auto before = held_pages_;
  for (page_index p = 0; p < pages_.size() && held_pages_ > pool.usage().capacity; ++p)
    if (pages_[p] != nullptr && pool.references(p) == 0) {
      launcher_->release(pages_[p]);
      pages_[p] = nullptr;
      --held_pages_;
    }
  if (held_pages_ < before) launcher_->trim();
}

result<step_input> launcher_device::input_of(const std::vector<forward_row>& rows, kv_pool& pool) {
  step_input in;
  in.kv = pool.layout().type;
  how_.clear();
  const page_index* shared = nullptr;
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    const auto& row = rows[r];
    const auto pages = row.position / kv_page_tokens + 1;
    in.token.push_back(static_cast<std::uint32_t>(row.token));
    in.position.push_back(row.position);
    in.longest = std::max(in.longest, row.position + 1);
    const bool same = r > 0 && row.pages == shared;
    if (!same || r - in.tile.back() == tile_rows_max) in.tile.push_back(r);
    const auto known = same ? in.pages.size() - in.table.back() : 0;
    in.table.push_back(same ? in.table.back() : static_cast<std::uint32_t>(in.pages.size()));
    for (auto p = known; p < pages; ++p) {
      if (auto ok = need_page(row.pages[p], pool); !ok) return tl::unexpected(ok.error());
      in.pages.push_back(pages_[row.pages[p]]);
    }
    shared = row.pages;
    if (!row.wants_logits) continue;
    in.wanted.push_back(r);
    how_.push_back({0, row.position + 1, 0, row.random_key});
    if (row.sampling != nullptr) {
      how_.back().temperature = row.sampling->temperature;
      how_.back().seed = row.sampling->seed;
    }
  }
  in.decode = in.tile.size() == rows.size();
  in.tile.push_back(in.rows());
  in.how = how_;
  return in;
}

result<void> launcher_device::run(const std::vector<forward_row>& rows, kv_pool& pool) {
  if (auto ok = load_fresh(); !ok) return ok;
  release_surplus(pool);
  if (config_->moe())
    if (auto ok = forward_->serve(*step_.experts); !ok) return ok;
  auto in = input_of(rows, pool);
  if (!in) return tl::unexpected(in.error());
  const bool in_group =
      config_->moe() && step_.group != nullptr && step_.group->members().size() > 1;
  if (!in_group)
    if (auto ok = exchange_->headers_only(); !ok) return ok;
  if (!in_group && config_->moe())
    local_pairs_ += rows.size() * config_->num_experts_per_tok * config_->num_hidden_layers;
  return forward_->run(*in, in_group ? &*exchange_ : nullptr);
}

result<sampled_token> launcher_device::sample(std::size_t i, const sampling_spec& spec,
                                              std::uint64_t random_key, std::uint32_t position) {
  const auto& known = how_[i];
  const bool truncated =
      spec.temperature != 0.0F
      && (spec.top_p < 1.0F || (spec.top_k > 0 && spec.top_k < config_->vocab_size));
  const bool drawn = known.temperature == spec.temperature && known.seed == spec.seed
                     && known.random_key == random_key && known.position == position;
  if (truncated || !drawn) return chooser_->sample(logits(i), spec, random_key, position);
  const auto& row = forward_->chosen()[i];
  if (!std::isfinite(row.log_sum))
    return fail(error_code::internal, "a logit is not finite; the weights are damaged");
  return sampled_token{static_cast<token_id>(row.token), row.logprob};
}

} // namespace

std::unique_ptr<device> make_launcher_device(std::unique_ptr<launcher> where) {
  return std::make_unique<launcher_device>(std::move(where));
}

} // namespace adafloor
