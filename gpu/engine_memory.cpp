// One budget for experts and KV pages: who takes experts gives pages.
#include "gpu/engine_state.hpp"

#include <algorithm>
#include <cassert>

namespace adafloor {

std::uint64_t engine::state::weight_bytes(std::size_t resident_experts) const {
  return facts.dense_bytes + resident_experts * experts->layout().bytes();
}

/// KV pages that the budget leaves beside so many experts, at most the configured ones.
std::uint32_t engine::state::kv_room(std::size_t resident_experts) const {
  if (options.memory_bytes == 0) return options.kv_pages;
  const auto weights = weight_bytes(resident_experts);
  if (weights >= options.memory_bytes) return 0;
  const auto pages = (options.memory_bytes - weights) / pool->page_bytes();
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, options.kv_pages));
}

result<void> engine::state::check_budget() const {
  const auto resident = experts->occupied();
  if (kv_room(resident) > 0) return {};
  return bad_input(
      "engine: memory_bytes is " + std::to_string(options.memory_bytes)
      + ", the dense weights take " + std::to_string(facts.dense_bytes) + " and the "
      + std::to_string(resident) + " experts of rank " + std::to_string(options.self.value) + " "
      + std::to_string(weight_bytes(resident) - facts.dense_bytes) + "; with one KV page at least "
      + std::to_string(weight_bytes(resident) + pool->page_bytes())
      + " is needed, or 0 for no budget");
}

/// Whether so many experts leave the pages that are used or promised, and enough for each request
/// to end, alone if need be. Takes nothing.
result<void> engine::state::make_room(std::size_t resident_experts) const {
  if (options.memory_bytes == 0) return {};
  const auto room = kv_room(resident_experts);
  const auto usage = pool->usage();
  std::uint32_t largest = 1;
  for (const auto& r : requests)
    largest = std::max(largest, pages_for(std::uint64_t{r.prompt_tokens} + r.spec.max_tokens));
  if (room >= std::max(usage.used + usage.promised, largest)) return {};
  return fail(error_code::refused,
              "memory budget of rank " + std::to_string(options.self.value) + ": "
                  + std::to_string(resident_experts) + " experts of "
                  + std::to_string(experts->layout().bytes()) + " bytes leave "
                  + std::to_string(room) + " KV pages of " + std::to_string(pool->page_bytes())
                  + " bytes out of " + std::to_string(options.memory_bytes) + "; "
                  + std::to_string(usage.used) + " are used, " + std::to_string(usage.promised)
                  + " promised, and the largest request needs " + std::to_string(largest)
                  + "; let requests end or move first, or raise the budget");
}

/// To what the experts leave. Only after `make_room`, or when experts were given back.
void engine::state::resize_kv() {
  [[maybe_unused]] const auto done = pool->set_capacity(kv_room(experts->occupied()));
  assert(done);
}

kv_usage engine::kv() const {
  return state_->pool->usage();
}

memory_usage engine::memory() const {
  const auto& s = *state_;
  const auto weights = s.weight_bytes(s.experts->occupied());
  return {s.options.memory_bytes, s.facts.dense_bytes, weights - s.facts.dense_bytes,
          s.pool->resident_pages() * s.pool->page_bytes()};
}

result<void> engine::set_kv_capacity(std::uint32_t pages) {
  auto& s = *state_;
  const auto usage = s.pool->usage();
  if (pages == 0 || usage.used + usage.promised > pages) return s.pool->set_capacity(pages);
  s.options.kv_pages = pages;
  s.resize_kv();
  return {};
}

} // namespace adafloor
