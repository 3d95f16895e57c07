// What a run on the emulated device takes from the workload that it replays.
#include "actors/replay.hpp"
#include "apps/plan_inputs.hpp"
#include "apps/settings.hpp"
#include "apps/text_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace adafloor {
namespace {

/// The ranks read the file once more, as plain CSV, so nothing else will do here.
result<length_history> read_plain(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return bad_input(
        fmt::format("--workload {}: cannot be read or is empty; give a history CSV", path));
  auto read = parse_history(text.str(), path);
  if (!read)
    return bad_input(read.error().text
                     + "; `adafloor history import` makes a history CSV of a trainer's dump");
  return read;
}

} // namespace

/// Files of a replay: no model, no prompts.
result<void> run_settings::fill_recorded() {
  for (const auto& [given, option] :
       {std::pair{!task_.models.empty(), "--model"}, {!task_.prompts.empty(), "--prompts"}})
    if (given)
      return bad_input(fmt::format("{}: not with --device emulated, which generates recorded "
                                   "lengths without a model; leave it out",
                                   option));
  if (task_.workload.empty())
    return bad_input("--device emulated: needs --workload FILE, a history CSV whose responses are "
                     "generated again");
  if (cost_model_.empty() || cost_model_ == "none")
    return bad_input("--device emulated: needs --cost-model NAME, such as ascend-eager; it says "
                     "how long a step takes");
  task_.workload = std::filesystem::absolute(task_.workload).lexically_normal().string();
  if (task_.history == "none")
    task_.history.clear();
  else if (task_.history.empty())
    task_.history = task_.workload;
  else
    task_.history = std::filesystem::absolute(task_.history).lexically_normal().string();
  return {};
}

/// Numbers of a replay: those of the recorded epoch, as `adafloor simulate` takes them.
result<void> run_settings::fill_replay() {
  const auto workload = read_plain(task_.workload);
  if (!workload) return tl::unexpected(workload.error());
  if (task_.workload_epoch.empty() && !workload->epochs.empty())
    task_.workload_epoch = workload->epochs.back();
  const auto epoch = recorded_epoch_of(task_, *workload);
  if (!epoch) return tl::unexpected(epoch.error());
  if (task_.history == task_.workload && task_.history_epochs.empty()) {
    for (const auto& name : workload->epochs)
      if (name != task_.workload_epoch) task_.history_epochs.push_back(name);
    if (task_.history_epochs.empty()) task_.history.clear();
  }
  task_.models = {"emulated/" + task_.workload_epoch};
  const auto samples = static_cast<std::uint32_t>(epoch->lengths.front().size());
  if (said_.count("rollout.n") > 0 && task_.n != samples)
    return bad_input(fmt::format("--n {}: the prompts of --workload have {} samples; leave --n out",
                                 task_.n, samples));
  task_.n = samples;
  const auto prompts = static_cast<std::uint32_t>(epoch->prompts.size());
  if (said_.count("rollout.steps") == 0) task_.steps = prompts / task_.prompts_per_step;
  if (std::uint64_t{task_.steps} * task_.prompts_per_step > prompts || task_.steps == 0)
    return bad_input(fmt::format("--workload {}: epoch {} has {} prompts; {} steps of {} need more;"
                                 " lower --steps or --prompts-per-step",
                                 task_.workload, task_.workload_epoch, prompts,
                                 std::max(task_.steps, 1U), task_.prompts_per_step));
  auto& rollout = task_.rollout;
  for (const auto& prompt : epoch->prompts)
    rollout.max_prompt_length =
        std::max(rollout.max_prompt_length, static_cast<std::uint32_t>(prompt.tokens.size()));
  if (rollout.max_response_length == 0)
    rollout.max_response_length =
        static_cast<std::uint32_t>(std::max(16384, longest_response(*workload)));

  const auto costs = parse_cost_model(task_.ep.cost_model, "--cost-model");
  if (!costs) return tl::unexpected(costs.error());
  if (said_.count("kv.capacity_tokens") > 0) {
    if (!costs->capacity.empty())
      return bad_input(fmt::format("--kv-capacity-tokens {}: cost model {} says what a rank holds; "
                                   "leave it out",
                                   task_.kv.capacity_tokens, costs->name));
    return {};
  }
  task_.kv.capacity_tokens = costs->capacity.empty()
                                 ? std::uint64_t{rollout.max_num_seqs}
                                       * (rollout.max_prompt_length + rollout.max_response_length)
                                 : 0;
  for (const auto& capacity : costs->capacity)
    task_.kv.capacity_tokens =
        std::max(task_.kv.capacity_tokens, static_cast<std::uint64_t>(capacity.tokens));
  return {};
}

} // namespace adafloor
