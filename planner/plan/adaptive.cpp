#include "planner/plan/adaptive.hpp"

#include <algorithm>

namespace adafloor {

floor_plan adaptive_choice(const std::vector<predicted_prompt>& /*workload*/,
                           const std::vector<std::size_t>& /*prompts*/,
                           const std::vector<layout_unit>& units, const plan_options& options) {
  auto stages = stage_sizes(options.group_sizes, options.world, std::max(options.floor, 1));
  std::reverse(stages.begin(), stages.end());
  auto world = static_cast<std::size_t>(options.world);
  for (int floor : stages) {
    // A pool that is resized with the group binds at each size on its own.
    auto capacity = capacity_at(options.capacities, options.resize_pool ? options.world : floor,
                                options.experts)
                    * 1000;
    if (auto matching = match_units(units, world, capacity))
      return plan_for_matching(units, std::move(*matching), options, floor);
  }
  return full_world(units, options.world,
                    capacity_at(options.capacities, options.world, options.experts) * 1000);
}

} // namespace adafloor
