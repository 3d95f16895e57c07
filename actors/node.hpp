#pragma once
// One rank process of a run, from joining to the end.
#include "actors/job.hpp"

namespace adafloor {

/// Of a rank that did not hear from rank 0 any more: all ranks may be started again.
constexpr int status_orphaned = 4;

/// Runs rank `options.rank` until the job is done, then returns its exit status: 0 done, 1 failed,
/// 2 bad input, 3 lost a rank, or `status_orphaned`. Rank 0 hosts the planner, writes the results
/// into the job's out_dir and streams event lines. Owns the file descriptors in `options`. Call
/// once per process.
int run_node(const node_options& options);

} // namespace adafloor
