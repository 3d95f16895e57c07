// Which rows a step computes: admission, chunked prefill, shared prompt pages, preemption.
#include "gpu/engine_state.hpp"

#include <algorithm>
#include <utility>

namespace adafloor {

namespace {

/// Tokens of prompt page `index`.
page_tokens tokens_of_page(const live_request& r, std::uint32_t index) {
  page_tokens tokens{};
  std::copy_n(r.tokens.begin() + index * kv_page_tokens, kv_page_tokens, tokens.begin());
  return tokens;
}

std::optional<page_index> parent_of(const live_request& r, std::uint32_t index) {
  if (index == 0) return std::nullopt;
  return r.pages[index - 1];
}

shared_page_key key_of(const live_request& r, std::uint32_t index) {
  auto parent = parent_of(r, index);
  return {parent ? static_cast<std::int64_t>(*parent) : -1, tokens_of_page(r, index)};
}

} // namespace

/// Pages that are promised to a request before it runs here, whether it is new or has moved.
std::uint32_t engine::state::reservation_of(const live_request& r) const {
  auto reserved = options.reserved_response_tokens == 0
                      ? r.spec.max_tokens
                      : std::min(r.spec.max_tokens, options.reserved_response_tokens);
  return pages_for(
      std::max<std::uint64_t>(r.prompt_tokens + std::uint64_t{reserved}, r.tokens.size()));
}

/// First come, first served: a request that does not fit holds back those behind it.
void engine::state::admit() {
  while (!waiting.empty() && running.size() + imports.size() < options.max_num_seqs) {
    auto& r = *waiting.front();
    const auto pages = reservation_of(r);
    if (!pool->promise(pages)) return;
    r.promised = pages;
    r.state = request_progress::running;
    if (std::exchange(r.preempted, false)) counters.recomputed_tokens += r.tokens.size();
    running.push_back(&r);
    waiting.pop_front();
  }
}

/// Takes over full prompt pages that another request has computed or computes in this very step,
/// with rows before those of `r`. Returns how many are of this step.
std::uint32_t engine::state::adopt_shared_pages(live_request& r, const page_table& in_flight) {
  std::uint32_t borrowed = 0;
  if (r.spec.keep_logits) return borrowed;
  while (r.computed % kv_page_tokens == 0 && r.computed + kv_page_tokens < r.prompt_tokens) {
    auto index = r.computed / kv_page_tokens;
    if (r.pages.size() > index) break;
    auto key = key_of(r, index);
    auto page = pool->find_shared(parent_of(r, index), key.second);
    if (!page) {
      auto filled = in_flight.find(key);
      if (filled == in_flight.end()) break;
      page = filled->second;
      ++borrowed;
    }
    pool->retain(*page);
    r.pages.push_back(*page);
    r.computed += kv_page_tokens;
    if (r.promised > 0) {
      --r.promised;
      pool->withdraw(1);
    }
    ++counters.shared_pages;
  }
  return borrowed;
}

/// Undoes the plan of a step that failed: nothing was written into the pages that it was to fill.
void engine::state::give_back(const std::vector<chunk>& chunks) {
  for (const auto& [r, rows, borrowed] : chunks)
    for (std::uint32_t i = 0; i < borrowed; ++i) {
      r->computed -= kv_page_tokens;
      auto page = r->pages.begin() + r->computed / kv_page_tokens;
      pool->release(*page);
      r->pages.erase(page);
      r->promised += pool->promise(1) ? 1 : 0;
      --counters.shared_pages;
    }
}

/// Drops the KV of a running request; it waits at the front and is computed again.
void engine::state::preempt(live_request& r) {
  free_pages(r);
  r.computed = 0;
  r.preempted = true;
  r.state = request_progress::waiting;
  running.remove(&r);
  waiting.push_front(&r);
  ++counters.preemptions;
}

/// Gives `r` pages for its first `positions` positions, at the cost of later requests where there
/// is no other way. False: r itself was the latest and is preempted.
bool engine::state::cover(live_request& r, std::uint32_t positions) {
  while (r.pages.size() * kv_page_tokens < positions) {
    if (r.promised > 0) {
      --r.promised;
      r.pages.push_back(pool->take_promised());
      continue;
    }
    if (auto page = pool->take_available()) {
      r.pages.push_back(*page);
      continue;
    }
    auto* latest = running.back();
    preempt(*latest);
    if (latest == &r) return false;
  }
  return true;
}

std::vector<engine::state::chunk> engine::state::plan_step() {
  std::vector<chunk> chunks;
  page_table in_flight;
  auto budget = options.prefill_budget;
  for (auto i = running.begin(); i != running.end(); ++i) {
    auto& r = **i;
    auto borrowed = adopt_shared_pages(r, in_flight);
    auto left = static_cast<std::uint32_t>(r.tokens.size()) - r.computed;
    bool decodes = left == 1 && r.computed >= r.prompt_tokens;
    auto rows = decodes ? 1 : std::min(left, budget);
    if (rows == 0 && borrowed == 0) continue;
    if (!cover(r, r.computed + rows)) break; // r was the last of the list and has left it
    if (!decodes) budget -= rows;
    for (auto page = r.computed / kv_page_tokens;
         (page + 1) * kv_page_tokens <= std::min(r.prompt_tokens, r.computed + rows); ++page)
      in_flight.emplace(key_of(r, page), r.pages[page]);
    chunks.push_back({&r, rows, borrowed});
  }
  return chunks;
}

step_outlook engine::state::outlook() const {
  step_outlook ahead;
  ahead.recomputed_tokens = counters.recomputed_tokens;
  ahead.received_tokens = counters.received_tokens;
  auto until_full = ahead.steps; ///< until some request has filled the pages that are its own
  for (const auto* r : running) {
    ++ahead.running;
    ahead.kv_tokens += r->response_tokens();
    ahead.kv_prompt_tokens += r->prompt_tokens;
    auto last = r->forced ? r->tokens.size() - r->prompt_tokens : r->spec.max_tokens;
    ahead.steps = std::min(ahead.steps, static_cast<std::uint32_t>(last) - r->response_tokens());
    auto own = (r->pages.size() + r->promised) * kv_page_tokens;
    auto left = own > r->tokens.size() ? own - r->tokens.size() : 0;
    until_full = std::min(until_full, static_cast<std::uint32_t>(left));
  }
  // Then each may need a free page at once, which lasts for kv_page_tokens steps.
  if (ahead.running > 0) until_full += pool->usage().available() / ahead.running * kv_page_tokens;
  ahead.steps = std::max(std::min(ahead.steps, until_full), 1U);
  return ahead;
}

/// Prompt pages that became full since `before` positions were computed.
void engine::state::publish_pages(const live_request& r, std::uint32_t before) {
  auto full = std::min(r.computed, r.prompt_tokens) / kv_page_tokens;
  for (auto page = before / kv_page_tokens; page < full; ++page)
    pool->publish(parent_of(r, page), tokens_of_page(r, page), r.pages[page]);
}

} // namespace adafloor
