#pragma once
// The real adafloor program, run in a folder of its own and watched from outside.
#include "tests/support/scratch.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace adafloor::testing {

struct program_result {
  int exit_code = -1; ///< 128 + number where a signal ended it
  std::string out, err;
};

/// `adafloor ARGUMENTS...` as a child; killed with everything it started when the test ends.
/// `prefix`: words before it, of a program that becomes it ("ip netns exec NAME "); `file`: another
/// program in its place.
class program {
public:
  program(const std::vector<std::string>& arguments, const std::string& log_dir,
          const std::string& prefix = "", const std::string& file = ADAFLOOR_BIN)
    : out_path_(log_dir + "/stdout"), err_path_(log_dir + "/stderr") {
    std::istringstream before(prefix);
    std::vector<std::string> words{std::istream_iterator<std::string>(before), {}};
    words.push_back(file);
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("no process");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    redirect(out_path_, STDOUT_FILENO);
    redirect(err_path_, STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL); // the kernel kills its ranks
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }

  /// Whether there is nothing left to wait for.
  bool ended() const {
    siginfo_t seen{};
    return pid_ <= 0
           || (waitid(P_PID, static_cast<id_t>(pid_), &seen, WEXITED | WNOHANG | WNOWAIT) == 0
               && seen.si_pid == pid_);
  }
  program_result wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_file(out_path_), read_file(err_path_)};
  }

private:
  static void redirect(const std::string& path, int to) {
    dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), to);
  }
  std::string out_path_, err_path_;
  pid_t pid_ = -1;
};

inline program_result run_program(const std::vector<std::string>& arguments,
                                  const std::string& log_dir) {
  return program{arguments, log_dir}.wait();
}

/// Processes that live and have `word` in their command line; not this one. Zombies have none.
inline std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (pid != getpid() && read_file(entry.path() / "cmdline").find(word) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

/// Those of them that `parent` started.
inline std::vector<pid_t> children_of(pid_t parent, const std::string& word) {
  std::vector<pid_t> found;
  const auto line = "PPid:\t" + std::to_string(parent) + '\n';
  for (const auto pid : processes_with(word))
    if (read_file("/proc/" + std::to_string(pid) + "/status").find(line) != std::string::npos)
      found.push_back(pid);
  return found;
}

/// Polls until `holds()`; false after `limit`.
template <class F>
bool comes_true(F&& holds, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// Event lines that are complete, of OUT/events.jsonl.
inline std::vector<nlohmann::json> events_of(const std::string& out_dir) {
  std::vector<nlohmann::json> events;
  std::ifstream file{out_dir + "/events.jsonl"};
  for (std::string line; std::getline(file, line);)
    if (auto event = nlohmann::json::parse(line, nullptr, false); event.is_object())
      events.push_back(std::move(event));
  return events;
}

/// Lines of a JSON lines file, all of which must be whole.
inline std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);)
    lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline std::string shipped_models() {
  return std::string{ADAFLOOR_SOURCE_DIR} + "/config/models";
}

/// A file of eight prompts of the collatz model in `folder`, two of which have long answers.
inline std::string two_long_answers(const std::string& folder) {
  std::ifstream all(shipped_models() + "/collatz-moe/prompts_train.jsonl");
  std::map<std::string, std::string> lines;
  for (std::string line; std::getline(all, line);)
    lines[nlohmann::json::parse(line).at("prompt_id")] = line;
  const auto path = folder + "/prompts.jsonl";
  std::ofstream chosen(path);
  for (const std::string number : {"795", "84", "743", "52", "118", "680", "298", "794"})
    chosen << lines.at("collatz-" + number) << '\n';
  return path;
}

} // namespace adafloor::testing
