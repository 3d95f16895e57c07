// `adafloor run`: an epoch of rollouts with local rank processes.
#include "apps/check.hpp"
#include "apps/commands.hpp"
#include "apps/launcher.hpp"
#include "apps/progress.hpp"
#include "apps/report.hpp"
#include "apps/run_record.hpp"
#include "apps/settings.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

/// No two runs write into one folder. Held until the process ends.
class folder_lock {
public:
  static result<folder_lock> take(const std::string& folder) {
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (failed) return fail(error_code::io, fmt::format("--out {}: {}", folder, failed.message()));
    folder_lock lock;
    lock.fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock.fd_ >= 0 && flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno == EWOULDBLOCK)
      return bad_input(fmt::format("--out {}: another run is writing there; wait for its end, or "
                                   "choose another folder",
                                   folder));
    return fail(error_code::io,
                fmt::format("--out {}: {}", folder, std::strerror(errno))); // NOLINT
  }
  folder_lock(folder_lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  folder_lock& operator=(folder_lock&&) = delete;
  ~folder_lock() {
    if (fd_ >= 0) close(fd_);
  }

private:
  folder_lock() = default;
  int fd_ = -1;
};

bool is_finished(const std::string& folder) {
  std::ifstream record{folder + "/run.json"};
  const auto ended = nlohmann::json::parse(record, nullptr, false);
  return ended.is_object() && ended.value("exit_code", 1) == 0;
}

/// The folder holds an unfinished run of the very same job; faults may be gone or others.
bool continues(const job& task) {
  std::ifstream file{task.out_dir + "/job.json"};
  auto before = nlohmann::json::parse(file, nullptr, false);
  auto now = nlohmann::json::parse(to_json_text(task));
  if (!before.is_object()) return false;
  for (const auto* key : {"faults", "term"}) {
    before.erase(key);
    now.erase(key);
  }
  return before == now && !is_finished(task.out_dir);
}

/// Makes the folder and leaves nothing of an earlier run in it, but what auxiliary work brought to
/// an unfinished run of the same job: that is not done again.
result<void> prepare_folder(const job& task) {
  std::error_code failed;
  const fs::path out{task.out_dir};
  const bool keeps = continues(task);
  if (keeps)
    std::cerr << fmt::format("{}: continues the auxiliary work of an earlier run\n", task.out_dir);
  else if (fs::exists(out / "job.json"))
    std::cerr << fmt::format("{}: replaces the results of an earlier run\n", task.out_dir);
  for (const char* name : {"run.json", "report.html", "events.jsonl", "books.jsonl",
                           "responses.jsonl", "tokens.log", "job.json"})
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

/// The job goes on from what is on disk, fenced off from the processes of before. What was made to
/// fail on purpose has done so.
result<void> take_up(job& task) {
  ++task.term;
  task.faults.clear();
  std::error_code failed;
  for (const char* name : {"run.json", "report.html"})
    fs::remove(fs::path{task.out_dir} / name, failed);
  fs::remove_all(fs::path{task.out_dir} / "scratch", failed);
  return write_whole_file(task.out_dir + "/job.json", to_json_text(task));
}

/// The job of a folder whose run ended in the middle.
result<job> unfinished_job(const std::string& folder) {
  std::error_code failed;
  const auto out = fs::weakly_canonical(folder, failed);
  const auto path = (out / "job.json").string();
  if (!fs::exists(path, failed))
    return bad_input(
        fmt::format("--resume {}: there is no job.json; name the --out folder of a run", folder));
  if (is_finished(out.string()))
    return bad_input(fmt::format("--resume {}: that run is finished; see run.json there", folder));
  auto task = load_job(path);
  if (task) task->out_dir = out.string(); // It may have been moved.
  return task;
}

/// What was told before.
void reread_events(const job& task, run_record& record) {
  std::ifstream file{task.out_dir + "/events.jsonl"};
  for (std::string line; std::getline(file, line);)
    if (const auto event = nlohmann::json::parse(line, nullptr, false); event.is_object())
      record.take(event);
}

/// Starts all ranks, and again where they lose one that they cannot do without.
launch_outcome launch_until_done(job& task, run_record& record) {
  for (std::uint32_t restarts = 0;; ++restarts) {
    progress shown;
    auto outcome = launch(task, [&](const nlohmann::json& event) {
      record.take(event);
      shown.take(event);
    });
    shown.finish();
    if (!outcome.resumable) return outcome;
    if (restarts == task.runtime.max_restarts) {
      outcome.message += fmt::format("\n  (started again {} times, --max-restarts {}; adafloor run "
                                     "--resume {} goes on from here)",
                                     restarts, task.runtime.max_restarts, task.out_dir);
      return outcome;
    }
    std::cerr << fmt::format("adafloor: {}\nadafloor: all ranks start again and go on from what is "
                             "on disk ({} of at most {} restarts)\n",
                             outcome.message, restarts + 1, task.runtime.max_restarts);
    if (auto ready = take_up(task); !ready) return {1, false, false, ready.error().text};
  }
}

int finish(const job& task, const run_record& record, const launch_outcome& outcome, bool as_json) {
  auto whole = record.result(task, outcome.interrupted);
  whole["exit_code"] = outcome.exit_code;
  if (!outcome.message.empty()) whole["message"] = outcome.message;
  whole["report"] = task.out_dir + "/report.html";
  if (auto written = write_whole_file(task.out_dir + "/run.json", whole.dump(1) + "\n"); !written)
    return print_error(written.error());
  auto report = write_report(task.out_dir);
  if (!report) print_error(report.error());

  if (as_json)
    std::cout << whole.dump() << std::endl;
  else if (!record.arms().empty())
    std::cout << side_by_side(record.arms()) << digest_verdict(record.arms()) << std::endl
              << time_note(task, record.arms());
  if (report && !as_json) std::cout << "report: " << *report << std::endl;
  if (outcome.exit_code != 0) std::cerr << "adafloor: error: " << outcome.message << std::endl;
  return outcome.exit_code != 0 || report ? outcome.exit_code : 1;
}

/// `resumed`: folder of an unfinished run, or empty.
int run(run_settings& settings, const std::string& resumed, bool as_json) {
  if (!resumed.empty() && settings.any_given())
    return print_error({error_code::bad_input,
                        fmt::format("--resume {}: takes all settings from there; leave the other "
                                    "options out, or start anew without --resume",
                                    resumed)});
  auto task = resumed.empty() ? settings.resolve() : unfinished_job(resumed);
  if (!task) return print_error(task.error());
  if (auto checked = check_numbers(*task); !checked) return print_error(checked.error());
  if (auto checked = check_files(*task); !checked) return print_error(checked.error());
  const auto lock = folder_lock::take(task->out_dir);
  if (!lock) return print_error(lock.error());
  auto ready = resumed.empty() ? prepare_folder(*task) : take_up(*task);
  if (!ready) return print_error(ready.error());

  std::cerr << fmt::format(
      "{} ranks, floor {}, {} steps of {} prompts x {} samples; results in {}\n", task->world_size,
      task->ep.floor, task->steps, task->prompts_per_step, task->n, task->out_dir);
  run_record record;
  if (!resumed.empty()) reread_events(*task, record);
  const auto outcome = launch_until_done(*task, record);
  return finish(*task, record, outcome, as_json);
}

} // namespace

void add_run(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("run", "An epoch of rollouts with local rank processes");
  command->footer(
      "Example: adafloor run --ranks 8 --floor 2 --arms vanilla,natural --out out/first");
  auto settings = std::make_shared<run_settings>();
  auto resumed = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command
      ->add_option("--resume", *resumed,
                   "--out folder of a run that ended in the middle: goes on from what is on disk, "
                   "with the settings of before")
      ->type_name("PATH");
  settings->add_options(*command);
  command->add_flag("--json", *as_json, "print run.json on stdout and nothing else there");
  command->callback([=] { *exit_code = run(*settings, *resumed, *as_json); });
}

} // namespace adafloor
