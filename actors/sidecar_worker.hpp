#pragma once
// Does a lease's auxiliary work on this rank: answers prompts with a dense model, at the lowest
// scheduling priority, so that decoding on other ranks of the host goes first. Loads the model with
// the first unit of a lease and frees it when told to stop.
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

class sidecar_worker {
public:
  struct options {
    rank_id self;
    std::string model_dir;          ///< dense model
    std::uint32_t max_num_seqs = 8; ///< units that are answered together
    std::uint32_t kv_pages = 256;
  };
  /// `post` may be called on any thread; envelopes go to the sidecar's machine.
  sidecar_worker(options o, std::function<void(envelope)> post);
  /// Drops unfinished units and joins the thread.
  ~sidecar_worker();

  /// run_unit or stop_worker. Any thread; never blocks.
  void push(const envelope& command);

private:
  void run();
  bool take_commands();
  void handle(const run_unit& m);
  void handle(const stop_worker& m);
  void do_step();
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
  std::unique_ptr<engine> engine_; ///< null while no lease runs
  std::map<std::uint64_t, lease_id> running_;
  std::thread thread_;
};

} // namespace adafloor
