#include "actors/node.hpp"

#include "actors/aux_work.hpp"
#include "actors/bootstrap.hpp"
#include "actors/collective_over_nccl.hpp"
#include "actors/engine_loop.hpp"
#include "actors/event_stream.hpp"
#include "actors/model_worker.hpp"
#include "actors/replay.hpp"
#include "actors/roles.hpp"
#include "actors/rollout_plan.hpp"
#include "actors/router.hpp"
#include "actors/sidecar_worker.hpp"
#include "actors/step_log.hpp"
#include "actors/trainer.hpp"
#include "actors/turns.hpp"
#include "actors/ucx_bulk.hpp"
#include "actors/ucx_collective.hpp"
#include "actors/ucx_link.hpp"
#include "gpu/plugin.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

namespace adafloor {
namespace {

constexpr int status_done = 0, status_failed = 1, status_bad_input = 2, status_lost_rank = 3;
constexpr microseconds tick_every{100'000};
constexpr microseconds bulk_fetch_deadline{5'000'000};
constexpr microseconds connecting_max{2'000'000}; ///< of all ranks, after they have joined
/// There are many emulated ranks on few cores, and without one all must start again.
constexpr microseconds emulated_silence_max{10'000'000};

/// After which a rank, rank 0 included, counts as lost.
microseconds silence_max(const job& task) {
  const microseconds least = is_emulated(task) ? emulated_silence_max : microseconds{0};
  return std::max(microseconds{std::chrono::milliseconds(task.runtime.failure_ms)}, least);
}

std::atomic<bool> interrupted{false};

void on_terminate(int) {
  interrupted = true;
}

int status_of(const error& e) {
  switch (e.code) {
  case error_code::bad_input:
    return status_bad_input;
  case error_code::peer_lost:
    return status_lost_rank;
  default:
    return status_failed;
  }
}

int report(std::uint32_t rank, const error& e) {
  std::fprintf(stderr, "rank %u: %s\n", rank, e.text.c_str());
  return status_of(e);
}

/// Ends the process when the launcher is gone, however it went.
void watch_launcher(int fd) {
  std::thread([fd] {
    pollfd p{fd, POLLIN, 0};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
    char byte = 0;
    if (read(fd, &byte, 1) <= 0) _exit(status_failed);
  }).detach();
}

/// Everything of one rank process, in order of construction; torn down in reverse.
class node {
public:
  explicit node(const node_options& o)
    : options_(o), task_(o.task), self_(o.rank), incarnation_(random_incarnation()),
      router_(self_, incarnation_) {}
  ~node();

  result<void> start();
  result<void> run();
  bool orphaned() const { return lost_ == lost_contact::planner; }

private:
  result<void> open_transport();
  result<void> join_world();
  result<void> start_engine();
  void spawn_machines();
  void spawn_worker();
  void spawn_planner_machines();
  void serve_bulk();
  result<void> run_trainer();

  microseconds milliseconds(std::uint32_t ms) const {
    return microseconds{std::int64_t{ms} * 1000};
  }

  const node_options& options_;
  const job& task_;
  rank_id self_;
  incarnation_id incarnation_;
  router router_;
  std::unique_ptr<ucx_link> link_;
  std::unique_ptr<ucx_bulk> bulk_;
  std::unique_ptr<rank_fabric> fabric_;
  caf::actor_system_config actor_config_;
  std::unique_ptr<caf::actor_system> actors_;
  std::vector<role_actor> spawned_;
  std::atomic<engine_loop*> serving_{nullptr};
  std::optional<step_log> steps_;
  std::vector<group_capacity> capacities_; ///< rank 0: KV tokens of a rank, by group size
  std::atomic<microseconds> behind_{microseconds{0}}; ///< most that an emulation fell behind
  std::unique_ptr<engine_loop> engine_;
  std::unique_ptr<sidecar_worker> worker_;
  std::optional<event_stream> events_;
  std::unique_ptr<trainer> trainer_;
  std::promise<std::string> ended_; ///< the reason of the planner's stop
  std::atomic<bool> end_seen_{false};
  enum class lost_contact { none, self, planner };
  /// self: declared dead, and the others have gone on; planner: nothing was heard from it.
  std::atomic<lost_contact> lost_{lost_contact::none};
};

result<void> node::start() {
  if (auto r = open_transport(); !r) return r;
  if (auto r = join_world(); !r) return r;
  if (const auto& callback = task_.sidecar.callback; !callback.empty() && !find_aux_work(callback))
    return bad_input(
        "the job has work \"" + callback
        + "\" for leased ranks, which this program has not linked in; start the program "
          "that started the job");
  if (task_.sidecar.any()) spawn_worker(); // First: the fork of a process without weights is cheap.
  if (auto r = start_engine(); !r) return r;
  if (worker_) worker_->wait_loaded(milliseconds(task_.runtime.start_ms));
  if (self_ == rank_id(0)) {
    auto books = step_books::open(task_.out_dir + "/books.jsonl");
    if (!books) return tl::unexpected(books.error());
    const auto began =
        std::chrono::duration_cast<microseconds>(
            std::chrono::steady_clock::now().time_since_epoch())
        - microseconds(static_cast<std::int64_t>(books->seconds_since_first() * 1e6));
    auto events = event_stream::open(task_.out_dir + "/events.jsonl", options_.events_fd,
                                     booked(task_, began));
    if (!events) return tl::unexpected(events.error());
    events_.emplace(std::move(*events));
    auto capacities = kv_capacities(task_, engine_->facts());
    if (!capacities) return tl::unexpected(capacities.error());
    capacities_ = std::move(*capacities);
    auto t = trainer::make(task_, *events_, std::move(*books),
                           {[this](envelope e) { router_.post(std::move(e)); },
                            engine_->facts().vocabulary, capacities_, &interrupted, &behind_});
    if (!t) return tl::unexpected(t.error());
    trainer_ = std::move(*t);
  }
  spawn_machines();
  return {};
}

result<void> node::open_transport() {
  std::vector<fault_rule> faults;
  for (const auto& text : task_.faults) {
    auto rule = parse_fault(text);
    if (!rule) return tl::unexpected(rule.error());
    faults.push_back(std::move(*rule));
  }
  router_.inject_faults(faults);
  ucx_options ucx;
  if (task_.transport.tls != "auto") ucx.tls = task_.transport.tls;
  ucx.bind_host = options_.bind.empty() ? task_.transport.bind : options_.bind;
  ucx_link::options link;
  link.self = self_;
  link.incarnation = incarnation_;
  link.world_size = task_.world_size;
  link.ucx = ucx;
  auto l = ucx_link::open(link);
  if (!l) return tl::unexpected(l.error());
  link_ = std::move(*l);
  link_->on_frame([this](rank_id from, std::string_view f) { return router_.receive(from, f); });
  link_->on_space([this](rank_id to) { router_.space(to); });
  router_.attach_link(link_.get());

  ucx_bulk::options bulk;
  bulk.self = self_;
  bulk.incarnation = incarnation_;
  bulk.world_size = task_.world_size;
  bulk.ucx = ucx;
  auto b = ucx_bulk::open(bulk);
  if (!b) return tl::unexpected(b.error());
  bulk_ = std::move(*b);
  serve_bulk();

  if (task_.transport.collective == "nccl") {
    auto opened = collective_over_nccl::open(
        {self_, task_.world_size, std::chrono::milliseconds(task_.runtime.start_ms),
         std::chrono::milliseconds(task_.runtime.exchange_ms)});
    if (!opened) return tl::unexpected(opened.error());
    fabric_ = std::move(*opened);
    return {};
  }
  ucx_collective::options collective;
  collective.self = self_;
  collective.incarnation = incarnation_;
  collective.world_size = task_.world_size;
  collective.ucx = ucx;
  collective.deadline = milliseconds(task_.runtime.exchange_ms);
  auto c = ucx_collective::open(collective);
  if (!c) return tl::unexpected(c.error());
  fabric_ = std::move(*c);
  return {};
}

void node::serve_bulk() {
  bulk_->on_request([this](rank_id, const std::string& key) -> result<shared_bytes> {
    auto* engine = serving_.load();
    if (!engine) return fail(error_code::busy, "the engine is not up yet");
    return engine->exported(key);
  });
}

result<void> node::join_world() {
  bootstrap_options o;
  o.world_size = task_.world_size;
  o.listen_fd = options_.listen_fd;
  if (!options_.master.empty()) {
    const auto colon = options_.master.rfind(':');
    o.master_host = options_.master.substr(0, colon);
    o.master_port =
        static_cast<std::uint16_t>(std::strtoul(options_.master.c_str() + colon + 1, nullptr, 10));
  }
  o.token = options_.token;
  o.job_digest = hmac_sha256("job", to_json_text(task_));
  o.timeout = milliseconds(task_.runtime.start_ms);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const auto table = bootstrap(o, {self_, incarnation_, link_->address(), bulk_->address(),
                                   fabric_->address(), host, static_cast<std::uint32_t>(getpid())});
  if (!table) return tl::unexpected(table.error());
  for (const auto& peer : *table) {
    if (peer.rank == self_) continue;
    if (auto r = link_->connect(peer.rank, peer.control_address, peer.incarnation); !r) return r;
    if (auto r = bulk_->connect(peer.rank, peer.bulk_address, peer.incarnation); !r) return r;
    if (auto r = fabric_->connect(peer.rank, peer.collective_address, peer.incarnation); !r)
      return r;
  }
  return {};
}

result<void> node::start_engine() {
  engine_options o;
  o.self = self_;
  o.world_size = task_.world_size;
  o.weights_version = weights_id(1);
  o.kv_pages = static_cast<std::uint32_t>((task_.kv.capacity_tokens - resident_tokens(task_))
                                          / kv_page_tokens);
  o.max_num_seqs = task_.rollout.max_num_seqs;
  o.prefill_budget = task_.rollout.prefill_tokens;
  o.memory_bytes = task_.kv.rank_memory_bytes;
  const auto kv_type = parse_kv_dtype(task_.kv.dtype);
  if (!kv_type) return tl::unexpected(kv_type.error());
  o.kv_type = *kv_type;
  if (task_.device == "cuda") o.make_device = [self = self_] { return make_cuda_device(self); };
  engine_surroundings around;
  if (is_emulated(task_)) {
    auto emulated = emulation_of(task_);
    if (!emulated) return tl::unexpected(emulated.error());
    o.emulated = std::move(*emulated);
    o.kv_pages = emulated_kv_pages(task_);
    o.reserved_response_tokens = 1; // As the simulator admits.
    // Nobody lends an emulated rank to real work, but outside of the group it could be.
    if (!task_.sidecar.any()) around.outside = rank_state::leased;
    around.behind = [this](microseconds late) { behind_ = std::max(behind_.load(), late); };
  }
  around.fabric = fabric_.get();
  around.kept_groups = kept_groups(task_, self_);
  around.post = [this](envelope e) { router_.post(std::move(e)); };
  around.abort_up_to = [this](epoch_id e) { fabric_->abort_up_to(e); };
  around.renew_fabric = [this] { return fabric_->renew(); };
  around.fabric_address = [this] { return fabric_->address(); };
  around.follow = [this](rank_id r, const std::string& at) { return fabric_->follow(r, at); };
  around.weights_changed = [this](weights_id v) { fabric_->set_weights_version(v); };
  around.fetch = [this](rank_id from, const std::string& name, auto into, auto done) {
    auto answer = [done](result<pooled_buffer> b) {
      if (!b) return done(tl::unexpected(b.error()));
      const auto owner = std::make_shared<pooled_buffer>(std::move(*b));
      done(shared_bytes{owner, {owner->data(), owner->size()}});
    };
    if (auto r = bulk_->fetch(from, name, bulk_fetch_deadline, answer, std::move(into)); !r)
      done(tl::unexpected(r.error()));
  };
  if (task_.output.token_log) around.token_lag = milliseconds(task_.output.token_log_lag_ms);
  auto log = step_log::open(task_.out_dir + "/steps.csv");
  if (!log) return tl::unexpected(log.error());
  steps_.emplace(std::move(*log));
  if (self_ == rank_id(0) && task_.term == 1) steps_->begin();
  around.step_done = [this](step_record r) {
    if (is_emulated(task_)) r.seconds /= task_.emulation.time_scale;
    steps_->add(r);
  };
  fabric_->set_weights_version(o.weights_version);
  if (auto r = fabric_->join(); !r) return r;
  auto loop = engine_loop::start(task_.models.front(), o, std::move(around));
  if (!loop) return tl::unexpected(loop.error());
  engine_ = std::move(*loop);
  serving_ = engine_.get();
  return {};
}

void node::spawn_machines() {
  actor_config_.add_message_types<caf::id_block::adafloor>();
  actor_config_.set("scheduler.policy", caf::atom("sharing"));
  actor_config_.set("scheduler.max-threads", 1);
  const auto start = [this] { // The threads that are started here give way likewise.
    give_way(messages_nice);
    actors_ = std::make_unique<caf::actor_system>(actor_config_);
  };
  std::async(std::launch::async, start).get();
  const auto now = std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
  const fence stamp{term_id(task_.term), epoch_id(1), weights_id(1)};

  router_.attach(role_kind::engine, [this](const envelope& e) {
    const auto* end = std::get_if<stop>(&e.body);
    const auto* lost = std::get_if<member_lost>(&e.body);
    if (lost) lost_ = lost->rank == self_ ? lost_contact::self : lost_contact::planner;
    if ((end || lost) && !end_seen_.exchange(true))
      ended_.set_value(end ? end->reason : lost->reason);
    engine_->push(e);
  });
  router_.attach(role_kind::worker, [this](const envelope& e) {
    if (worker_) worker_->push(e);
  });

  rank_config rank;
  rank.self = self_;
  rank.world_size = task_.world_size;
  rank.incarnation = incarnation_;
  rank.heartbeat = milliseconds(task_.runtime.heartbeat_ms);
  rank.handoff.copy_max = milliseconds(task_.runtime.deadline_ms);
  rank.planner_silence_max = silence_max(task_);
  rank.planner_first_max = milliseconds(task_.runtime.start_ms); // It may still load the model.
  auto spawn = [&](role_kind role, std::shared_ptr<machine_box> machine) {
    spawned_.push_back(spawn_machine(*actors_, std::move(machine), router_, tick_every));
    router_.attach(role, spawned_.back());
  };
  sidecar_config sidecar;
  sidecar.self = self_;
  spawn(role_kind::sidecar, std::make_shared<boxed<sidecar_role>>(sidecar_machine(sidecar, stamp)));
  if (self_ == rank_id(0)) spawn_planner_machines();
  spawn(role_kind::rank, std::make_shared<boxed<rank_role>>(rank_machine(rank, stamp, now)));
}

void node::spawn_worker() {
  const auto& lent_to = task_.sidecar;
  sidecar_worker::options o;
  o.self = o.model.self = o.callback.self = self_;
  for (const auto& model :
       {lent_to.model, lent_to.score_with == "self" ? task_.models.front() : lent_to.score_with})
    if (!model.empty()) o.model.models.push_back(model);
  const auto longest = task_.rollout.max_prompt_length + task_.rollout.max_response_length;
  const auto kv_pages = std::max(model_worker_options{}.kv_pages, longest / kv_page_tokens + 1);
  o.model.arguments = {"--kv-pages", std::to_string(kv_pages), "--kv-dtype", task_.kv.dtype};
  o.callback.command = "callback-worker";
  o.callback.arguments = {"--device", task_.device};
  o.memory_bytes = o.model.memory_bytes = o.callback.memory_bytes = lent_to.memory_bytes;
  o.cpus = o.model.cpus = o.callback.cpus = lent_to.cpus;
  o.scratch = task_.out_dir + "/scratch";
  o.device = task_.device;
  o.grace_seconds = lent_to.grace_seconds;
  o.attempts_max = lent_to.max_unit_attempts;
  worker_ = std::make_unique<sidecar_worker>(std::move(o),
                                             [this](envelope e) { router_.post(std::move(e)); });
}

void node::spawn_planner_machines() {
  const auto now = std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
  const fence stamp{term_id(task_.term), epoch_id(1), weights_id(1)};
  auto spawn = [&](role_kind role, std::shared_ptr<machine_box> machine) {
    spawned_.push_back(spawn_machine(*actors_, std::move(machine), router_, tick_every));
    router_.attach(role, spawned_.back());
  };
  membership_config membership;
  membership.self = self_;
  membership.world_size = task_.world_size;
  membership.silence_max = silence_max(task_);
  membership.first_max = milliseconds(task_.runtime.start_ms); // Others may still load the model.
  broker_config broker;
  broker.self = self_;
  broker.grace = microseconds(static_cast<std::int64_t>(task_.sidecar.grace_seconds * 1e6));
  broker.window_min =
      microseconds(static_cast<std::int64_t>(task_.sidecar.min_window_seconds * 1e6));
  broker.memory_bytes = task_.sidecar.memory_bytes;
  broker.pace.max_slowdown = task_.sidecar.max_slowdown;
  broker.unit_attempts_max = task_.sidecar.max_unit_attempts;
  planner_config planner;
  planner.self = self_;
  planner.world_size = task_.world_size;
  planner.experts = engine_->facts().experts;
  planner.lockstep = is_emulated(task_);
  planner.recover = !is_emulated(task_);
  planner.peer_lost_max = milliseconds(task_.runtime.failure_ms) + microseconds{2'000'000};
  planner.transition.prepare_max = milliseconds(task_.runtime.deadline_ms);
  if (const auto options = arm_options(task_, task_.arms.front(), capacities_))
    planner.weighing = *options;
  for (const auto role : {role_kind::trainer, role_kind::recorder})
    router_.attach(role, [this](const envelope& e) { trainer_->push(e); });
  spawn(role_kind::planner,
        std::make_shared<boxed<planner_role>>(planner_machine(planner, stamp, now)));
  spawn(role_kind::broker,
        std::make_shared<boxed<broker_role>>(broker_machine(broker, stamp.term)));
  spawn(role_kind::membership,
        std::make_shared<boxed<membership_role>>(membership_machine(membership, stamp.term, now)));
}

result<void> node::run() {
  if (trainer_) return run_trainer();
  auto ended = ended_.get_future();
  constexpr auto poll_every = std::chrono::milliseconds(200);
  constexpr int patience_polls = 20; ///< SIGTERM reaches rank 0, too; it stops everybody
  for (int polls_left = patience_polls; polls_left > 0;) {
    if (ended.wait_for(poll_every) == std::future_status::ready) {
      if (lost_ == lost_contact::self)
        return fail(error_code::peer_lost, ended.get()
                                               + ", so it was declared lost; the others "
                                                 "have gone on without it, and this process ends");
      if (lost_ == lost_contact::planner)
        return fail(error_code::peer_lost, ended.get() + "; this process ends");
      link_->flush(microseconds{1'000'000});
      return {};
    }
    if (interrupted) --polls_left;
  }
  return fail(error_code::aborted, "interrupted, and rank 0 did not say stop");
}

result<void> node::run_trainer() {
  auto done = trainer_->run();
  if (!done) {
    const char* code = done.error().code == error_code::peer_lost ? "peer_lost"
                       : done.error().code == error_code::aborted ? "aborted"
                                                                  : "failed";
    events_->emit("error", {{"code", code}, {"text", done.error().text}});
  }
  // Ranks that had nothing to do with each other yet still connect, and UCX crashes where such
  // endpoints are destroyed.
  if (done && !trainer_->has_run_rollouts()) std::this_thread::sleep_for(connecting_max);
  trainer_->stop_world(done ? "the job is done" : done.error().text);
  link_->flush(microseconds{500'000});
  return done;
}

node::~node() {
  serving_ = nullptr;
  if (bulk_) bulk_->close();
  if (fabric_) fabric_->abort_up_to(epoch_id(std::numeric_limits<std::uint64_t>::max()));
  for (auto& a : spawned_)
    caf::anon_send_exit(a, caf::exit_reason::kill);
  spawned_.clear();
  router_.detach_all();
  actors_.reset();
  worker_.reset();
  engine_.reset();
  if (link_) link_->close();
}

} // namespace

int run_node(const node_options& options) {
  prctl(PR_SET_NAME, ("adafloor-" + std::to_string(options.rank)).c_str());
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGTERM, on_terminate);
  std::signal(SIGINT, on_terminate);
  if (options.liveness_fd >= 0) watch_launcher(options.liveness_fd);
  try {
    node n(options);
    // Nothing is under way yet, and UCX aborts where endpoints that still connect are destroyed.
    if (auto r = n.start(); !r) std::_Exit(report(options.rank, r.error()));
    if (auto r = n.run(); !r) {
      const int status = report(options.rank, r.error());
      return n.orphaned() ? status_orphaned : status;
    }
    return status_done;
  } catch (const std::exception& e) {
    return report(options.rank, {error_code::internal, e.what()});
  }
}

} // namespace adafloor
