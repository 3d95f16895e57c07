#pragma once
// The process that runs a user's aux_work on a leased rank (`adafloor callback-worker`), with a
// socket to the rank that started it.
#include <cstdint>
#include <string>

namespace adafloor {

struct callback_worker_options {
  std::uint32_t rank = 0;
  int socket_fd = -1; ///< of an envelope_stream
  std::string device; ///< as the work is told
};

/// Takes `run_unit` and `stop_worker`; says `work_result` and, when no unit runs any more,
/// `worker_stopped`. Returns the exit status: 0 when the socket's other end is closed, whatever
/// runs then; 1 when what comes is no order.
int run_callback_worker(const callback_worker_options& options);

} // namespace adafloor
