// From what file and command line say to a job with nothing left open: what a run uses where
// neither says anything.
#include "apps/plan_inputs.hpp"
#include "apps/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

std::string absolute(const std::string& path) {
  return path.empty() ? path : fs::absolute(path).lexically_normal().string();
}

/// A folder that is not there yet: out/TIME, out/TIME-2, ...
std::string fresh_folder() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  const auto first = fs::absolute(fs::path{"out"} / text).string();
  auto folder = first;
  for (int i = 2; fs::exists(folder); ++i)
    folder = fmt::format("{}-{}", first, i);
  return folder;
}

/// Lengths that the version before `model` had; of v2 for a model that does not ship.
std::string shipped_history(const std::string& collatz, const std::string& model) {
  for (int version = 1; version <= 3; ++version) {
    if (model != fmt::format("{}/v{}-bf16", collatz, version)) continue;
    return version == 1 ? "" : fmt::format("{}/history/v{}.csv", collatz, version - 1);
  }
  return collatz + "/history/v2.csv";
}

/// world, world/2, ... down to the floor, which is always the last.
std::vector<std::uint32_t> halving_sizes(std::uint32_t world, std::uint32_t floor) {
  std::vector<std::uint32_t> sizes;
  for (auto size = world; size > floor; size /= 2) {
    sizes.push_back(size);
    if (size % 2 != 0) break;
  }
  if (floor <= world) sizes.push_back(floor);
  return sizes;
}

} // namespace

/// Policy, prompts and history that ship.
result<void> run_settings::fill_shipped() {
  const char* wrong = !task_.workload.empty()         ? "--workload"
                      : !task_.workload_epoch.empty() ? "--workload-epoch"
                      : task_.emulation.time_scale != emulation_settings{}.time_scale
                          ? "--time-scale"
                          : nullptr;
  if (wrong != nullptr)
    return bad_input(fmt::format("{}: only with --device emulated, which generates recorded "
                                 "lengths again; --device is {}",
                                 wrong, task_.device));
  const auto home = shipped_folder();
  const auto collatz = home + "/models/collatz-moe";
  const auto needs_home = task_.models.empty() || task_.prompts.empty();
  if (home.empty() && needs_home)
    return bad_input("the models that ship were not found; set ADAFLOOR_HOME to the folder that "
                     "holds models/, or give --model and --prompts");
  if (task_.models.empty()) task_.models = {collatz + "/v3-bf16"};
  for (auto& model : task_.models)
    model = absolute(model);
  if (task_.prompts.empty()) task_.prompts = collatz + "/prompts_train.jsonl";
  task_.prompts = absolute(task_.prompts);
  const bool own_prompts = task_.prompts != collatz + "/prompts_train.jsonl";
  if (task_.history.empty() && !own_prompts)
    task_.history = shipped_history(collatz, task_.models.front());
  if (task_.history == "none") task_.history.clear();
  task_.history = absolute(task_.history);
  return {};
}

result<void> run_settings::fill_sidecar() {
  const auto home = shipped_folder();
  auto& sidecar = task_.sidecar;
  if (said_.count("lease.sidecar.model") + said_.count("lease.sidecar.queries") == 0
      && !home.empty() && !is_emulated(task_)) {
    sidecar.model = home + "/models/arith-dense-bf16";
    sidecar.queries = sidecar.model + "/queries_heldout.jsonl";
  }
  if (sidecar.model == "none" || sidecar.queries == "none") sidecar.model = sidecar.queries = "";
  if (sidecar.model.empty() != sidecar.queries.empty())
    return bad_input("--sidecar-model and --sidecar-queries belong together: give both, or "
                     "--sidecar-model none for no leases");
  if (sidecar.score_with == "none") sidecar.score_with.clear();
  if (sidecar.exec_file == "none") sidecar.exec_file.clear();
  if (sidecar.callback == "none") sidecar.callback.clear();
  if (sidecar.callback_file == "none") sidecar.callback_file.clear();
  if (sidecar.callback.empty() != sidecar.callback_file.empty())
    return bad_input(
        "--lease-callback and --lease-callback-file belong together: give both or none");
  for (auto* file : {&sidecar.model, &sidecar.queries, &sidecar.exec_file, &sidecar.callback_file})
    *file = absolute(*file);
  if (sidecar.score_with != "self") sidecar.score_with = absolute(sidecar.score_with);
  return {};
}

result<void> run_settings::fill_cost_model() {
  if (cost_model_.empty() || cost_model_ == "none") return {};
  const auto costs = load_cost_model(cost_model_);
  if (!costs) return tl::unexpected(costs.error());
  task_.ep.cost_model = format_cost_model(*costs);
  return {};
}

result<void> run_settings::fill_defaults() {
  if (auto done = is_emulated(task_) ? fill_recorded() : fill_shipped(); !done) return done;
  if (auto done = fill_sidecar(); !done) return done;
  if (task_.arms.empty()) task_.arms = {"vanilla", "natural"};
  if (task_.prompts_per_step == 0) task_.prompts_per_step = 2 * task_.world_size;
  if (said_.count("ep.floor") == 0) floor_ = std::to_string(std::min(2U, task_.world_size));
  auto& ep = task_.ep;
  if (floor_ == "auto") {
    ep.floor = ep.group_sizes.empty() ? std::min(2U, task_.world_size) : ep.group_sizes.back();
  } else {
    const auto parsed = std::from_chars(floor_.data(), floor_.data() + floor_.size(), ep.floor);
    if (parsed.ec != std::errc{} || parsed.ptr != floor_.data() + floor_.size())
      return bad_input(fmt::format("--floor {}: must be a number of ranks, or auto", floor_));
  }
  if (ep.group_sizes.empty()) ep.group_sizes = halving_sizes(task_.world_size, ep.floor);
  if (auto done = fill_cost_model(); !done) return done;
  if (is_emulated(task_))
    if (auto done = fill_replay(); !done) return done;
  if (task_.epochs == 0) task_.epochs = static_cast<std::uint32_t>(task_.models.size());
  task_.out_dir = task_.out_dir.empty() ? fresh_folder() : absolute(task_.out_dir);
  return {};
}

result<job> run_settings::resolve() {
  if (!config_.empty()) {
    std::ifstream file{config_, std::ios::binary};
    std::ostringstream text;
    if (!file || !(text << file.rdbuf()))
      return bad_input(fmt::format("--config {}: cannot be read; is it there?", config_));
    if (auto done = apply_toml(text.str(), config_); !done)
      return tl::make_unexpected(done.error());
  }
  if (auto done = apply_command_line(); !done) return tl::make_unexpected(done.error());
  if (auto done = fill_defaults(); !done) return tl::make_unexpected(done.error());
  return task_;
}

} // namespace adafloor
