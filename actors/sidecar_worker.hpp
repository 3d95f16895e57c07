#pragma once
// Has a lease's auxiliary work done on this rank by processes that give way to decoding: prompts
// and scores by a model worker and callbacks by a callback worker, which stay between leases,
// commands in a process group of their own.
#include "actors/process_group.hpp"
#include "actors/worker_process.hpp"
#include "messages/catalog.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace adafloor {

/// A command sees ADAFLOOR_UNIT, ADAFLOOR_LEASE_ID (EPOCH.COUNTER), ADAFLOOR_LEASE_RANK,
/// ADAFLOOR_LEASE_DEVICE, ADAFLOOR_LEASE_DEADLINE_SECONDS (from its start until the rank is needed
/// again, as predicted then: the lease is renewed that long, but may be revoked at any time),
/// ADAFLOOR_LEASE_GRACE_SECONDS (from SIGTERM to SIGKILL) and ADAFLOOR_SCRATCH, an empty folder
/// that is removed after it. SIGTERM goes to the whole group when the lease is revoked: a command
/// that then ends with exit code 0 is done, any other is run again under another lease. A command
/// that somebody else kills with SIGKILL is run again at once, `attempts_max` times in all; then
/// that is its result.
class sidecar_worker {
public:
  struct options {
    rank_id self;
    worker_process::options model, callback;
    std::vector<std::uint32_t> cpus; ///< of commands; empty: those of this process
    std::uint64_t memory_bytes = 0;  ///< of each process of a command; 0: no limit
    std::string scratch;             ///< folder for the folders of commands; made when needed
    std::string device;              ///< as commands are told
    double grace_seconds = 0;        ///< between SIGTERM and SIGKILL
    std::uint32_t attempts_max = 5;  ///< 0: no bound
  };
  /// `post` may be called on any thread; envelopes go to the sidecar's machine.
  sidecar_worker(options o, std::function<void(envelope)> post);
  /// Drops unfinished units, kills their processes and joins the thread.
  ~sidecar_worker();

  /// Waits, for `most` at most, until the models that are loaded ahead are there or cannot be had.
  void wait_loaded(microseconds most);
  /// run_unit or stop_worker. Any thread; never blocks.
  void push(const envelope& command);

private:
  /// A unit that is a command, while its processes exist.
  struct running_command {
    run_unit order;
    std::string folder;                           ///< scratch; the output lies beside it
    std::chrono::steady_clock::time_point needed; ///< the rank, as predicted
    std::optional<process_group> group;
    std::uint32_t kills = 0;
    std::optional<stop_worker> stop;
  };

  void run();
  void wait() const;
  bool take_commands();
  void handle(const run_unit& m);
  void handle(const stop_worker& m);
  void start_command();
  void watch_command();
  void end_command(int code);
  void tell(any_message message);
  void wake() const;
  void note_loaded();

  options options_;
  std::function<void(envelope)> post_;
  int wake_fd_; ///< readable when there is a command, or the end
  std::mutex mutex_;
  std::condition_variable loaded_now_;
  std::deque<envelope> queue_;
  bool loaded_ = false;
  bool stopping_ = false;

  // The worker's thread only.
  std::optional<worker_process> model_, callback_;
  std::optional<running_command> command_;
  std::thread thread_;
};

} // namespace adafloor
