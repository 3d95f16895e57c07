#pragma once
// The page of a simulation: rank timelines of arms, step tails.
#include "planner/plan/arms.hpp"

#include <string>
#include <vector>

namespace adafloor {

/// One HTML file that needs no network: per arm a timeline of all ranks, and the predicted and real
/// tail of each step. `results` must have recorded spans. `heading` is plain text.
std::string simulation_page(const std::string& heading, const std::vector<arm_result>& results);

} // namespace adafloor
