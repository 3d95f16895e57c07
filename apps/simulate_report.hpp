#pragma once
// What `adafloor simulate` found, as JSON and as text.
#include "planner/plan/arms.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace adafloor {

struct simulated_arm {
  arm_result result;
  std::optional<arm_result> equal_work; ///< guarded arms: the same plan without the cap
  std::string digest;
};

struct simulated_run {
  std::vector<std::string> history;
  std::string workload;
  int seed = 1;
  std::vector<simulated_arm> arms;
  double bound = 0; ///< least rank-seconds of the sorted step sets
};

struct run_record_set {
  std::vector<simulated_run> runs; ///< at least one; the same arms in each
  cost_model costs;
  int world = 0;
};

/// The lower bound on the steps of the adaptive policy with a pool per size.
double step_set_bound(const arm_base& base, const std::vector<prompt_lengths>& truth,
                      const std::vector<predicted_prompt>& predicted);

/// SHA-256 over (prompt id, sample, generated tokens) in order of prompt and sample, hex: equal
/// digests mean equal work.
std::string lengths_digest(const arm_spec& arm, const arm_result& result,
                           const std::vector<prompt_lengths>& truth);

std::string run_title(const run_record_set& set);
nlohmann::json report_json(const run_record_set& set);
/// An aligned table and a paragraph that reads it.
std::string report_text(const run_record_set& set);

} // namespace adafloor
