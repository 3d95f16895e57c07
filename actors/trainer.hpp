#pragma once
// Drives the job on rank 0: arms, epochs and steps, one after the other; keeps the results. Takes
// the part of two roles: trainer (asks the planner) and recorder (makes responses durable before
// they are acknowledged).
#include "actors/arm_result.hpp"
#include "actors/equal_work.hpp"
#include "actors/event_stream.hpp"
#include "actors/job.hpp"
#include "actors/lease_queues.hpp"
#include "actors/prompts.hpp"
#include "actors/recorder.hpp"
#include "actors/replay.hpp"
#include "actors/rollout_plan.hpp"
#include "actors/step_books.hpp"
#include "actors/token_log.hpp"
#include "messages/catalog.hpp"
#include "planner/plan/history.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>

namespace adafloor {

class trainer {
public:
  struct surroundings {
    std::function<void(envelope)> post;     ///< to planner and broker; any thread
    std::uint32_t vocabulary = 0;           ///< of the policy model
    std::vector<group_capacity> capacities; ///< KV tokens of a rank, by group size
    const std::atomic<bool>* interrupted = nullptr;
    const std::atomic<microseconds>* behind = nullptr; ///< see engine_surroundings
  };
  /// Reads prompts, queries and history, and what an earlier try of the job left if `books` has any
  /// of it. Errors: bad_input, io.
  static result<std::unique_ptr<trainer>> make(const job& task, event_stream& events,
                                               step_books books, surroundings around);

  /// An envelope for trainer or recorder. Any thread.
  void push(const envelope& e);

  /// Runs the whole job on the calling thread. Errors: peer_lost, aborted (interrupted), io, ...;
  /// what was finished is on disk.
  result<void> run();
  /// False: everything was done already by an earlier try.
  bool has_run_rollouts() const { return rollouts_run_ > 0; }
  /// Asks the planner to stop all ranks and waits, bounded.
  void stop_world(const std::string& reason);

private:
  /// The step that runs.
  struct running_step {
    rollout_id rollout;
    std::uint32_t number = 0;       ///< within the arm and epoch, 0-based
    std::vector<response_key> keys; ///< by request id
    std::uint32_t cap = 0;          ///< response tokens, guard included
    std::map<response_key, kept_response> kept;
    std::map<rank_id, rollout_report> reports;
    std::optional<rollout_done> done;
    std::optional<rollout_failed> failed;
    std::uint64_t tokens = 0;
    microseconds progress_at{0};
    std::uint32_t group_size = 0; ///< ranks, as last reported
  };

  /// What an earlier try of the job left; forgotten when its next step begins.
  struct earlier_try {
    job_point next; ///< all before it is over
    std::map<job_point, std::map<response_key, kept_response>> responses;
    logged_rollout tokens; ///< of `next`: what its unfinished responses have
  };

  trainer(const job& task, event_stream& events, step_books books, surroundings around);
  result<void> load();
  result<void> check_budget() const;
  result<void> load_work();
  result<void> run_arm(std::uint32_t number);
  /// The plans of an epoch, and its steps that are not over.
  result<void> run_epoch(std::uint32_t arm, std::uint32_t epoch, finished_arm& past);
  result<void> load_policy(const std::string& dir);
  /// Folder of the policy that serves an epoch.
  const std::string& policy_of(std::uint32_t epoch) const;
  result<void> run_step(const job_point& at, const rollout_step& plan);
  /// Without those that are kept. A policy that serves another epoch draws anew: the seed grows
  /// with each pass.
  begin_rollout make_rollout(const rollout_step& plan);

  // trainer_resume.cpp
  result<void> load_earlier();
  result<void> load_earlier_responses();
  /// The earlier try was through with it.
  bool is_over(const job_point& at) const { return earlier_ && at < earlier_->next; }
  /// Nobody needs what the earlier try did in this arm.
  bool is_past(std::uint32_t arm) const;
  /// The arm begins, or goes on, in the books.
  result<void> open_books(std::uint32_t arm);
  /// A step that is over, with its responses as they were kept. Errors: bad_input if one is not
  /// there.
  result<void> take_kept(const job_point& at, const rollout_step& plan);
  /// Makes the order for a step that may have begun in the earlier try, and tells of it.
  result<begin_rollout> take_up(const job_point& at, const rollout_step& plan);
  /// Writes down that all before `next` is over.
  result<void> write_books(const job_point& next);

  result<void> sync_files();
  /// False, and disk_error_ is set, when it failed.
  bool on_disk(const result<void>& done);
  result<void> close_step();
  /// Kept only for the comparison of a guarded arm: what is kept grows with every epoch.
  void remember_epoch(finished_arm& past, const std::vector<rollout_step>& plan) const;
  result<void> pass_fixed_time();
  void compare_work();
  void learn_lengths(const std::map<response_key, kept_response>& responses);
  /// A response that is kept is work for whoever scores it.
  void queue_score(const job_point& at, const response_key& key, const kept_response& r);
  finish_reason reason_of_limit(const response_key& key) const;
  transition_record in_books(transition_record t) const;
  double reward_of(const response_key& key, const kept_response& r) const;

  /// Handles messages until `ready`, an interruption or a failed file.
  result<void> pump_until(const std::function<bool()>& ready, microseconds deadline);
  void take_messages();
  void handle(const envelope& e);
  void on(const response& m, const envelope& e);
  void on(const token_batch& m, const envelope& e);
  void on(const rollout_report& m, const envelope& e);
  void on(const rollout_done& m, const envelope& e);
  void on(const rollout_failed& m, const envelope& e);
  void on(const work_result& m, const envelope& e);
  void on(const lease_record& m, const envelope& e);
  void on(const lending_state& m, const envelope& e);
  void on(const rank_quarantined& m, const envelope& e);
  void on(const rank_lost& m, const envelope& e);
  void on(const recovery_record& m, const envelope& e);
  void on(const transition_record& m, const envelope& e);
  void on(const request_moved& m, const envelope& e);
  void on(const weights_updated& m, const envelope& e);
  void on(const weights_refused& m, const envelope& e);
  void on(const stopped& m, const envelope& e);
  template <class M>
  void on(const M&, const envelope&) {} // Other bodies are not for trainer and recorder.
  void tell_progress();
  void tell(role_kind from, role_kind to, any_message message);

  const job& task_;
  event_stream& events_;
  surroundings around_;

  std::vector<prompt> prompts_;
  std::vector<std::vector<std::int32_t>> recorded_; ///< of a replay: lengths by prompt and sample
  length_history history_;
  step_books steps_over_;
  std::optional<earlier_try> earlier_;
  std::optional<durable_file> responses_file_;
  std::optional<lease_queues> lent_;
  std::vector<rank_quarantined> quarantined_; ///< for the rest of the job
  std::vector<rank_lost> lost_;               ///< likewise
  std::optional<token_log> tokens_file_;
  std::optional<error> disk_error_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<envelope> queue_;

  std::uint64_t rollouts_ = 0;     ///< that are over
  std::uint64_t rollouts_run_ = 0; ///< by this process
  std::uint64_t policies_ = 0;
  std::string policy_dir_;
  std::optional<weights_updated> updated_;
  std::optional<weights_refused> refused_;
  bool world_stopped_ = false;
  std::optional<running_step> step_;
  job_point at_; ///< the step that runs
  arm_books books_;
  arm_lists recent_;         ///< added to the arm since its books were written down
  unit_counts units_before_; ///< when the arm began
  std::vector<finished_arm> finished_;
};

} // namespace adafloor
