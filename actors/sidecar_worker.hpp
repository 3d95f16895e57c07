#pragma once
// Does a lease's auxiliary work on this rank, at the lowest scheduling priority, so that decoding
// on other ranks of the host goes first. Answers prompts and scores responses with a model that it
// loads whole, MoE or dense, with the first unit of a lease that needs it; runs commands in a
// process group of their own. Frees everything when told to stop.
#include "actors/process_group.hpp"
#include "gpu/engine.hpp"
#include "messages/catalog.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace adafloor {

/// A command sees ADAFLOOR_UNIT, ADAFLOOR_LEASE_ID (EPOCH.COUNTER), ADAFLOOR_LEASE_RANK,
/// ADAFLOOR_LEASE_DEVICE, ADAFLOOR_LEASE_DEADLINE_SECONDS (it is not stopped for the lease's own
/// end before that; leases are renewed, and revoked at any time), ADAFLOOR_LEASE_GRACE_SECONDS
/// (from SIGTERM to SIGKILL) and ADAFLOOR_SCRATCH, an empty folder that is removed after it.
/// SIGTERM goes to the whole group when the lease is revoked: a command that then ends with exit
/// code 0 is done, any other is run again under another lease. A command that somebody else kills
/// with SIGKILL is run again at once, `kills_max` times in all.
class sidecar_worker {
public:
  struct options {
    rank_id self;
    std::uint32_t max_num_seqs = 8; ///< units that are answered together
    std::uint32_t kv_pages = 256;
    std::string scratch;      ///< folder for the folders of commands; made when needed
    std::string device;       ///< as commands are told
    double lease_seconds = 0; ///< that a lease lasts at least if nobody revokes it
    double grace_seconds = 0; ///< between SIGTERM and SIGKILL
    std::uint32_t kills_max = 5;
  };
  /// `post` may be called on any thread; envelopes go to the sidecar's machine.
  sidecar_worker(options o, std::function<void(envelope)> post);
  /// Drops unfinished units, kills their processes and joins the thread.
  ~sidecar_worker();

  /// run_unit or stop_worker. Any thread; never blocks.
  void push(const envelope& command);

private:
  /// A unit that is a command, while its processes exist.
  struct running_command {
    run_unit order;
    std::string folder; ///< scratch; the output lies beside it
    std::optional<process_group> group;
    std::uint32_t kills = 0;
    std::optional<stop_worker> stop;
  };

  void run();
  bool take_commands();
  void handle(const run_unit& m);
  void handle(const stop_worker& m);
  result<void> need_model(const std::string& dir);
  void do_step();
  void start_command();
  void watch_command();
  void end_command(int code);
  void fail_unit(const lease_id& lease, std::uint64_t unit, const error& why);
  template <class M>
  void tell(M message);

  options options_;
  std::function<void(envelope)> post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<envelope> queue_;
  bool stopping_ = false;

  // The worker's thread only.
  std::unique_ptr<engine> engine_; ///< null while no lease needs it
  std::map<std::uint64_t, lease_id> running_;
  std::optional<running_command> command_;
  std::thread thread_;
};

} // namespace adafloor
