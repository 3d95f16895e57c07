#pragma once
// The process that answers prompts and scores responses on a leased rank (`adafloor model-worker`):
// engines of its own, that hold all experts, and a socket to the rank that started it.
#include "gpu/engine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace adafloor {

/// SCHED_IDLE would starve it, and let those wait who want it to stop.
constexpr int model_worker_niceness = 19;

struct model_worker_options {
  std::uint32_t rank = 0;       ///< for what it prints
  int socket_fd = -1;           ///< of an envelope_stream
  std::uint32_t kv_pages = 256; ///< of each model
  kv_dtype kv_type = kv_dtype::float32;
  std::uint32_t max_num_seqs = 8;  ///< units that a model does together
  std::vector<std::string> models; ///< folders, loaded before anybody asks
};

/// Loads, becomes nice, and then takes `run_unit` and `stop_worker`; says `work_result` and, when
/// all units that it was given before are answered or dropped, `worker_stopped`. Keeps the two
/// models that were used last; a unit whose model cannot be loaded stays unanswered, and standard
/// error says why. Returns the exit status: 0 when the socket's other end is closed, 1 when memory
/// is out.
int run_model_worker(const model_worker_options& options);

} // namespace adafloor
