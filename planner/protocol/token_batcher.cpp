#include "planner/protocol/token_batcher.hpp"

#include <algorithm>

namespace adafloor {

void begin(token_batcher& b, rollout_id rollout) {
  b.rollout = rollout;
  b.sequence = b.kept = 0;
  b.runs.clear();
  b.last_run.clear();
  b.tokens = 0;
}

void add(token_batcher& b, request_id request, std::uint32_t index, token_id token, float logprob,
         time_point now) {
  if (b.lag_max == microseconds{0}) return;
  if (b.tokens++ == 0) b.oldest_at = now;
  auto [known, fresh] = b.last_run.emplace(request, b.runs.size());
  if (!fresh) {
    const auto& run = b.runs[known->second];
    fresh = run.first + run.tokens.size() != index; // It was elsewhere in between.
    if (fresh) known->second = b.runs.size();
  }
  if (fresh) b.runs.push_back({request, index, {}, {}});
  auto& run = b.runs[known->second];
  run.tokens.push_back(token);
  run.logprobs.push_back(logprob);
}

namespace {

/// Moves whole runs, or the head of one that is too long, until the batch is full.
void fill(token_batcher& b, token_batch& batch) {
  std::size_t room = b.tokens_max, whole = 0;
  for (; whole < b.runs.size() && b.runs[whole].tokens.size() <= room; ++whole) {
    room -= b.runs[whole].tokens.size();
    batch.runs.push_back(std::move(b.runs[whole]));
  }
  b.runs.erase(b.runs.begin(), b.runs.begin() + static_cast<std::ptrdiff_t>(whole));
  if (!b.runs.empty() && room > 0) {
    auto& rest = b.runs.front();
    const auto cut = static_cast<std::ptrdiff_t>(room);
    batch.runs.push_back({rest.request,
                          rest.first,
                          {rest.tokens.begin(), rest.tokens.begin() + cut},
                          {rest.logprobs.begin(), rest.logprobs.begin() + cut}});
    rest.first += static_cast<std::uint32_t>(room);
    rest.tokens.erase(rest.tokens.begin(), rest.tokens.begin() + cut);
    rest.logprobs.erase(rest.logprobs.begin(), rest.logprobs.begin() + cut);
    room = 0;
  }
  b.tokens -= b.tokens_max - room;
  b.last_run.clear();
  for (std::size_t i = 0; i < b.runs.size(); ++i)
    b.last_run[b.runs[i].request] = i;
}

} // namespace

std::optional<token_batch> next_batch(token_batcher& b, bool all, time_point now) {
  if (b.tokens == 0) return std::nullopt;
  const bool ripe = b.tokens >= b.tokens_max || now - b.oldest_at >= b.lag_max;
  const bool room = b.sequence - b.kept < b.window;
  if (!all && !(ripe && room)) return std::nullopt;
  token_batch batch{b.rollout, ++b.sequence, {}};
  fill(b, batch);
  b.oldest_at = now;
  return batch;
}

void hear(token_batcher& b, const tokens_kept& told) {
  if (told.rollout == b.rollout && told.sequence <= b.sequence)
    b.kept = std::max(b.kept, told.sequence);
}

} // namespace adafloor
