#pragma once
// What `plan`, `simulate` and `history` read, and the options that they share.
#include "planner/plan/arms.hpp"
#include "planner/plan/history_stats.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace adafloor {

/// Reads a history CSV, a trainer's dump or a folder of dumps in order of their numbers; plain,
/// gzip or zstd. Errors: io; bad_input with FILE:LINE.
result<length_history> load_history(const std::string& path);

std::int32_t longest_response(const length_history& history);

/// Reads a cost model: a file, or a name of config/cost_models (ADAFLOOR_COST_MODELS,
/// share/adafloor beside bin/, the source tree). Errors: bad_input listing the known names, or
/// FILE:LINE.
result<cost_model> load_cost_model(const std::string& name_or_path);

nlohmann::json guard_json(const guard_fit& fit);
/// One sentence.
std::string guard_text(const guard_fit& fit);

/// Options as typed.
struct plan_flags {
  std::string history, workload, cost_model = "ascend-eager";
  std::vector<std::string> history_epochs, workload_epochs;
  int world = 16, prompts_per_step = 32, max_num_seqs = 32, max_response_length = 0;
  int experts = 128, scenarios = 12, stragglers_max = 8;
  std::string floor = "auto", guard = "off", migrate = "consolidate", residency = "natural";
  std::vector<int> group_sizes{16, 8, 4, 2};
  std::vector<std::string> capacities, planned_capacities; ///< RANKS:TOKENS
  double guard_ratio = 0, kv_margin = 1.16, lambda = 1, guard_quantile = 0.95;
  bool resize_pool = false, count_prompt_tokens = false, sizes_given = false;
};

/// Adds them to `command`.
void add_plan_options(CLI::App& command, plan_flags& flags);

/// Flags with everything looked up and checked.
struct plan_inputs {
  length_history history, workload;
  std::vector<std::uint32_t> history_epochs, workload_epochs; ///< indices
  arm_base arms; ///< arms.base is complete but for policy, migration and capacities
  migrate_kind migrate = migrate_kind::consolidate;
  residency_kind residency = residency_kind::natural;
};

/// Errors: bad_input naming the flag, its value, what is allowed, and the nearest known name.
result<plan_inputs> resolve(const plan_flags& flags);

/// The prompts of past epochs, oldest first.
epoch_list past_epochs(const length_history& history, const std::vector<std::uint32_t>& epochs);

} // namespace adafloor
