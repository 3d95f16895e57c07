#include "apps/rank_processes.hpp"

#include "actors/bootstrap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>

namespace adafloor {
namespace {

error system_error(const std::string& what) {
  return {error_code::io, fmt::format("{}: {}", what, std::strerror(errno))}; // NOLINT
}

void close_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

/// An unnamed file with the token, so that it stands on no command line.
result<int> token_copy(const std::string& path) {
  auto token = path.empty() ? result<std::string>(random_token()) : read_token_file(path);
  if (!token) return tl::make_unexpected(token.error());
  const int fd = memfd_create("adafloor-token", MFD_CLOEXEC);
  if (fd < 0 || write(fd, token->data(), token->size()) != static_cast<ssize_t>(token->size()))
    return tl::make_unexpected(system_error("no memory file for the cluster token"));
  return fd;
}

/// What a child does between fork and exec; only calls that are safe there.
[[noreturn]] void become_rank(const char* program, int log_fd, const std::vector<int>& kept,
                              char* const* arguments) {
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  for (const int fd : kept)
    fcntl(fd, F_SETFD, 0);
  execv(program, arguments);
  execv("/proc/self/exe", arguments); // the file was replaced; this is still the old one
  _exit(127);
}

} // namespace

std::string describe(const rank_exit& end) {
  if (end.by_signal)
    return fmt::format("rank {} was killed by signal {} ({})", end.rank, end.status,
                       strsignal(end.status)); // NOLINT(concurrency-mt-unsafe)
  return fmt::format("rank {} ended with exit status {}", end.rank, end.status);
}

std::string log_tail(const std::string& out_dir, std::uint32_t rank) {
  constexpr std::size_t lines_max = 12;
  const auto path = fmt::format("{}/rank-{}.log", out_dir, rank);
  std::ifstream file{path};
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back("    " + line);
    if (lines.size() > lines_max) lines.pop_front();
  }
  if (lines.empty()) return fmt::format("  its log {} is empty", path);
  return fmt::format("  last lines of {}:\n{}", path, fmt::join(lines, "\n"));
}

result<rank_processes> rank_processes::start(const job& task) {
  rank_processes all;
  auto listener = listen_on(task.transport.bind, task.transport.port);
  if (!listener) return tl::make_unexpected(listener.error());
  all.listen_fd_ = listener->fd;
  const auto host = task.transport.bind == "0.0.0.0" ? "127.0.0.1" : task.transport.bind;
  all.master_ = fmt::format("{}:{}", host, listener->port);
  auto token = token_copy(task.transport.token_file);
  if (!token) return tl::make_unexpected(token.error());
  all.token_fd_ = *token;
  int events[2], liveness[2];
  if (pipe2(events, O_CLOEXEC) != 0) return tl::make_unexpected(system_error("no pipe"));
  all.events_fd_ = events[0];
  all.events_write_fd_ = events[1];
  if (pipe2(liveness, O_CLOEXEC) != 0) return tl::make_unexpected(system_error("no pipe"));
  all.liveness_fd_ = liveness[0];
  all.liveness_write_fd_ = liveness[1];
  const auto started_here = all_local(task) ? task.world_size : task.transport.local_ranks;
  for (std::uint32_t rank = 0; rank < started_here; ++rank)
    if (auto started = all.start_rank(task, rank); !started)
      return tl::make_unexpected(started.error());
  // Only the children hold these now, so end of file means what it should.
  close_fd(all.events_write_fd_);
  close_fd(all.liveness_fd_);
  close_fd(all.listen_fd_);
  close_fd(all.token_fd_);
  return all;
}

result<void> rank_processes::start_rank(const job& task, std::uint32_t rank) {
  const auto log = fmt::format("{}/rank-{}.log", task.out_dir, rank);
  const int how = task.term > 1 ? O_APPEND : O_TRUNC;
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | how | O_CLOEXEC, 0644);
  if (log_fd < 0) return tl::make_unexpected(system_error(log));
  std::vector<std::string> words{"adafloor",      "node",
                                 "--job",         task.out_dir + "/job.json",
                                 "--rank",        std::to_string(rank),
                                 "--master",      master_,
                                 "--token-fd",    std::to_string(token_fd_),
                                 "--liveness-fd", std::to_string(liveness_fd_)};
  std::vector<int> kept{token_fd_, liveness_fd_};
  if (rank == 0) {
    words.insert(words.end(), {"--listen-fd", std::to_string(listen_fd_), "--events-fd",
                               std::to_string(events_write_fd_)});
    kept.insert(kept.end(), {listen_fd_, events_write_fd_});
  }
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Not /proc/self/exe: process lists would show "exe".
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none).string();
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1); // died before prctl
    become_rank(program.c_str(), log_fd, kept, arguments.data());
  }
  close(log_fd);
  if (pid < 0) return tl::make_unexpected(system_error(fmt::format("cannot start rank {}", rank)));
  setpgid(pid, pid); // here too: a signal to the group must not come too early
  pids_.push_back(pid);
  return {};
}

rank_processes::rank_processes(rank_processes&& other) noexcept
  : pids_(std::move(other.pids_)), events_fd_(other.events_fd_),
    events_write_fd_(other.events_write_fd_), liveness_fd_(other.liveness_fd_),
    liveness_write_fd_(other.liveness_write_fd_), listen_fd_(other.listen_fd_),
    token_fd_(other.token_fd_), master_(std::move(other.master_)) {
  other.pids_.clear();
  other.events_fd_ = other.events_write_fd_ = other.liveness_fd_ = -1;
  other.liveness_write_fd_ = other.listen_fd_ = other.token_fd_ = -1;
}

rank_processes::~rank_processes() {
  signal_all(SIGKILL);
  for (const pid_t pid : pids_)
    if (pid > 0) waitpid(pid, nullptr, 0);
  for (int* fd : {&events_fd_, &events_write_fd_, &liveness_fd_, &liveness_write_fd_, &listen_fd_,
                  &token_fd_})
    close_fd(*fd);
}

std::size_t rank_processes::running() const {
  return static_cast<std::size_t>(
      std::count_if(pids_.begin(), pids_.end(), [](pid_t pid) { return pid > 0; }));
}

std::optional<rank_exit> rank_processes::reap() {
  for (std::uint32_t rank = 0; rank < pids_.size(); ++rank) {
    int status = 0;
    if (pids_[rank] <= 0 || waitpid(pids_[rank], &status, WNOHANG) != pids_[rank]) continue;
    kill(-pids_[rank], SIGKILL); // whatever it started and did not end itself
    pids_[rank] = 0;
    if (WIFSIGNALED(status)) return rank_exit{rank, WTERMSIG(status), true};
    return rank_exit{rank, WEXITSTATUS(status), false};
  }
  return std::nullopt;
}

void rank_processes::signal(std::uint32_t rank, int signal) {
  if (rank < pids_.size() && pids_[rank] > 0) kill(-pids_[rank], signal);
}

void rank_processes::signal_all(int signal) {
  for (const pid_t pid : pids_)
    if (pid > 0) kill(-pid, signal);
}

} // namespace adafloor
