// `adafloor run`: an epoch of rollouts with local rank processes.
#include "apps/check.hpp"
#include "apps/commands.hpp"
#include "apps/launcher.hpp"
#include "apps/progress.hpp"
#include "apps/report.hpp"
#include "apps/run_record.hpp"
#include "apps/settings.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

/// The folder holds an unfinished run of the very same job; faults may be gone or others.
bool continues(const job& task) {
  std::ifstream file{task.out_dir + "/job.json"}, record{task.out_dir + "/run.json"};
  auto before = nlohmann::json::parse(file, nullptr, false);
  auto now = nlohmann::json::parse(to_json_text(task));
  if (!before.is_object()) return false;
  before.erase("faults");
  now.erase("faults");
  if (before != now) return false;
  const auto ended = nlohmann::json::parse(record, nullptr, false);
  return !ended.is_object() || ended.value("exit_code", 1) != 0;
}

/// Makes the folder and leaves nothing of an earlier run in it, but what auxiliary work brought to
/// an unfinished run of the same job: that is not done again.
result<void> prepare_folder(const job& task) {
  std::error_code failed;
  fs::create_directories(task.out_dir, failed);
  if (failed)
    return fail(error_code::io, fmt::format("--out {}: {}", task.out_dir, failed.message()));
  const fs::path out{task.out_dir};
  const bool keeps = continues(task);
  if (keeps)
    std::cerr << fmt::format("{}: continues the auxiliary work of an earlier run\n", task.out_dir);
  else if (fs::exists(out / "job.json"))
    std::cerr << fmt::format("{}: replaces the results of an earlier run\n", task.out_dir);
  for (const char* name :
       {"run.json", "report.html", "events.jsonl", "responses.jsonl", "tokens.log", "job.json"})
    fs::remove(out / name, failed);
  for (const char* name : {"sidecar.jsonl", "scores.jsonl", "exec.jsonl", "callback.jsonl"})
    if (!keeps) fs::remove(out / name, failed);
  fs::remove_all(out / "scratch", failed);
  for (const auto& entry : fs::directory_iterator{out}) {
    const auto name = entry.path().filename().string();
    if (name.rfind("rank-", 0) == 0 && entry.path().extension() == ".log")
      fs::remove(entry.path(), failed);
  }
  return write_whole_file(task.out_dir + "/job.json", to_json_text(task));
}

int run(run_settings& settings, bool as_json) {
  auto task = settings.resolve();
  if (!task) return print_error(task.error());
  if (auto checked = check_numbers(*task); !checked) return print_error(checked.error());
  if (auto checked = check_files(*task); !checked) return print_error(checked.error());
  if (auto ready = prepare_folder(*task); !ready) return print_error(ready.error());

  std::cerr << fmt::format(
      "{} ranks, floor {}, {} steps of {} prompts x {} samples; results in {}\n", task->world_size,
      task->ep.floor, task->steps, task->prompts_per_step, task->n, task->out_dir);
  run_record record;
  progress shown;
  const auto outcome = launch(*task, [&](const nlohmann::json& event) {
    record.take(event);
    shown.take(event);
  });
  shown.finish();

  auto whole = record.result(*task, outcome.interrupted);
  whole["exit_code"] = outcome.exit_code;
  if (!outcome.message.empty()) whole["message"] = outcome.message;
  whole["report"] = task->out_dir + "/report.html";
  if (auto written = write_whole_file(task->out_dir + "/run.json", whole.dump(1) + "\n"); !written)
    return print_error(written.error());
  auto report = write_report(task->out_dir);
  if (!report) print_error(report.error());

  if (as_json)
    std::cout << whole.dump() << std::endl;
  else if (!record.arms().empty())
    std::cout << side_by_side(record.arms()) << digest_verdict(record.arms()) << std::endl
              << time_note(*task, record.arms());
  if (report && !as_json) std::cout << "report: " << *report << std::endl;
  if (outcome.exit_code != 0) std::cerr << "adafloor: error: " << outcome.message << std::endl;
  return outcome.exit_code != 0 || report ? outcome.exit_code : 1;
}

} // namespace

void add_run(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("run", "An epoch of rollouts with local rank processes");
  command->footer(
      "Example: adafloor run --ranks 8 --floor 2 --arms vanilla,natural --out out/first");
  auto settings = std::make_shared<run_settings>();
  auto as_json = std::make_shared<bool>(false);
  settings->add_options(*command);
  command->add_flag("--json", *as_json, "print run.json on stdout and nothing else there");
  command->callback([settings, as_json, exit_code] { *exit_code = run(*settings, *as_json); });
}

} // namespace adafloor
