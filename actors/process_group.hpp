#pragma once
// A command in a process group of its own, and the proof that nothing of the group is left. It
// gives way to everybody else on the CPU and goes first when the system is out of memory, its input
// is empty, and the kernel kills it when the thread that started it ends.
#include "messages/result.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace adafloor {

/// Not followed: processes that leave the group by setsid or setpgid. Makes the calling process the
/// one that orphans of its descendants are given to (PR_SET_CHILD_SUBREAPER), or they could not be
/// proven gone. Thread: one makes all calls.
class process_group {
public:
  struct order {
    std::vector<std::string> command;     ///< program, looked up in PATH, and arguments
    std::vector<std::string> environment; ///< NAME=VALUE, over that of this process
    std::string output;  ///< file for what it prints, errors included; empty: as this process
    std::string program; ///< file to execute; empty: the first word, looked up in PATH
    int socket_fd = -1;  ///< stays open for the command, as descriptor `passed_fd`
    /// 0 to 19; none: it runs when nobody else wants the CPU (SCHED_IDLE).
    std::optional<int> niceness;
    std::vector<std::uint32_t> cpus; ///< that it may run on; empty: those of this process
    std::uint64_t memory_bytes = 0;  ///< that each process may write to (RLIMIT_DATA); 0: any
  };
  static constexpr int passed_fd = 3;
  /// Errors: io; nothing runs then. A program that cannot be executed ends with exit code 127 and
  /// says why in its output.
  static result<process_group> start(const order& order);
  process_group(process_group&& other) noexcept;
  process_group& operator=(process_group&&) = delete;
  /// Kills what is left and waits for its end, two seconds at most.
  ~process_group();

  /// Exit code of the command once it ended, 128 + number where a signal ended it; what else runs
  /// in the group is killed then. Never blocks.
  std::optional<int> ended();
  /// Reaps what ended. True once no process has the group's id (kill says ESRCH). Never blocks.
  bool gone();
  /// To all of the group.
  void signal(int number);
  pid_t id() const { return pid_; }

private:
  explicit process_group(pid_t pid) : pid_(pid) {}
  pid_t pid_ = 0; ///< of command and group; 0: moved away or gone
  std::optional<int> code_;
  bool reaped_ = false; ///< the command itself
};

} // namespace adafloor
