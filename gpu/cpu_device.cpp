// The device that computes: Qwen3 on this machine's CPU.
#include "gpu/checkpoint_device.hpp"
#include "gpu/qwen3.hpp"

namespace adafloor {

namespace {

class cpu_device final : public checkpoint_device {
public:
  void use(const model_config& config, qwen3_weights dense) override {
    weights_ = std::move(dense);
    if (forward_) return;
    vocabulary_ = config.vocab_size;
    forward_.emplace(config, weights_);
    exchange_.emplace(config);
    chooser_.emplace(vocabulary_);
  }

  result<std::uint32_t> begin(const step_group& step, const step_outlook&) override {
    if (auto ok = exchange_->begin(step); !ok) return tl::unexpected(ok.error());
    return 1;
  }
  result<void> run(const std::vector<forward_row>& rows, kv_pool& pool) override {
    return forward_->run(rows, pool, *exchange_);
  }
  result<sampled_token> sample(std::size_t i, const sampling_spec& spec, std::uint64_t random_key,
                               std::uint32_t position) override {
    return chooser_->sample(forward_->logits(i), spec, random_key, position);
  }
  result<float> logprob(std::size_t i, token_id token) override {
    return chooser_->logprob(forward_->logits(i), token);
  }
  const float* logits(std::size_t i) const override { return forward_->logits(i); }

  const std::vector<step_header>& headers() const override { return exchange_->headers(); }
  std::uint64_t pairs_computed() const override { return exchange_->pairs_computed(); }
  std::chrono::nanoseconds exchange_time() const override { return exchange_->exchange_time(); }

private:
  qwen3_weights weights_;
  std::uint32_t vocabulary_ = 0;
  std::optional<qwen3_forward> forward_;
  std::optional<expert_parallel> exchange_;
  std::optional<sampler> chooser_;
};

} // namespace

std::unique_ptr<device> make_cpu_device() {
  return std::make_unique<cpu_device>();
}

} // namespace adafloor
