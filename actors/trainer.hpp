#pragma once
// Drives the job on rank 0: arms, epochs and steps, one after the other; keeps the results. Takes
// the part of two roles: trainer (asks the planner) and recorder (makes responses durable before
// they are acknowledged).
#include "actors/arm_result.hpp"
#include "actors/equal_work.hpp"
#include "actors/event_stream.hpp"
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "actors/recorder.hpp"
#include "actors/rollout_plan.hpp"
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
    std::function<void(envelope)> post; ///< to planner and broker; any thread
    std::uint32_t vocabulary = 0;       ///< of the policy model
    const std::atomic<bool>* interrupted = nullptr;
  };
  /// Reads prompts, queries and history. Errors: bad_input, io.
  static result<std::unique_ptr<trainer>> make(const job& task, event_stream& events,
                                               surroundings around);

  /// An envelope for trainer or recorder. Any thread.
  void push(const envelope& e);

  /// Runs the whole job on the calling thread. Errors: peer_lost, aborted (interrupted), io, ...;
  /// what was finished is on disk.
  result<void> run();
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

  trainer(const job& task, event_stream& events, surroundings around);
  result<void> load();
  void queue_sidecar_work();
  result<void> run_arm(const std::string& arm);
  result<void> load_policy(const std::string& dir);
  result<void> run_step(const std::string& arm, const rollout_step& plan, std::uint32_t number);
  begin_rollout make_rollout(const rollout_step& plan);
  result<void> close_step();
  void remember_arm(std::vector<std::vector<rollout_step>> plans);
  void compare_work();
  void learn_lengths(const std::map<response_key, kept_response>& responses);
  result<std::uint64_t> count_duplicates() const;
  double reward_of(const response_key& key, const kept_response& r) const;

  /// Handles messages until `ready`, an interruption or a failed file.
  result<void> pump_until(const std::function<bool()>& ready, microseconds deadline);
  void take_messages();
  void handle(const envelope& e);
  void on(const response& m, const envelope& e);
  void on(const rollout_report& m, const envelope& e);
  void on(const rollout_done& m, const envelope& e);
  void on(const rollout_failed& m, const envelope& e);
  void on(const work_result& m, const envelope& e);
  void on(const lease_record& m, const envelope& e);
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

  std::vector<prompt> prompts_, queries_;
  length_history history_;
  std::optional<durable_file> responses_file_, sidecar_file_;
  std::set<std::uint64_t> units_kept_;
  std::optional<error> disk_error_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<envelope> queue_;

  std::uint64_t rollouts_ = 0;
  std::uint64_t policies_ = 0;
  std::string policy_dir_;
  std::optional<weights_updated> updated_;
  std::optional<weights_refused> refused_;
  bool world_stopped_ = false;
  std::optional<running_step> step_;
  arm_books books_;
  std::vector<finished_arm> finished_;
};

} // namespace adafloor
