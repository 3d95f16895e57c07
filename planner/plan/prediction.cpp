#include "planner/plan/prediction.hpp"

#include <algorithm>

namespace adafloor {
namespace {

struct record {
  double tail = 0;
  std::vector<std::int32_t> latest, pool;
};

// Evenly spaced quantiles of all past lengths, longest first.
std::vector<std::int32_t> pooled_sample(const epoch_list& past, const prediction_options& options) {
  std::vector<std::int32_t> all;
  for (const auto& epoch : past)
    for (const auto& prompt : epoch)
      all.insert(all.end(), prompt.lengths.begin(), prompt.lengths.end());
  auto n = static_cast<std::size_t>(std::max(1, options.responses_per_prompt));
  if (all.empty()) return std::vector<std::int32_t>(n, options.max_response_length);
  std::sort(all.begin(), all.end(), std::greater<>{});
  std::vector<std::int32_t> out;
  for (std::size_t k = 0; k < n; ++k)
    out.push_back(std::min(all[(2 * k + 1) * all.size() / (2 * n)], options.max_response_length));
  return out;
}

} // namespace

std::vector<predicted_prompt> predict(const epoch_list& past,
                                      const std::vector<prompt_lengths>& workload,
                                      const prediction_options& options) {
  std::unordered_map<std::string_view, record> seen; // looked up, never iterated
  for (const auto& epoch : past)
    for (const auto& prompt : epoch) {
      if (prompt.lengths.empty()) continue;
      auto [place, fresh] = seen.try_emplace(prompt.id);
      auto& r = place->second;
      double tail = *std::max_element(prompt.lengths.begin(), prompt.lengths.end());
      r.tail = fresh ? tail : options.weight_old * r.tail + options.weight_observed * tail;
      r.latest = prompt.lengths;
      r.pool.insert(r.pool.end(), prompt.lengths.begin(), prompt.lengths.end());
    }
  auto unknown = pooled_sample(past, options);
  std::vector<predicted_prompt> out;
  out.reserve(workload.size());
  for (const auto& prompt : workload) {
    predicted_prompt p;
    p.id = prompt.id;
    p.prompt_tokens = prompt.prompt_tokens;
    auto place = seen.find(prompt.id);
    p.known = place != seen.end();
    p.lengths = p.known ? place->second.latest : unknown;
    p.pool = p.known ? place->second.pool : unknown;
    for (auto* list : {&p.lengths, &p.pool}) {
      for (auto& length : *list)
        length = std::min(length, options.max_response_length);
      std::sort(list->begin(), list->end(), std::greater<>{});
    }
    p.tail = p.known ? std::min<double>(place->second.tail, options.max_response_length)
                     : p.lengths.front();
    out.push_back(std::move(p));
  }
  return out;
}

} // namespace adafloor
