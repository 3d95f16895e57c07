#pragma once
// Several engines of one process that step together, for tests that change the group in between.
#include "gpu/digest.hpp"
#include "gpu/engine.hpp"
#include "gpu/loopback.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <thread>

namespace adafloor::tests {

inline const std::string golden = ADAFLOOR_SOURCE_DIR "/tests/golden/";
inline const std::string collatz = golden + "models/collatz-moe-v3";

inline bytes_view view(const byte_string& bytes) {
  return {bytes.data(), bytes.size()};
}

/// What a destination gets of a loan.
inline byte_string blob_of(const page_loan& loan) {
  byte_string blob;
  for (const auto& page : loan.pages)
    blob.insert(blob.end(), page.data, page.data + page.size);
  blob.insert(blob.end(), loan.foot.begin(), loan.foot.end());
  return blob;
}

/// An expert as a peer gets it.
inline result<byte_string> expert_blob(const engine& from, std::uint32_t expert) {
  auto loan = from.lend_expert(expert);
  if (!loan) return tl::unexpected(loan.error());
  byte_string blob(loan->weights.data, loan->weights.data + loan->weights.size);
  blob.insert(blob.end(), loan->foot.begin(), loan->foot.end());
  return blob;
}

/// Lands what a peer sent, or as much of it as there is, and imports it.
inline result<void> import_blob(engine& into, const byte_string& blob) {
  auto landing = into.open_expert_landing();
  const auto weights = std::min(blob.size(), landing.weights_bytes);
  std::copy_n(blob.begin(), weights, landing.weights);
  std::copy_n(blob.begin() + static_cast<std::ptrdiff_t>(weights),
              std::min(blob.size() - weights, landing.foot.size()), landing.foot.begin());
  landing.digest = wide_digest64(landing.weights, landing.weights_bytes);
  return into.import_expert(std::move(landing));
}

/// Fails the test with the error's text where there is one.
template <class T>
T must(result<T> value) {
  if (!value) BOOST_FAIL("unexpected error: " << value.error().text);
  if constexpr (!std::is_void_v<T>) return std::move(*value);
}

/// Lent, copied and taken back.
inline byte_string pages_of(engine& from, request_id id, std::uint32_t first, std::uint32_t count) {
  auto loan = must(from.lend_pages(id, first, count));
  auto blob = blob_of(loan);
  engine::take_back(std::move(loan));
  return blob;
}

/// The text of an error that must be there.
template <class T>
std::string text_of(const result<T>& value) {
  BOOST_REQUIRE(!value);
  return value.error().text;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class engine_world {
public:
  engine_world(const std::string& model, std::uint32_t ranks, engine_options options = {})
    : fabrics_(make_loopback_fabrics(ranks)) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      options.self = rank_id{r};
      options.world_size = ranks;
      engines_.push_back(must(engine::load(model, options)));
      members_.emplace_back(r);
    }
    regroup(members_);
  }

  engine& at(std::size_t rank) { return *engines_[rank]; }
  std::size_t size() const { return engines_.size(); }
  const std::vector<rank_id>& members() const { return members_; }
  epoch_id epoch() const { return epoch_; }

  /// A new group of these members under a new epoch.
  void regroup(std::vector<rank_id> members) {
    epoch_ = epoch_id{epoch_.value + 1};
    members_ = std::move(members);
    groups_.clear();
    for (auto member : members_)
      groups_.push_back(must(fabrics_[member.value]->make_group(epoch_, members_)));
  }

  /// Brings the experts of `map` from peers, then switches all members of the new group.
  void contract(std::vector<rank_id> members, const expert_map& map) {
    for (auto member : members)
      for (auto expert : must(at(member.value).prepare_experts(map)))
        for (auto& peer : engines_)
          if (auto blob = expert_blob(*peer, expert)) {
            must(import_blob(at(member.value), *blob));
            break;
          }
    regroup(std::move(members));
    for (auto member : members_)
      must(at(member.value).switch_map(epoch_, map, members_));
  }

  std::uint32_t live() const {
    std::uint32_t sum = 0;
    for (const auto& engine : engines_)
      sum += engine->live_requests();
    return sum;
  }

  /// `act(engine, communicator, position)` of all members at the same time.
  template <class F>
  void together(F act) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < members_.size(); ++i)
      threads.emplace_back([&, i] { act(at(members_[i].value), groups_[i].get(), i); });
    for (auto& thread : threads)
      thread.join();
  }

  /// One step of all members; finished requests go to `outputs`. `holds`: member that holds time.
  std::vector<step_output> step(std::size_t holds = SIZE_MAX) {
    std::vector<result<step_output>> results(members_.size());
    together([&](engine& engine, communicator* group, std::size_t i) {
      results[i] =
          engine.step(group, {epoch_, step_, epoch_, engine.live_requests(), 0}, i == holds);
    });
    ++step_;
    std::vector<step_output> outs;
    for (auto& out : results) {
      outs.push_back(must(std::move(out)));
      for (auto& finished : outs.back().finished)
        outputs[finished.id] = finished;
    }
    return outs;
  }

  void run() {
    while (live() > 0)
      step();
  }

  std::map<request_id, request_output> outputs;

private:
  std::vector<std::unique_ptr<collective_fabric>> fabrics_;
  std::vector<std::unique_ptr<engine>> engines_;
  std::vector<std::unique_ptr<communicator>> groups_;
  std::vector<rank_id> members_;
  epoch_id epoch_;
  std::uint64_t step_ = 0;
};

/// A collatz prompt: BOS and six digits of `n`, least significant first.
inline std::vector<token_id> collatz_prompt(std::uint32_t n) {
  std::vector<token_id> prompt = {11};
  for (int digit = 0; digit < 6; ++digit, n /= 10)
    prompt.push_back(static_cast<token_id>(n % 10));
  return prompt;
}

/// Request `id` on a prompt of its own, sampled at temperature 1.
inline request_spec sampled_request(std::uint64_t id, std::uint32_t max_tokens = 90) {
  static const std::uint32_t numbers[] = {6, 7, 3, 97, 27, 12, 871, 5, 64, 703, 9, 33};
  request_spec spec;
  spec.id = request_id{id};
  spec.random_key = 1000 + id;
  spec.prompt = collatz_prompt(numbers[id % 12]);
  spec.max_tokens = max_tokens;
  spec.sampling.seed = 42;
  return spec;
}

inline bool same_bits(const std::map<request_id, request_output>& a,
                      const std::map<request_id, request_output>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [id, x] : a) {
    auto y = b.find(id);
    if (y == b.end() || x.tokens != y->second.tokens || x.logprobs != y->second.logprobs
        || x.stop != y->second.stop)
      return false;
  }
  return true;
}

} // namespace adafloor::tests
