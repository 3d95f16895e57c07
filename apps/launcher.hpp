#pragma once
// Runs a job's rank processes to their end and says how it went.
#include "actors/job.hpp"

#include <nlohmann/json.hpp>

#include <functional>

namespace adafloor {

struct launch_outcome {
  int exit_code = 0; ///< 0 done, 1 failed or interrupted, 2 bad input, 3 lost a rank
  bool interrupted = false;
  bool resumable = false; ///< a rank was lost in the middle; all of them can start again
  std::string message;    ///< for a person; empty when done
};

/// Starts all ranks, hands every event line of rank 0 to `on_event` in order, and returns when no
/// process is left. SIGINT and SIGTERM stop the run: the ranks get SIGTERM, after 3 s SIGKILL; a
/// second signal kills at once. job.json must be in the job's out_dir. Call from the main thread.
launch_outcome launch(const job& task, const std::function<void(const nlohmann::json&)>& on_event);

} // namespace adafloor
