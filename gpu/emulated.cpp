#include "gpu/emulated.hpp"

#include "gpu/digest.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace adafloor {

namespace {

using steady = std::chrono::steady_clock;

/// A step that lasts longer than this is cut, so that a member is never deaf for long.
constexpr double step_clock_seconds_max = 0.1;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  auto x = a + 0x9e3779b97f4a7c15ULL * (b + 1); // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// What members tell each other; the same program on all of them, so bytes as they lie.
struct frame {
  step_header header;
  std::uint64_t map_hash = 0;
  std::uint64_t kv_tokens = 0, recomputed_tokens = 0, received_tokens = 0;
  double seconds = 0; ///< of the model, since the rollout began
  double waited = 0;  ///< seconds of the clock since this member was told to start the rollout
  std::uint32_t running = 0, steps = 0;
};
static_assert(std::is_trivially_copyable_v<frame>);

class emulated_device final : public device {
public:
  explicit emulated_device(std::shared_ptr<const emulation> how) : how_(std::move(how)) {}

  result<model_config> read_config(const std::string&) const override {
    model_config c;
    c.vocab_size = emulated_vocabulary;
    c.hidden_size = c.moe_intermediate_size = c.intermediate_size = 1;
    c.num_attention_heads = c.num_key_value_heads = c.head_dim = 1;
    c.num_hidden_layers = 1;
    const expert_layout layer{1, 1, 1};
    const auto bytes = static_cast<std::uint32_t>(layer.words() * sizeof(float));
    c.num_hidden_layers = std::max(how_->expert_bytes / bytes, 1U);
    c.max_position_embeddings = how_->max_positions;
    c.num_experts = how_->experts;
    c.num_experts_per_tok = 1;
    return c;
  }
  kv_layout pages(const model_config&, kv_dtype) const override {
    kv_layout plain;
    plain.plain_floats = std::max<std::size_t>(how_->kv_page_bytes / sizeof(float), kv_page_tokens);
    return plain;
  }
  result<qwen3_weights> read_dense(const std::string& dir, const model_config&,
                                   std::map<std::string, std::uint64_t>* digests) const override {
    (*digests)["emulated.dense"] = digest64(dir.data(), dir.size());
    return qwen3_weights{};
  }
  result<std::map<std::uint32_t, expert_ptr>>
  read_experts(const std::string& dir, const model_config& config,
               const std::vector<std::uint32_t>& experts,
               std::map<std::string, std::uint64_t>* digests) const override;
  void use(const model_config&, qwen3_weights) override {}

  result<std::uint32_t> begin(const step_group& step, const step_outlook& ahead) override;
  result<void> run(const std::vector<forward_row>& rows, kv_pool& pool) override;
  result<sampled_token> sample(std::size_t i, const sampling_spec& spec, std::uint64_t random_key,
                               std::uint32_t position) override {
    const auto word = mix(mix(marks_[i], spec.seed), mix(random_key, position));
    const auto token = static_cast<token_id>(word % emulated_vocabulary);
    return sampled_token{token, logprob_of(marks_[i], token)};
  }
  result<float> logprob(std::size_t i, token_id token) override {
    return logprob_of(marks_[i], token);
  }
  const float* logits(std::size_t) const override { return nullptr; }

  const std::vector<step_header>& headers() const override { return headers_; }
  std::uint64_t pairs_computed() const override { return 0; }
  std::chrono::nanoseconds exchange_time() const override { return exchange_time_; }

  time_point now() const override;
  time_point paused_until() const override { return at(paused_until_); }
  result<void> start_rollout(communicator* group) override;
  void pass_exit(std::size_t from, std::size_t to) override;
  result<device_pause> pass_restore(communicator* group) override;

private:
  static float logprob_of(std::uint32_t mark, token_id token) {
    return -static_cast<float>(1 + mix(mark, static_cast<std::uint64_t>(token)) % 64) / 16.0F;
  }
  time_point at(double seconds) const {
    return std::chrono::time_point_cast<microseconds>(
        began_
        + std::chrono::duration_cast<steady::duration>(
            std::chrono::duration<double>(seconds * how_->time_scale)));
  }
  result<void> exchange(communicator* group, const exchange_id& id, const frame& mine);
  void pass_copies(const step_outlook& ahead);
  bool group_ends() const;
  std::uint32_t agree_steps() const;
  std::uint32_t decode(std::uint32_t steps);

  std::shared_ptr<const emulation> how_;
  steady::time_point began_; ///< of the rollout, this rank's clock; seconds_ counts from here
  bool running_ = false;     ///< a rollout has begun
  double seconds_ = 0;
  double paused_until_ = 0;
  std::uint64_t recomputed_passed_ = 0, received_passed_ = 0; ///< whose time has passed
  std::vector<frame> frames_;                                 ///< by member
  std::vector<step_header> headers_;
  std::chrono::nanoseconds exchange_time_{0};
  std::vector<std::uint32_t> marks_; ///< of rows that wanted logits
};

result<std::map<std::uint32_t, expert_ptr>>
emulated_device::read_experts(const std::string& dir, const model_config& config,
                              const std::vector<std::uint32_t>& experts,
                              std::map<std::string, std::uint64_t>* digests) const {
  const expert_layout layout{config.num_hidden_layers, config.hidden_size,
                             config.moe_intermediate_size};
  const auto version = digest64(dir.data(), dir.size());
  std::map<std::uint32_t, expert_ptr> made;
  for (const auto expert : experts) {
    auto weights = std::make_shared<expert_weights>();
    weights->words = mapped_floats(layout.words());
    for (std::size_t i = 0; i < weights->words.size(); ++i)
      weights->words.data()[i] = static_cast<float>(mix(version, mix(expert, i)) >> 40);
    (*digests)["emulated.experts." + std::to_string(expert)] =
        digest64(weights->words.data(), weights->words.size() * sizeof(float));
    weights->digest = weights->computed_digest();
    made.emplace(expert, std::move(weights));
  }
  return made;
}

/// Leaves what every member said in frames_ and headers_.
result<void> emulated_device::exchange(communicator* group, const exchange_id& id,
                                       const frame& mine) {
  frames_.assign(group ? group->members().size() : 1, mine);
  headers_.assign(frames_.size(), mine.header);
  exchange_time_ = {};
  if (!group) return {};
  const bytes_view bytes{reinterpret_cast<const std::byte*>(&mine), sizeof mine};
  std::vector<bytes_view> incoming;
  const auto started = steady::now();
  auto done = group->exchange(id, std::vector<bytes_view>(frames_.size(), bytes), &incoming);
  exchange_time_ = steady::now() - started;
  if (!done) return done;
  for (std::size_t m = 0; m < frames_.size(); ++m) {
    const auto broken = [&](const char* what) {
      return fail(error_code::internal,
                  "emulated step " + std::to_string(mine.header.step) + ": frame of rank "
                      + std::to_string(group->members()[m].value) + " " + what);
    };
    if (incoming[m].size != sizeof mine) return broken("has another size");
    std::memcpy(&frames_[m], incoming[m].data, sizeof mine);
    headers_[m] = frames_[m].header;
    if (headers_[m].epoch != mine.header.epoch || headers_[m].step != mine.header.step)
      return broken("is of another step");
    if (frames_[m].map_hash != mine.map_hash) return broken("uses another expert map");
  }
  return {};
}

time_point emulated_device::now() const {
  return running_ ? at(seconds_) : device::now();
}

/// The rollout began when its first member was told so, on each member's own clock.
result<void> emulated_device::start_rollout(communicator* group) {
  frame mine;
  const auto told = steady::now();
  if (auto ok = exchange(group, {0, 0, exchange_id::combine}, mine); !ok) return ok;
  // How long this member waited for the last one says when that one came; the first came no later
  // than the one that waited longest. Clocks differ, so only differences are compared.
  mine.waited = std::chrono::duration<double>(steady::now() - told).count();
  if (auto ok = exchange(group, {0, 1, exchange_id::combine}, mine); !ok) return ok;
  double longest = 0;
  for (const auto& f : frames_)
    longest = std::max(longest, f.waited);
  began_ = told
           + std::chrono::duration_cast<steady::duration>(
               std::chrono::duration<double>(mine.waited - longest));
  running_ = true;
  seconds_ = paused_until_ = 0;
  return {};
}

void emulated_device::pass_exit(std::size_t from, std::size_t to) {
  if (how_->costs.exit) seconds_ += how_->costs.exit(static_cast<int>(from), static_cast<int>(to));
}

/// Members that come back take over the time of those that stayed.
result<device_pause> emulated_device::pass_restore(communicator* group) {
  frame mine;
  mine.seconds = seconds_;
  if (auto ok = exchange(group, {0, 0, exchange_id::combine}, mine); !ok)
    return tl::unexpected(ok.error());
  for (const auto& f : frames_)
    seconds_ = std::max(seconds_, f.seconds);
  const auto began = at(seconds_);
  seconds_ += how_->costs.restore_seconds;
  return device_pause{began, at(seconds_)};
}

/// The group stops for the KV that was copied to its members, longest copy.
void emulated_device::pass_copies(const step_outlook& ahead) {
  std::uint64_t most = 0;
  for (const auto& f : frames_)
    most = std::max(most, f.received_tokens);
  received_passed_ = ahead.received_tokens;
  if (most == 0 || !how_->costs.copy) return;
  seconds_ += how_->costs.copy(static_cast<double>(most));
  paused_until_ = seconds_;
}

/// 0 if a member holds time or nobody has anything to decode.
std::uint32_t emulated_device::agree_steps() const {
  auto steps = std::numeric_limits<std::uint32_t>::max();
  bool anything = false;
  for (const auto& f : frames_) {
    steps = std::min(steps, f.steps);
    anything = anything || f.running > 0;
  }
  return anything ? steps : 0;
}

/// True if this step is the last of its group (engine_loop takes the same decision).
bool emulated_device::group_ends() const {
  const auto next = headers_.front().ready_epoch;
  return next > headers_.front().epoch
         && std::all_of(headers_.begin(), headers_.end(),
                        [&](const auto& h) { return h.ready_epoch == next; });
}

/// Time of up to `steps` decode steps, as many as stay below the bound passes; at least one.
std::uint32_t emulated_device::decode(std::uint32_t steps) {
  const auto& costs = how_->costs;
  group_load load;
  load.ranks = static_cast<int>(frames_.size());
  for (const auto& f : frames_) {
    load.active += f.running > 0 ? 1 : 0;
    load.batch = std::max(load.batch, static_cast<int>(f.running));
    load.live += static_cast<int>(f.running);
    if (costs.recompute_per_second > 0)
      seconds_ += static_cast<double>(f.recomputed_tokens) / costs.recompute_per_second;
  }
  if (!costs.decode_step) return steps;
  const double until = seconds_ + step_clock_seconds_max / how_->time_scale;
  std::uint32_t done = 0;
  while (done < steps && (done == 0 || seconds_ < until)) {
    ++done;
    load.max_kv_tokens = 0;
    for (const auto& f : frames_)
      load.max_kv_tokens =
          std::max(load.max_kv_tokens,
                   static_cast<double>(f.kv_tokens) + static_cast<double>(f.running) * done);
    seconds_ += costs.decode_step(load);
  }
  return done;
}

result<std::uint32_t> emulated_device::begin(const step_group& step, const step_outlook& ahead) {
  frame mine;
  mine.header = step.mine;
  mine.map_hash = expert_map_hash(*step.owners);
  mine.kv_tokens = ahead.kv_tokens + (how_->costs.count_prompt_tokens ? ahead.kv_prompt_tokens : 0);
  mine.recomputed_tokens = ahead.recomputed_tokens - recomputed_passed_;
  mine.received_tokens = ahead.received_tokens - received_passed_;
  mine.seconds = seconds_;
  mine.running = ahead.running;
  mine.steps = ahead.hold ? 0 : ahead.steps;
  if (auto ok = exchange(step.group, {step.mine.step, 0, exchange_id::header}, mine); !ok)
    return tl::unexpected(ok.error());
  const auto steps = agree_steps();
  if (steps > 0 || group_ends()) pass_copies(ahead);
  if (steps == 0) return 0U;
  recomputed_passed_ = ahead.recomputed_tokens;
  return decode(steps);
}

/// A row's mark depends on its token and the mark before it, which lies in the KV pages.
result<void> emulated_device::run(const std::vector<forward_row>& rows, kv_pool& pool) {
  marks_.clear();
  const auto slot = [&](const forward_row& row, std::uint32_t position) {
    return pool.data(row.pages[position / kv_page_tokens]) + position % kv_page_tokens;
  };
  for (const auto& row : rows) {
    std::uint32_t before = 0;
    if (row.position > 0) std::memcpy(&before, slot(row, row.position - 1), sizeof before);
    const auto token = static_cast<std::uint64_t>(row.token);
    const auto mark = static_cast<std::uint32_t>(mix(mix(before, row.position), token));
    std::memcpy(slot(row, row.position), &mark, sizeof mark);
    if (row.wants_logits) marks_.push_back(mark);
  }
  return {};
}

} // namespace

std::unique_ptr<device> make_emulated_device(std::shared_ptr<const emulation> how) {
  return std::make_unique<emulated_device>(std::move(how));
}

} // namespace adafloor
