#pragma once
// The thread that decodes: owns the engine and the communicator of the running epoch, takes
// commands from the rank's machine between steps and tells it what happened (messages/engine.hpp).
#include "actors/group_cache.hpp"
#include "actors/kv_moves.hpp"
#include "gpu/engine.hpp"
#include "messages/catalog.hpp"
#include "planner/protocol/token_batcher.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>

namespace adafloor {

/// One decode step of the whole group, as cost models are fitted to it.
struct step_record {
  std::uint64_t step = 0;          ///< within the rollout
  std::size_t group_size = 0;      ///< ranks
  std::size_t active = 0;          ///< ranks with live requests
  std::uint64_t max_kv_tokens = 0; ///< of the fullest rank
  double seconds = 0;              ///< on this rank, by its device's clock
};

/// What the loop needs from the process around it.
struct engine_surroundings {
  collective_fabric* fabric = nullptr; ///< outlives the loop; used by the loop's thread only
  /// Groups of this rank that are made at the start and kept: planned residency.
  std::vector<std::vector<rank_id>> kept_groups;
  std::function<void(envelope)> post; ///< any thread; to the rank's machine
  /// Fetches what a peer's loop exports (see kv_moves::surroundings::fetch).
  std::function<void(rank_id from, std::string name, std::vector<bytes_place> into,
                     std::function<void(result<shared_bytes>)> done)>
      fetch;
  /// Makes a running or later exchange of an epoch up to this one fail with `aborted`. Any thread.
  std::function<void(epoch_id)> abort_up_to;
  /// Where this rank takes part in exchanges: anew, since who died may have left a lock in what was
  /// shared; as it is; and where another rank does from now on. The loop's thread.
  std::function<result<void>()> renew_fabric;
  std::function<std::string()> fabric_address;
  std::function<result<void>(rank_id, const std::string&)> follow;
  /// Called on the loop's thread after the weights changed.
  std::function<void(weights_id)> weights_changed;
  /// From a token to the batch of the token log that holds it; zero: no log.
  microseconds token_lag{0};
  /// Called on the loop's thread after a step, on the first member of the group only.
  std::function<void(const step_record&)> step_done;
  /// Called on the loop's thread when decoding is over: how far the device's clock is behind the
  /// machine's. More than a moment means that this machine cannot keep up with an emulation.
  std::function<void(microseconds)> behind;
  /// What a rank's time counts as while it is outside of the group.
  rank_state outside = rank_state::idle;
};

class engine_loop {
public:
  /// Loads the model and starts the thread with the group of the whole world as epoch 1.
  /// Errors: those of engine::load and of the fabric.
  static result<std::unique_ptr<engine_loop>>
  start(const std::string& model_dir, engine_options options, engine_surroundings around);
  /// Ends the thread after the running step. A step that waits for a peer ends when the fabric is
  /// aborted or at its deadline.
  ~engine_loop();

  /// A command of the rank's machine. Any thread; never blocks.
  void push(const envelope& command);
  /// For the peers that pull: "expert/<number>", or a round of a request (kv_blob_name). Any
  /// thread. Errors: bad_input for an expert that is not here, refused for a round that is not
  /// offered.
  result<shared_bytes> exported(const std::string& name) const;
  const model_facts& facts() const;

private:
  struct pull_done {
    epoch_id epoch;
    std::uint32_t expert = 0;
    std::uint64_t bytes = 0;
    std::string problem; ///< empty: the expert is resident
  };
  struct group_to_be {
    epoch_id epoch;
    std::vector<rank_id> members;
    expert_map owners;
    std::vector<std::uint32_t> missing; ///< experts; the last one is being pulled
    std::uint64_t bytes = 0;
    bool committed = false;
    bool recover = false;
    std::vector<rank_id> dead;               ///< whose experts come from the checkpoint
    std::vector<std::string> addresses = {}; ///< of the members' exchanges
  };
  using command = std::variant<envelope, pull_done, kv_arrival>;

  engine_loop(std::unique_ptr<engine> model, engine_options options, engine_surroundings around);
  void run();
  bool take_commands();
  void handle(const envelope& e);
  void handle(const pull_done& p);
  void handle(const kv_arrival& a);
  void on(const engine_admit& m);
  void on(const engine_start& m);
  void on(const engine_prepare& m);
  void on(const engine_abort& m);
  void on(const engine_commit& m);
  void on(const engine_settle& m);
  void on(const tokens_kept& m);
  void on(const update_weights& m);
  void on(const response_kept& m);
  void on(const engine_move_begin& m);
  void on(const engine_move_round& m);
  void on(const engine_move_end& m);
  void on(const engine_receive_begin& m);
  void on(const engine_receive_cancel& m);
  template <class M>
  void on(const M&) {} // Other bodies of the catalog are not for the engine.

  kv_moves::surroundings around_moves();
  void enqueue(command c);
  std::uint32_t live_requests() const;
  void report_progress();
  void pull_next();
  void report_prepared();
  void do_step();
  bool holds_time() const;
  void wait_until(time_point t);
  void wait_for_news();
  void report_step(const step_output& out);
  void log_tokens(bool all);
  void record_step(const step_output& out, time_point began) const;
  void decide(const std::vector<step_header>& headers);
  void do_switch();
  void stall(const error& why);
  void go_on_without_lost(bool decode);
  result<microseconds> pass_change(std::size_t from, const group_to_be& next, time_point began);
  void set_state(rank_state state, time_point at);
  void give_up(const error& why);
  void tell(any_message message);
  void hold_news();
  void tell_held();

  std::unique_ptr<engine> engine_;
  engine_options options_;
  engine_surroundings around_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<command> queue_;
  bool stopping_ = false;

  // The loop's thread only.
  group_cache groups_;
  std::shared_ptr<communicator> group_; ///< null outside the group
  epoch_id epoch_{1};
  std::optional<group_to_be> next_;
  rollout_id rollout_;
  bool stepping_ = false;
  std::optional<time_point> stalled_at_; ///< a step was given up; until a recovery's switch
  std::uint64_t step_ = 0;               ///< within the epoch; equal on all members
  std::uint64_t rollout_steps_ = 0;      ///< decode steps of this rank in the rollout
  std::uint32_t finished_ = 0;
  std::uint64_t generated_ = 0;
  std::uint32_t live_told_ = 0;
  std::uint32_t unkept_ = 0; ///< responses that are told and not yet known to be kept
  rank_state state_ = rank_state::idle;
  kv_moves moves_;
  token_batcher log_;
  std::optional<time_point> news_at_; ///< until then news are held
  std::vector<envelope> held_news_;

  std::thread thread_; // Last: started when everything above exists.
};

} // namespace adafloor
