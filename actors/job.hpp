#pragma once
// What a run is, fully resolved: written once by the launcher as OUT/job.json, read by every rank
// process. No defaults are looked up after this point, so job.json alone reproduces the run.
#include "messages/reflect.hpp"
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace adafloor {

struct rollout_settings {
  std::uint32_t max_prompt_length = 64;     ///< tokens
  std::uint32_t max_response_length = 1536; ///< tokens
  std::uint32_t max_num_seqs = 32;          ///< requests that decode together on one rank
  std::uint32_t prefill_tokens = 256;       ///< prompt tokens that one step takes in, per rank
  double temperature = 1.0;                 ///< 0 means greedy
  double top_p = 1.0;                       ///< (0, 1]
  std::uint32_t top_k = 0;                  ///< 0 means all
  std::uint64_t seed = 1;
  FIELDS(rollout_settings, max_prompt_length, max_response_length, max_num_seqs, prefill_tokens,
         temperature, top_p, top_k, seed)
};

struct ep_settings {
  std::uint32_t floor = 2;                ///< ranks; smallest group that a step may shrink to
  std::string residency = "natural";      ///< of arm adaptive: natural | planned
  std::vector<std::uint32_t> group_sizes; ///< ranks, falling, first is world_size, last >= floor
  std::string migrate = "off";      ///< of every arm that shrinks: off | stragglers | consolidate
  std::uint32_t stragglers_max = 8; ///< requests that one exit may move with stragglers
  std::string
      cost_model; ///< text of one (planner/plan/cost_model.hpp); empty: nothing costs anything
  FIELDS(ep_settings, floor, residency, group_sizes, migrate, stragglers_max, cost_model)
};

struct guard_settings {
  bool enabled = false;            ///< cap responses per step (planner.md section 6)
  double ratio = 0.0;              ///< cap over predicted step exit; 0 means: fitted to the history
  double quantile = 0.95;          ///< of realised over predicted tails, where the ratio is fitted
  std::uint32_t step_tokens = 512; ///< a cap is a multiple of it
  std::uint32_t least_cap = 4096;  ///< tokens; no cap below
  FIELDS(guard_settings, enabled, ratio, quantile, step_tokens, least_cap)
};

struct kv_settings {
  std::uint32_t page_tokens = 16;
  std::uint64_t capacity_tokens = 32768; ///< KV tokens that one rank holds
  bool count_prompt_tokens = true;       ///< add prompts to the predicted peak
  double margin = 1.16;                  ///< predicted lengths are multiplied by this for KV
  /// KV tokens that the workspace of one kept group takes on a rank (planned residency).
  std::uint64_t resident_group_tokens = 0;
  /// Shared by one rank's dense weights, experts and KV; 0: no bound but capacity_tokens.
  std::uint64_t rank_memory_bytes = 0;
  std::string dtype = "float32"; ///< float32 | bfloat16: of all KV pages, auxiliary work's too
  FIELDS(kv_settings, page_tokens, capacity_tokens, count_prompt_tokens, margin,
         resident_group_tokens, rank_memory_bytes, dtype)
};

/// How a queue of auxiliary work is served.
struct queue_settings {
  std::uint32_t priority = 0; ///< queues of a higher one go first
  std::uint32_t weight = 1;   ///< share of the lease time among queues of one priority
  FIELDS(queue_settings, priority, weight)
};

struct sidecar_settings {
  std::string model;               ///< folder of a dense model; empty: no queries
  std::string queries;             ///< JSON lines of prompts with answers
  double grace_seconds = 2.0;      ///< between revoking a lease and killing its holder
  double min_window_seconds = 0.5; ///< shorter predicted windows are not leased
  double max_slowdown = 0.03; ///< of decode steps, a share; beyond it less is lent; 0: no limit
  std::uint64_t memory_bytes = 1u << 30; ///< of each process that works on a rank; 0: no limit
  std::vector<std::uint32_t> cpus;       ///< for the work on this host; empty: those of its rank
  std::string score_with;                ///< self | folder of a model; empty: no scores
  std::string exec;                      ///< command for /bin/sh; empty: none
  std::uint32_t exec_count = 1;          ///< units that run `exec`
  std::string exec_file;                 ///< JSON lines of commands, before those
  std::string callback;                  ///< name of a registered aux_work; empty: none
  std::string callback_file;             ///< lines, each the input of a unit
  std::uint32_t max_unit_attempts = 5;   ///< that workers die at; then it is given up; 0: no bound
  queue_settings generate, score{1, 1}, exec_queue, callback_queue;
  FIELDS(sidecar_settings, model, queries, grace_seconds, min_window_seconds, max_slowdown,
         memory_bytes, cpus, score_with, exec, exec_count, exec_file, callback, callback_file,
         max_unit_attempts, generate, score, exec_queue, callback_queue)
  /// There is work that ranks are lent for.
  bool any() const {
    return !(model.empty() && score_with.empty() && exec.empty() && exec_file.empty()
             && callback.empty());
  }
};

struct transport_settings {
  std::string collective = "ucx"; ///< ucx | nccl: of the engines' exchanges
  std::string tls = "auto"; ///< UCX_TLS; auto: shared memory and TCP, what this machine offers
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;        ///< of rank 0; 0 means: any free one
  std::uint32_t local_ranks = 0; ///< that `run` starts itself, from 0; 0: all
  std::string token_file;        ///< of the cluster token; empty: a fresh one, for local ranks only
  FIELDS(transport_settings, collective, tls, bind, port, local_ranks, token_file)
};

struct runtime_settings {
  std::uint32_t heartbeat_ms = 1000; ///< between two signs of life
  std::uint32_t failure_ms = 2800;   ///< silence after which a rank counts as lost
  std::uint32_t deadline_ms = 10000; ///< for one transition
  std::uint32_t start_ms = 60000;    ///< for all ranks to join
  std::uint32_t exchange_ms = 30000; ///< for one collective exchange of a step
  std::uint32_t max_restarts = 3;    ///< of all ranks, where the others cannot go on by themselves
  FIELDS(runtime_settings, heartbeat_ms, failure_ms, deadline_ms, start_ms, exchange_ms,
         max_restarts)
};

struct output_settings {
  bool token_log = true;                ///< OUT/tokens.log: every token as it is generated
  std::uint32_t token_log_lag_ms = 250; ///< from a token to the batch that holds it, at most
  std::string fsync = "step"; ///< never | step | response | batch: when the disk is waited for
  FIELDS(output_settings, token_log, token_log_lag_ms, fsync)
};

/// Of device emulated (gpu/emulated.hpp).
struct emulation_settings {
  double time_scale = 0.05; ///< seconds of the clock per second of the cost model
  std::uint32_t experts = 128;
  std::uint32_t expert_bytes = 4096; ///< one expert, all layers
  std::uint32_t kv_page_bytes = 256;
  FIELDS(emulation_settings, time_scale, experts, expert_bytes, kv_page_bytes)
};

/// Paths are absolute. Each arm runs `epochs` epochs: entry e of `models` serves epoch e, the last
/// one all that follow.
struct job {
  std::string out_dir;
  std::uint32_t world_size = 8;    ///< ranks
  std::vector<std::string> models; ///< folders of policy versions, in the order of the epochs
  std::string prompts;             ///< JSON lines
  std::string history;             ///< CSV; empty: nothing is known about lengths
  std::vector<std::string> history_epochs; ///< names; only these epochs of it; empty: all
  std::vector<std::string> arms; ///< vanilla | natural | planned | adaptive, in this order
  std::uint32_t epochs = 1;
  std::uint32_t steps = 4;             ///< per epoch
  std::uint32_t n = 8;                 ///< samples per prompt
  std::uint32_t prompts_per_step = 16; ///< over all ranks
  rollout_settings rollout;
  ep_settings ep;
  guard_settings guard;
  kv_settings kv;
  sidecar_settings sidecar;
  transport_settings transport;
  runtime_settings runtime;
  output_settings output;
  std::string device = "cpu"; ///< cpu | cuda | emulated
  emulation_settings emulation;
  std::string workload;            ///< CSV as the history; device emulated generates these lengths
  std::string workload_epoch;      ///< its name in `workload`
  std::vector<std::string> faults; ///< on purpose; parse_fault reads them
  double hold_seconds = 0;         ///< the joined world stays idle so long before the first arm
  std::uint64_t term = 1; ///< grows whenever the job is taken up again from what is on disk
  FIELDS(job, out_dir, world_size, models, prompts, history, history_epochs, arms, epochs, steps, n,
         prompts_per_step, rollout, ep, guard, kv, sidecar, transport, runtime, output, device,
         emulation, workload, workload_epoch, faults, hold_seconds, term)
};

/// What one rank process is started with. File descriptors are inherited; -1 means: not given.
struct node_options {
  job task;
  std::uint32_t rank = 0;
  int listen_fd = -1;   ///< rank 0: a listening TCP socket where the others join
  std::string master;   ///< other ranks: host:port of rank 0
  std::string bind;     ///< address that peers reach this process at; empty: transport.bind
  std::string token;    ///< cluster token, the bytes themselves
  int events_fd = -1;   ///< rank 0: where event lines go
  int liveness_fd = -1; ///< end of file here means that the launcher is gone: exit at once
};

/// True if `adafloor run` starts every rank itself.
inline bool all_local(const job& task) {
  return task.transport.local_ranks == 0 || task.transport.local_ranks == task.world_size;
}

/// True if the job runs on the emulated device.
inline bool is_emulated(const job& task) {
  return task.device == "emulated";
}

/// A time of the clock as the job's books have it: on the emulated device in the model's time.
inline microseconds booked(const job& task, microseconds time) {
  if (!is_emulated(task)) return time;
  return microseconds(
      static_cast<std::int64_t>(static_cast<double>(time.count()) / task.emulation.time_scale));
}

/// The job as JSON text, indented, every field present.
std::string to_json_text(const job& task);

/// Reads what `to_json_text` wrote. Strict: an unknown, missing or mistyped field is `bad_input`
/// and named with `place`, as is anything that is not JSON.
result<job> parse_job(const std::string& text, const std::string& place);

/// `parse_job` of a file's content; `io` when it cannot be read.
result<job> load_job(const std::string& path);

} // namespace adafloor
