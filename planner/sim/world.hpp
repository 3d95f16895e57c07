#pragma once
// A whole simulated cluster: real machines, modelled engines, virtual time, one thread.
#include "planner/protocol/broker.hpp"
#include "planner/protocol/membership.hpp"
#include "planner/protocol/planner.hpp"
#include "planner/protocol/rank.hpp"
#include "planner/protocol/sidecar.hpp"
#include "planner/sim/models.hpp"

#include <bitset>
#include <deque>
#include <queue>

namespace adafloor::sim {

/// Crash, freeze, slow or disk_full, once, at the first rank that takes part in `step`; it may
/// never come. The process of rank 0 does not crash.
struct aimed_fault {
  fault_kind kind;
  protocol_step step;
};

/// A rank dies at `at`: it is gone, or stands still for `frozen`.
struct rank_death {
  std::uint32_t rank = 0;
  microseconds at{0};
  microseconds frozen{0}; ///< 0: gone
};

/// What a world is; drawn from the seed, or set by a test.
struct scenario {
  std::uint64_t seed = 0;
  std::uint32_t world_size = 8;
  std::uint32_t experts = 16;
  std::uint32_t rollouts = 2;
  std::uint32_t requests = 24; ///< per rollout
  std::uint32_t max_tokens = 96;
  double resumed = 0;               ///< chance that an earlier try of the job began a response
  std::uint32_t units = 60;         ///< of auxiliary work
  std::vector<queue_policy> queues; ///< that the units are dealt to; number = index
  pace_config pace;                 ///< when lending is cut
  double slow_leases = 0;           ///< chance of a step that tells so, per tick
  std::vector<std::uint32_t> exits{4, 2};
  fault_profile faults;
  microseconds faults_end{4'000'000};
  microseconds time_limit{120'000'000};    ///< liveness bound, all in
  std::optional<std::uint32_t> unkillable; ///< worker of this rank
  std::optional<std::uint32_t> engine_failure;
  microseconds fault_at{0};
  std::optional<aimed_fault> aimed; ///< after fault_at
  std::vector<rank_death> deaths;
  bool update_weights = true;
  bool may_fail = false; ///< with a clear error, though nothing of the above is to blame
  double moves = 0;      ///< chance of an order to move a request, per tick
  exit_rules rules;      ///< how exits are decided; forecasts are made with the requests
  int places = 64;       ///< requests that decisions put on one rank
  mutant bug = mutant::none;
};

/// One process.
struct node {
  rank_machine rank;
  sidecar_machine sidecar;
  engine_model engine;
  worker_model worker;
  incarnation_id incarnation;
  microseconds clock_skew{0};
  time_point paused_until;
  bool crashed = false;
  time_point slow_until;
  time_point heard_at;         ///< its heartbeat came to rank 0
  microseconds silence_max{0}; ///< longest time between two of them
  std::uint32_t side = 0;      ///< of a cut network; nothing passes between two sides
};

/// Steps that a rank takes part in.
using step_set = std::bitset<fault_coverage::steps + 1>; ///< by number of the step

/// Plays the trainer: queues work, runs rollouts and updates in turn, stops the job.
struct trainer_model {
  enum class stage : std::uint8_t { rollout, weights, stopping, stopped };
  stage now_in = stage::rollout;
  std::uint32_t next_rollout = 1;
  std::uint64_t version = 1;
  begin_rollout order; ///< the running one
  std::map<rank_id, rollout_report> reports;
  std::vector<rollout_done> done;
  std::vector<rollout_failed> failed;
  std::vector<lease_record> leases;
  std::vector<rank_quarantined> quarantined;
  std::vector<rank_lost> lost;
  std::vector<recovery_record> recoveries;
  std::size_t lost_before = 0, quarantined_before = 0; ///< when the last rollout was done
  std::uint32_t group_size = 0;                        ///< before the running rollout
  std::vector<request_moved> moves;
};

class world final : public host {
public:
  explicit world(scenario what);

  /// Until the trainer has stopped the job. Throws `violation`, as do the next two.
  void run();
  /// The same in parts: begin once, then one event after the other; false when nothing is left.
  void begin();
  bool advance();
  /// When the next event is due; the end of time when nothing is left.
  time_point next_at() const;

  // --- host
  void after(std::uint32_t node, microseconds delay, std::function<void()> work) override;
  void tell(envelope message, microseconds delay) override;
  void exchange(const step_header& own, const std::vector<rank_id>& members,
                std::function<void(const step_headers&)> read) override;
  bool is_lost(rank_id rank) const override { return planner.lost.count(rank) != 0; }
  bool anyone_lost() const override { return !planner.lost.empty(); }
  bool expert_resident(rank_id rank, std::uint32_t expert) const override {
    return nodes[rank.value].engine.resident(expert);
  }
  void note_switch(rank_id rank, epoch_id epoch, const std::vector<rank_id>& members,
                   const std::vector<rank_id>& owners) override;
  void fetch_round(rank_id by, rank_id from, const kv_ready& round,
                   std::function<void(std::optional<kv_blob>)> done) override;
  void note_token(rank_id rank, rollout_id rollout, request_id request, std::size_t index) override;
  microseconds clock(std::uint32_t node) const override {
    return now.time_since_epoch() + nodes[node].clock_skew;
  }
  const fault_profile& faults() const override { return current_faults; }
  void note_fault(fault_kind kind, rank_id rank) override;
  bool may_refuse_restoring() override { return !std::exchange(refused_restoring_, true); }

  /// Request number `number` of the order for a rollout.
  rollout_request request_of(rollout_id rollout, std::uint32_t number) const;
  /// Messages between processes that wait for a test, by name of the barrier.
  struct door {
    std::string message;       ///< name
    std::optional<rank_id> at; ///< none: every rank
    bool closed = true;
    std::vector<envelope> waiting;
  };
  std::map<std::string, door> doors;
  void open(const std::string& name);

  void strike_at(std::uint32_t n, fault_kind kind);
  void die(const rank_death&);
  /// Gone, or gone on without.
  bool is_dead(rank_id r) const { return nodes[r.value].crashed || planner.lost.count(r) != 0; }
  /// What rank `n` does at this moment, read off the machines.
  step_set steps_at(std::uint32_t n) const;
  /// Cuts these ranks off from the others, until `heal`.
  void cut_off(const std::vector<rank_id>& away);
  void heal();

  scenario what;
  fault_profile current_faults;
  time_point now{microseconds{1'000'000}};
  const time_point began_at{now};
  std::deque<node> nodes; ///< by rank; node 0 also runs the five below
  planner_machine planner;
  broker_machine broker;
  membership_machine membership;
  recorder_model recorder{*this, rank_id{0}};
  trainer_model trainer;
  std::map<epoch_id, std::pair<std::vector<rank_id>, std::uint64_t>> groups; ///< I1
  struct progress {
    std::size_t count = 0;
    std::uint32_t times_rebuilt = 0;
  };
  std::map<std::pair<rollout_id, request_id>, progress> tokens; ///< I6: generated so far
  std::uint64_t hash = 0;                                       ///< of all that was delivered
  std::uint64_t events = 0;
  fault_coverage struck; ///< where faults struck
  std::ostream* trace = nullptr;

private:
  struct event {
    std::int64_t at;
    std::uint64_t number;
    std::uint32_t node;
    std::function<void()> work;
    bool operator<(const event& o) const {
      return std::pair(o.at, o.number) < std::pair(at, number); // earliest on top
    }
  };
  struct collective {
    std::vector<rank_id> members;
    step_headers headers;
    std::vector<std::pair<rank_id, std::function<void(const step_headers&)>>> readers;
  };
  void deliver(const envelope& message);
  void note_refusal(const envelope& message);
  void arrive(const envelope& message, protocol_step step, std::uint64_t number);
  void strike(std::uint32_t n);
  void strike_by_chance(std::uint32_t n);
  bool apart(rank_id a, rank_id b) const { return nodes[a.value].side != nodes[b.value].side; }
  void finish_if_complete(const std::pair<epoch_id, std::uint64_t>& key);
  transition_kind kind_of(const any_message& about) const;
  void note_strike(fault_kind kind, protocol_step step, const envelope& message,
                   const std::string& how);
  void to_machine(const envelope& message, time_point local_now, effects& out);
  void to_model(const envelope& message);
  void to_trainer(const envelope& message);
  void next_order();
  void resume_some(begin_rollout& order);
  void order_rollout();
  void route(std::uint32_t from, effects& out);
  void send(envelope message);
  void tick_node(std::uint32_t n);
  void order_some_move(effects& out);
  void slow_down(effects& out);
  void order_moves_to_leavers(effects& out);
  void note_delivery(const envelope& message);
  void write_trace(const std::string& line);
  void write_trace(const std::string& what_happened, const envelope& message);
  void plant(const envelope& message, effects& out);
  void plant_in_moves(const envelope& message, effects& out);
  void plant_before(const envelope& message);
  time_point local(std::uint32_t n) const { return now + nodes[n].clock_skew; }

  std::priority_queue<event> queue_;
  std::uint64_t next_number_ = 0;
  std::map<std::pair<epoch_id, std::uint64_t>, collective> collectives_;
  std::deque<envelope> local_; ///< messages within a process, delivered at once and in order
  std::map<std::pair<std::uint32_t, role_kind>, time_point> told_at_; ///< keeps `tell` in order
  bool draining_ = false;
  /// Between two processes: messages sent, the newest that arrived, when it was due.
  struct line {
    std::uint64_t sent = 0, arrived = 0;
    time_point due_at;
  };
  std::map<std::pair<rank_id, rank_id>, line> lines_;
  std::map<epoch_id, transition_kind> kinds_; ///< of transitions that were prepared
  std::optional<time_point> heals_at_;
  bool refused_restoring_ = false, fault_struck_ = false;
};

/// The swarm: everything about a world follows from the seed, the number of ranks unless it is
/// given (from 2).
scenario scenario_of(std::uint64_t seed, std::uint32_t ranks = 0);
/// Leases above all: many ranks leave in several stages and lend to several queues, workers are
/// slow to start, die, do not stop and leave memory behind, and lending is cut and goes on all the
/// time.
scenario lease_scenario_of(std::uint64_t seed, std::uint32_t ranks = 0);
/// Ranks die at any moment of a job that moves requests and contracts, one after the other or
/// together; some only stand still, for longer than anybody waits, and wake.
scenario death_scenario_of(std::uint64_t seed, std::uint32_t ranks = 0);
/// Every kind of fault that is not in `kept` never strikes.
void keep_only(scenario&, const std::set<fault_kind>& kept);

} // namespace adafloor::sim
