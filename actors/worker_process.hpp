#pragma once
// A process that works on a leased rank (`adafloor model-worker`, `adafloor callback-worker`) as
// the rank sees it: with models it is started before anybody needs them, it stays with what it has
// in memory between leases, is killed alone when it does not stop, and is started anew after it
// died.
#include "actors/envelope_stream.hpp"
#include "actors/process_group.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <optional>

struct pollfd;

namespace adafloor {

/// Units that were under way when the process died go back with their lease: the machine hears
/// worker_stopped, and what else it sends under that lease is not begun. A process that dies before
/// it was ready had begun none: the next one gets them. One that dies again and again without a
/// result is started after a pause that doubles, up to ten seconds.
/// Thread: one makes all calls, and the process dies with it.
class worker_process {
public:
  struct options {
    rank_id self;
    std::string program; ///< file of adafloor; empty: the one that runs now
    std::string command = "model-worker";
    std::vector<std::string> arguments; ///< of it; --rank, --socket-fd and --model come besides
    std::vector<std::string> models;    ///< folders, loaded ahead; empty: no process before a unit
    std::uint64_t memory_bytes = 0;     ///< for weights, KV and all else; 0: no limit
    std::vector<std::uint32_t> cpus;    ///< empty: those of this process
  };
  /// `tell` gets work_result and worker_stopped, in calls of this class.
  worker_process(options o, std::function<void(any_message)> tell);
  /// Kills the process and waits for its end.
  ~worker_process();
  worker_process(const worker_process&) = delete;
  worker_process& operator=(const worker_process&) = delete;

  void run(const run_unit& m);
  /// A unit is under way, or the answer to `stop`.
  bool busy() const { return !running_.empty() || stop_; }
  /// Answered by worker_stopped, at once if no unit is under way. Without `kill` the process lives.
  void stop(const stop_worker& m);
  /// The models that are loaded ahead are there, or could not be had. Until then the process has
  /// the priority of this one: whoever waits for it keeps the CPUs free for it.
  bool loaded() const { return loaded_; }
  /// What to wait for with poll, and how long at most, in milliseconds (-1: for ever) ...
  pollfd waits_for() const;
  int patience_ms() const;
  /// ... before this is called.
  void watch();

private:
  using clock = std::chrono::steady_clock;
  void start();
  void listen();
  void note_end();
  void answer_stop(std::vector<partial_answer> partial = {});
  bool wanted() const { return !options_.models.empty() || !running_.empty(); }
  void pause_after_failure();
  void complain(const std::string& what) const;

  options options_;
  std::function<void(any_message)> tell_;
  std::optional<process_group> group_;
  std::optional<envelope_stream> talk_; ///< none: no process, or one that ends
  std::map<std::uint64_t, run_unit> running_;
  std::optional<stop_worker> stop_; ///< not answered yet
  std::optional<lease_id> broken_;  ///< units of it died with their process
  bool loaded_ = false;
  bool ready_ = false;         ///< this process
  std::uint32_t failures_ = 0; ///< ends and failed starts since the last result
  clock::time_point start_at_; ///< not earlier
};

} // namespace adafloor
