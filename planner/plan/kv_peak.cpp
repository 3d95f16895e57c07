#include "planner/plan/kv_peak.hpp"

#include <algorithm>

namespace adafloor {

milli_tokens kv_peak(const std::vector<kv_item>& items) {
  milli_tokens peak = 0, prompts = 0;
  for (std::size_t k = 0; k < items.size(); ++k) {
    prompts += items[k].prompt;
    peak = std::max(peak, static_cast<milli_tokens>(k + 1) * items[k].length + prompts);
  }
  return peak;
}

std::vector<kv_item> kv_items(const predicted_prompt& prompt, const kv_options& options) {
  std::vector<kv_item> items;
  items.reserve(prompt.lengths.size());
  milli_tokens limit = milli_tokens{options.max_response_length} * 1000;
  milli_tokens held = options.count_prompt_tokens ? milli_tokens{prompt.prompt_tokens} * 1000 : 0;
  for (auto length : prompt.lengths)
    items.push_back({std::min(milli_tokens{length} * options.margin_milli, limit), held});
  return items;
}

milli_tokens kv_peak(const std::vector<const std::vector<kv_item>*>& sets) {
  if (sets.size() == 1) return kv_peak(*sets.front());
  std::vector<kv_item> merged;
  if (sets.size() == 2) {
    // The common case, a candidate pair, without building the merged list.
    const auto &a = *sets[0], &b = *sets[1];
    milli_tokens peak = 0, prompts = 0, count = 0;
    for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
      bool from_a = j == b.size() || (i < a.size() && a[i].length >= b[j].length);
      const auto& item = from_a ? a[i++] : b[j++];
      prompts += item.prompt;
      peak = std::max(peak, ++count * item.length + prompts);
    }
    return peak;
  }
  for (const auto* set : sets)
    merged.insert(merged.end(), set->begin(), set->end());
  std::sort(merged.begin(), merged.end(),
            [](const kv_item& a, const kv_item& b) { return a.length > b.length; });
  return kv_peak(merged);
}

} // namespace adafloor
