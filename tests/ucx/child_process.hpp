#pragma once
// Real processes for tests: the test program starts itself again as `--child ROLE ARGUMENTS...` and
// talks to the child by lines over pipes. A child never outlives the test.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace adafloor::testing {

class child_process {
public:
  explicit child_process(const std::vector<std::string>& arguments) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
      throw std::runtime_error("no pipe");
    std::vector<char*> argv{const_cast<char*>("/proc/self/exe"), const_cast<char*>("--child")};
    for (const auto& a : arguments)
      argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("no process");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // A frozen member makes the kernel hang up a process group whose parent shell ends.
      ::setpgid(0, 0);
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  child_process(child_process&& o) noexcept
    : pid_(std::exchange(o.pid_, -1)), in_(std::exchange(o.in_, -1)),
      out_(std::exchange(o.out_, -1)), rest_(std::move(o.rest_)) {}
  child_process& operator=(child_process&&) = delete;
  ~child_process() {
    if (in_ >= 0) ::close(in_);
    if (out_ >= 0) ::close(out_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// SIGSTOP, and stopped when this returns.
  void freeze() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

  /// SIGKILL, and gone when this returns.
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  /// Exit status, or -1 where a signal ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void say(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("child " + std::to_string(pid_) + " does not listen");
  }

  /// The next line that the child writes; "" when it ended, throws after `limit`.
  std::string hear(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    for (;;) {
      if (const auto at = rest_.find('\n'); at != std::string::npos) {
        const std::string line = rest_.substr(0, at);
        rest_.erase(0, at + 1);
        return line;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      pollfd p{out_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&p, 1, static_cast<int>(left.count())) == 0)
        throw std::runtime_error("child " + std::to_string(pid_) + " said nothing");
      char text[4096];
      const ssize_t got = ::read(out_, text, sizeof text);
      if (got <= 0) return "";
      rest_.append(text, static_cast<std::size_t>(got));
    }
  }

private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string rest_;
};

inline std::size_t count_entries(const std::string& folder) {
  std::size_t n = 0;
  if (DIR* d = ::opendir(folder.c_str())) {
    while (const dirent* e = ::readdir(d))
      if (e->d_name[0] != '.') ++n;
    ::closedir(d);
  }
  return n;
}
inline std::size_t open_descriptors() {
  return count_entries("/proc/self/fd");
}

/// UCX leaves no other names than these in shared memory.
inline std::size_t shared_memory_segments() {
  std::size_t n = 0;
  if (DIR* d = ::opendir("/dev/shm")) {
    while (const dirent* e = ::readdir(d))
      if (std::string(e->d_name).find("ucx") != std::string::npos) ++n;
    ::closedir(d);
  }
  return n;
}

/// Resident kilobytes of this process.
inline std::size_t resident_kb() {
  std::ifstream f("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  f >> total >> resident;
  return resident * (static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) / 1024);
}

/// User and system time of a process so far, in seconds.
inline double cpu_seconds(pid_t pid) {
  std::ifstream f("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(f)), {});
  const auto at = text.rfind(')');
  if (at == std::string::npos) return 0;
  std::size_t pos = at + 2;
  for (int field = 3; field < 14; ++field)
    pos = text.find(' ', pos) + 1;
  char* end = nullptr;
  const double user = std::strtod(text.c_str() + pos, &end);
  const double system = std::strtod(end, nullptr);
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

} // namespace adafloor::testing
