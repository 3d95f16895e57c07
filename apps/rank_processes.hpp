#pragma once
// The rank processes of a run on this machine: started, watched, ended. None outlives its launcher:
// each is sent SIGKILL by the kernel when the launcher dies, and sees end of file on a pipe.
#include "actors/job.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace adafloor {

/// How a process ended.
struct rank_exit {
  std::uint32_t rank = 0;
  int status = 0; ///< exit status, or the number of the signal
  bool by_signal = false;
  bool clean() const { return !by_signal && status == 0; }
};

/// "rank 3 was killed by signal 9 (Killed)" or "rank 3 ended with exit status 1".
std::string describe(const rank_exit& end);

/// The last lines of a rank's log, indented, or a note that it is empty.
std::string log_tail(const std::string& out_dir, std::uint32_t rank);

/// Thread: the one that started the processes makes all calls and lives as long as they shall.
class rank_processes {
public:
  /// Starts the local ranks of a job whose job.json is in place. Signals that the caller has
  /// blocked are unblocked in the children. Errors: io; nothing is left running then.
  static result<rank_processes> start(const job& task);

  rank_processes(rank_processes&&) noexcept;
  rank_processes& operator=(rank_processes&&) = delete;
  /// Kills what still runs.
  ~rank_processes();

  /// Where rank 0 listens for the others, host:port.
  const std::string& master() const { return master_; }

  /// Event lines of rank 0 come out here; end of file when it is gone.
  int events_fd() const { return events_fd_; }
  std::size_t running() const;

  /// One process that has ended since the last call, if any. Does not block.
  std::optional<rank_exit> reap();

  /// To the process of this rank, if it runs, and what it started.
  void signal(std::uint32_t rank, int signal);
  /// To every process that runs, and what it started.
  void signal_all(int signal);

private:
  rank_processes() = default;
  result<void> start_rank(const job& task, std::uint32_t rank);

  std::vector<pid_t> pids_; ///< by rank; 0: reaped
  int events_fd_ = -1;      ///< read end
  int events_write_fd_ = -1, liveness_fd_ = -1, liveness_write_fd_ = -1;
  int listen_fd_ = -1, token_fd_ = -1;
  std::string master_;
};

} // namespace adafloor
