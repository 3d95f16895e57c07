#include "actors/process_group.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

extern char** environ;

namespace adafloor {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts)
    out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// What the child needs, made before the fork.
struct plan {
  const process_group::order* order;
  char* const* argv;
  char* const* env;
  cpu_set_t cpus;
  pid_t parent;
};

[[noreturn]] void give_up(const char* what, const char* why) {
  const char* const parts[] = {what, why, ": ", strerrordesc_np(errno), "\n"};
  for (const char* part : parts)
    if (write(2, part, std::strlen(part)) < 0) break;
  _exit(127);
}

void give_way(const plan& p) {
  const sched_param lowest{};
  if (p.order->niceness)
    setpriority(PRIO_PROCESS, 0, *p.order->niceness);
  else
    sched_setscheduler(0, SCHED_IDLE, &lowest);
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  constexpr std::string_view first_to_go = "1000";
  if (write(score, first_to_go.data(), first_to_go.size()) < 0) errno = 0; // A wish.
}

/// In the child; other threads of the parent may have held any lock, so only system calls.
[[noreturn]] void become(const plan& p) {
  const auto& o = *p.order;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != p.parent) _exit(127); // It died before prctl.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGTERM, SIGINT, SIGPIPE, SIGHUP, SIGCHLD})
    signal(number, SIG_DFL);
  give_way(p);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (in < 0 || dup2(in, 0) < 0) _exit(127);
  if (!o.output.empty()) {
    const int out = open(o.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(127);
  }
  unsigned first_other = process_group::passed_fd;
  if (o.socket_fd >= 0) {
    ++first_other;
    // dup2 of a descriptor to itself would leave it as it is: closed by exec.
    if (o.socket_fd == process_group::passed_fd)
      fcntl(o.socket_fd, F_SETFD, 0); // NOLINT
    else if (dup2(o.socket_fd, process_group::passed_fd) < 0)
      _exit(127);
  }
  syscall(SYS_close_range, first_other, ~0U, 0U);
  if (!o.cpus.empty() && sched_setaffinity(0, sizeof p.cpus, &p.cpus) != 0)
    give_up(p.argv[0], ": cannot run on the CPUs of lease.cpus");
  const rlimit memory{o.memory_bytes, o.memory_bytes};
  if (o.memory_bytes > 0 && setrlimit(RLIMIT_DATA, &memory) != 0)
    give_up(p.argv[0], ": cannot be limited to lease.memory_bytes");
  execvpe(o.program.empty() ? p.argv[0] : o.program.c_str(), p.argv, p.env);
  give_up(p.argv[0], ": cannot be executed");
}

} // namespace

result<process_group> process_group::start(const order& order) {
  auto words = order.command;
  auto names = order.environment;
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    const std::string text = *inherited;
    const auto name = text.substr(0, text.find('=') + 1);
    if (std::none_of(order.environment.begin(), order.environment.end(),
                     [&](const std::string& given) { return given.rfind(name, 0) == 0; }))
      names.push_back(text);
  }
  const auto argv = pointers(words), env = pointers(names);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto parent = getpid();
  plan p{&order, argv.data(), env.data(), {}, parent};
  for (const auto cpu : order.cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &p.cpus);
  const auto pid = fork();
  if (pid == 0) become(p);
  if (pid < 0)
    return fail(error_code::io, "cannot start " + words.front() + ": " + std::strerror(errno)
                                    + "; allow more processes (ulimit -u)");
  setpgid(pid, pid); // Here too: a signal to the group must not come too early.
  return process_group(pid);
}

process_group::process_group(process_group&& other) noexcept
  : pid_(std::exchange(other.pid_, 0)), code_(other.code_), reaped_(other.reaped_) {}

process_group::~process_group() {
  if (pid_ == 0) return;
  constexpr useconds_t pause = 1000;
  for (int tries = 2000; tries > 0 && !gone(); --tries) {
    signal(SIGKILL);
    usleep(pause);
  }
}

std::optional<int> process_group::ended() {
  if (code_ || pid_ == 0) return code_;
  siginfo_t end{};
  const auto who = static_cast<id_t>(pid_);
  // The command stays a zombie for now: its id, which is the group's, cannot be given to others.
  const bool lost = waitid(P_PID, who, &end, WEXITED | WNOHANG | WNOWAIT) != 0;
  if (!lost && end.si_pid != pid_) return {};
  constexpr int of_signal = 128;
  if (lost) // Somebody else reaped it.
    code_ = of_signal + SIGKILL;
  else
    code_ = end.si_code == CLD_EXITED ? end.si_status : of_signal + end.si_status;
  signal(SIGKILL);
  return code_;
}

bool process_group::gone() {
  if (pid_ == 0) return true;
  if (!ended()) return false;
  if (!reaped_) reaped_ = waitpid(pid_, nullptr, WNOHANG) == pid_;
  while (waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
  if (kill(-pid_, 0) == 0 || errno != ESRCH) return false;
  pid_ = 0;
  return true;
}

void process_group::signal(int number) {
  if (pid_ != 0) kill(-pid_, number);
}

} // namespace adafloor
