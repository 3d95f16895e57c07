#pragma once
// What machines speak to in a simulated world: an engine that keeps the rules of the decode loop
// (protocols.md section 2), a worker of auxiliary work, a recorder with a slow disk.
#include "planner/protocol/machine.hpp"
#include "planner/protocol/token_batcher.hpp"
#include "planner/sim/network.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace adafloor::sim {

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  auto z = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 29);
}

/// The response that a fault-free run gives: a function of the request alone.
std::vector<token_id> true_tokens(const rollout_request& request);
/// The answer to a unit of auxiliary work.
std::vector<token_id> true_answer(const work_unit& work);

/// Planted bugs: each breaks one rule on purpose, and the checkers must notice.
enum class mutant {
  none,
  rank_forgets_aborted_epochs,
  kept_before_durable,
  leaver_leaves_on_commit,
  gate_lends_members,
  gate_forgets_ended_leases,
  commit_without_all_prepared,
  sidecar_returns_with_worker_running,
  epoch_number_used_twice,
  restore_without_recall,
  response_recorded_twice,
  experts_dropped_on_prepare,
  map_given_from_plan_not_slots,
  member_switches_alone,
  batch_kept_before_logged,
  timeline_loses_time,
  source_frees_before_commit,
  source_resumes_when_unsure,
  destination_forgets_commits,
  move_number_used_twice,
  leaver_takes_requests,
  held_requests_do_not_count,
  unclean_return_called_clean,
  quarantine_is_ignored,
  units_lost_with_their_lease,
  unit_given_out_twice,
  rebuilt_with_a_hole,
  survivor_hides_what_it_took,
  dead_source_is_waited_for,
  dead_requests_are_forgotten,
  beginnings_are_dropped,
};
constexpr mutant enum_max(mutant) {
  return mutant::beginnings_are_dropped;
}
const char* name_of(mutant);  ///< as in the list above
const char* describe(mutant); ///< in words

/// Header of one member in one step's collective.
struct step_header {
  rank_id rank;
  epoch_id epoch;
  std::uint64_t step = 0;
  epoch_id ready_epoch;
  std::uint32_t live = 0;
  std::uint64_t map_hash = 0;
};
using step_headers = std::vector<step_header>;

/// One round of a moving request, as it lies on its source's shelf.
struct kv_blob {
  bool last = false;
  rollout_request spec;
  std::uint32_t first = 0;      ///< index of the first token in the response
  std::vector<token_id> tokens; ///< their KV
};

/// What a model may ask of its world.
struct host {
  virtual ~host() = default;
  /// Runs `work` on `node` later; dropped if the node has crashed by then.
  virtual void after(std::uint32_t node, microseconds delay, std::function<void()> work) = 0;
  /// To a machine of the same process; reliable and in order of sending.
  virtual void tell(envelope message, microseconds delay) = 0;
  /// Joins the collective of (epoch, step); `read` runs when every member's header is there.
  virtual void exchange(const step_header& own, const std::vector<rank_id>& members,
                        std::function<void(const step_headers&)> read) = 0;
  /// The others have gone on without it; it need not know.
  virtual bool is_lost(rank_id rank) const = 0;
  virtual bool anyone_lost() const = 0;
  virtual bool expert_resident(rank_id rank, std::uint32_t expert) const = 0;
  /// An engine runs `epoch` now; the world checks that everyone means the same group and map.
  virtual void note_switch(rank_id rank, epoch_id epoch, const std::vector<rank_id>& members,
                           const std::vector<rank_id>& owners) = 0;
  /// Pulls a round from `from`; `done` runs once on `by`, with nothing when it cannot be had.
  virtual void fetch_round(rank_id by, rank_id from, const kv_ready& round,
                           std::function<void(std::optional<kv_blob>)> done) = 0;
  /// The engine of `rank` generated token number `index` of the request.
  virtual void note_token(rank_id rank, rollout_id rollout, request_id request,
                          std::size_t index) = 0;
  virtual microseconds clock(std::uint32_t node) const = 0;
  virtual const fault_profile& faults() const = 0;
  /// A fault of `kind` struck at `rank`, in whatever steps it takes part in now.
  virtual void note_fault(fault_kind kind, rank_id rank) = 0;
  /// True once in a rollout.
  virtual bool may_refuse_restoring() = 0;
  random_stream rng{0};
  random_stream chaos{0}; ///< for kinds of fault that do not change what `rng` gives to others
  mutant bug = mutant::none;
};

class engine_model {
public:
  engine_model(host& world, rank_id self, std::uint32_t world_size, std::uint32_t experts,
               epoch_id epoch);
  void handle(const any_message& order);
  void fail(); ///< reports engine_failed and stops

  bool failed() const { return broken_; }
  bool in_group() const { return member_; }
  bool stalled() const { return stalled_; }
  bool quiescent() const { return quiescent_; }
  bool reserved() const { return prepared_.has_value(); }
  epoch_id epoch() const { return epoch_; }
  std::uint32_t live() const { return live_; }
  bool moves_left() const { return !leaving_.empty() || !arriving_.empty() || !shelf_.empty(); }
  std::optional<kv_blob> shelved(const kv_ready& round) const;
  const std::vector<rank_id>& members() const { return members_; }
  const std::vector<rank_id>& owners() const { return owners_; }
  bool resident(std::uint32_t expert) const { return resident_[expert]; }
  std::uint32_t resident_count() const;
  std::uint32_t home_or_owned() const; ///< experts that should be resident when all is settled
  std::int64_t step_us = 2'000;        ///< of this engine; slow ones have more

private:
  struct preparation {
    engine_prepare plan;
    std::vector<std::uint32_t> pulled;
    bool done = false;
  };
  struct running_request {
    rollout_request spec;
    std::vector<token_id> tokens;
    std::vector<token_id> generated;
    bool done = false;
    bool held = false; ///< stands still between two ranks
  };
  struct leaving {
    std::uint32_t sent = 0; ///< tokens
    engine_move_ended figures;
  };
  struct arriving {
    std::vector<token_id> tokens;
  };
  void admit(const engine_admit&);
  void start(const engine_start&);
  void prepare(const engine_prepare&);
  void finish_prepare(epoch_id epoch);
  void abort(epoch_id epoch);
  void commit(const engine_commit&);
  void settle();
  void load(const update_weights&);
  void stall();
  bool handle_move(const any_message&);
  void at_boundary(const any_message&);
  running_request* find(request_id);
  void offer(const move_key&);
  void make_round(const engine_move_round&);
  void end_move(const engine_move_end&);
  void conclude_move(const move_key&, move_outcome);
  void reserve(const engine_receive_begin&);
  void take(const kv_ready&, const std::optional<kv_blob>&);
  void give_back(const move_key&);
  void report_progress();
  void begin_step();
  void read_headers(const step_headers&);
  void finish_step(bool all_ready);
  void stop_quietly();
  void log_tokens(bool all);
  void switch_epoch(microseconds pause);
  void become(rank_state state);
  void say(any_message message);

  host& world_;
  rank_id self_;
  std::vector<bool> home_, resident_;
  std::vector<rank_id> members_, owners_;
  bool member_ = true, quiescent_ = true, broken_ = false;
  bool stalled_ = false;      ///< a recovery abandoned the step; none begins before its switch
  std::uint64_t attempt_ = 0; ///< of stepping: what was begun before a recovery is nothing now
  epoch_id epoch_, ready_epoch_;
  std::optional<preparation> prepared_;
  rollout_id rollout_;
  std::vector<running_request> requests_;
  std::map<move_key, leaving> leaving_;
  std::map<move_key, arriving> arriving_;
  std::map<move_key, std::pair<std::uint32_t, kv_blob>> shelf_; ///< the newest round
  std::vector<std::function<void()>> deferred_;                 ///< to the end of the running step
  std::uint32_t live_ = 0, finished_ = 0;
  std::uint64_t step_ = 0, epoch_step_ = 0, generated_ = 0;
  rank_state state_ = rank_state::idle;
  token_batcher log_;
};

class worker_model {
public:
  worker_model(host& world, rank_id self) : world_(world), self_(self) {}
  void handle(const any_message& order);
  bool active() const { return active_; } ///< its process exists
  bool unkillable = false;

private:
  void run(const run_unit&);
  void stop(const stop_worker&);
  void gone(lease_id lease, bool forced);
  void say(any_message message, microseconds delay);

  host& world_;
  rank_id self_;
  bool active_ = false, stopping_ = false, stop_kills_ = false;
  std::uint64_t generation_ = 0; ///< of the process
};

/// Keeps what it is given after a while, and then says so.
class recorder_model {
public:
  recorder_model(host& world, rank_id self) : world_(world), self_(self) {}
  void handle(const envelope& message);
  bool disk_full = false; ///< then nothing more is kept
  std::map<std::pair<rollout_id, request_id>, std::vector<token_id>> responses;
  std::map<std::pair<rollout_id, request_id>, std::uint32_t> written; ///< times
  std::map<std::uint64_t, std::vector<token_id>> answers;
  /// The token log: by response, token by index.
  std::map<std::pair<rollout_id, request_id>, std::map<std::uint32_t, token_id>> tokens;
  std::map<std::pair<rollout_id, rank_id>, std::uint64_t> logged; ///< batches
  std::uint64_t repeated = 0; ///< things given again after they were durable

private:
  host& world_;
  rank_id self_;
};

} // namespace adafloor::sim
