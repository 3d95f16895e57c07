#include "planner/plan/scenario.hpp"

#include "planner/plan/chance.hpp"

#include <algorithm>

namespace adafloor {

survival_model::survival_model(const std::vector<predicted_prompt>& predicted,
                               const std::vector<std::size_t>& prompts)
  : own_(predicted.size()) {
  for (auto p : prompts)
    own_[p].assign(predicted[p].pool.rbegin(), predicted[p].pool.rend());
  for (const auto& prompt : predicted) {
    const auto& pool = prompt.pool;
    if (prompt.known && pool.size() >= 2 && pool[1] > 0)
      overshoots_.push_back(static_cast<double>(pool[0]) / pool[1]);
  }
  // With little history: a mild heavy tail, so that nothing is certain.
  if (overshoots_.size() < 16) overshoots_.insert(overshoots_.end(), {1.05, 1.1, 1.2, 1.4, 1.8});
  std::sort(overshoots_.begin(), overshoots_.end());
}

double survival_model::draw(std::size_t prompt, double tokens, double limit, double u) const {
  const auto& own = own_[prompt];
  auto from = std::upper_bound(own.begin(), own.end(), tokens);
  auto count = static_cast<double>(own.end() - from);
  double place = u * (count + 1);
  if (place < count)
    return std::min<double>(limit,
                            std::max(from[static_cast<std::ptrdiff_t>(place)] * 1.0, tokens + 1));
  double rest = place - count; // again uniform in [0, 1)
  double longest = own.empty() ? std::max(tokens, 1.0) : own.back();
  auto first = std::upper_bound(overshoots_.begin(), overshoots_.end(), tokens / longest);
  if (first == overshoots_.end()) { // beyond all that was seen: the same tail again from here
    longest = tokens;
    first = overshoots_.begin();
  }
  auto left = static_cast<double>(overshoots_.end() - first);
  double length = longest * first[static_cast<std::ptrdiff_t>(rest * left)];
  return std::min(limit, std::max(length, tokens + 1));
}

std::vector<std::vector<double>> sample_finals(exit_memory& memory, const survival_model& model,
                                               const std::vector<exit_request>& live, double limit,
                                               std::uint64_t seed, int count) {
  std::uint64_t most = 0;
  for (const auto& request : live)
    most = std::max(most, request.request + 1);
  memory.finals.resize(std::max(memory.finals.size(), static_cast<std::size_t>(count)));
  std::vector<std::vector<double>> out(static_cast<std::size_t>(count));
  for (std::size_t s = 0; s < out.size(); ++s) {
    auto& kept = memory.finals[s];
    if (kept.size() < most) kept.resize(most, -1);
    out[s].reserve(live.size());
    for (const auto& request : live) {
      auto& final = kept[request.request];
      if (final <= request.tokens && final < limit)
        final =
            model.draw(request.prompt, request.tokens, limit, draw_unit(seed, s, memory.draws++));
      out[s].push_back(final);
    }
  }
  return out;
}

} // namespace adafloor
