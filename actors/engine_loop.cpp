#include "actors/engine_loop.hpp"

#include "actors/turns.hpp"
#include "messages/expert_map.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace adafloor {
namespace {

constexpr auto progress_every = std::chrono::milliseconds(250); ///< while no step runs
constexpr auto news_wait = std::chrono::milliseconds(2);        ///< while time is held
/// Between the news of one rank and of the next, and at most for all ranks of a group.
constexpr microseconds news_apart{2'000}, news_spread_max{32'000};
constexpr std::string_view expert_prefix = "expert/"; ///< of names among the transfers

time_point now() {
  return std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
}

std::vector<rank_id> full_world(std::uint32_t size) {
  std::vector<rank_id> ranks;
  for (std::uint32_t r = 0; r < size; ++r)
    ranks.emplace_back(r);
  return ranks;
}

request_spec to_engine(const rollout_request& r) {
  request_spec out;
  out.id = r.id;
  out.random_key = r.random_key;
  out.prompt = r.prompt;
  out.max_tokens = r.max_tokens;
  out.sampling.temperature = static_cast<float>(r.how.temperature);
  out.sampling.top_p = static_cast<float>(r.how.top_p);
  out.sampling.top_k = r.how.top_k;
  return out;
}

finish_reason reason_of(stop_reason end) {
  switch (end) {
  case stop_reason::eos:
    return finish_reason::eos;
  case stop_reason::length:
    return finish_reason::length;
  default:
    return finish_reason::aborted;
  }
}

bool contains(const std::vector<rank_id>& ranks, rank_id r) {
  return std::find(ranks.begin(), ranks.end(), r) != ranks.end();
}

} // namespace

result<std::unique_ptr<engine_loop>> engine_loop::start(const std::string& model_dir,
                                                        engine_options options,
                                                        engine_surroundings around) {
  auto model = engine::load(model_dir, options);
  if (!model) return tl::unexpected(model.error());
  std::unique_ptr<engine_loop> loop(
      new engine_loop(std::move(*model), std::move(options), std::move(around)));
  const auto everybody = full_world(loop->options_.world_size);
  for (const auto& members : loop->around_.kept_groups)
    if (auto r = loop->groups_.keep(loop->epoch_, members); !r) return tl::unexpected(r.error());
  auto group = loop->groups_.take(loop->epoch_, everybody);
  if (!group) return tl::unexpected(group.error());
  loop->group_ = std::move(*group);
  if (auto r = loop->engine_->switch_map(loop->epoch_, loop->engine_->owners(), everybody); !r)
    return tl::unexpected(r.error());
  loop->thread_ = std::thread([l = loop.get()] { l->run(); });
  return loop;
}

engine_loop::engine_loop(std::unique_ptr<engine> model, engine_options options,
                         engine_surroundings around)
  : engine_(std::move(model)), options_(std::move(options)), around_(std::move(around)),
    groups_(*around_.fabric), moves_(*engine_, around_moves()) {
  log_.lag_max = around_.token_lag;
}

engine_loop::~engine_loop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void engine_loop::push(const envelope& command) {
  if (const auto* round = std::get_if<engine_receive_round>(&command.body))
    return moves_.pull(*round); // Need not wait for the running step.
  if (const auto* plan = std::get_if<engine_prepare>(&command.body); plan && plan->recover)
    around_.abort_up_to(epoch_id{plan->epoch.value - 1}); // The running step never ends by itself.
  enqueue(command);
}

void engine_loop::enqueue(command c) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(c));
  }
  wake_.notify_one();
}

result<shared_bytes> engine_loop::exported(const std::string& name) const {
  if (name.compare(0, expert_prefix.size(), expert_prefix) != 0) return moves_.shelved(name);
  const auto number = std::strtoul(name.c_str() + expert_prefix.size(), nullptr, 10);
  auto lent = engine_->lend_expert(static_cast<std::uint32_t>(number));
  if (!lent) return tl::unexpected(lent.error());
  const auto owner = std::make_shared<expert_loan>(std::move(*lent));
  return shared_bytes{owner, owner->weights, true, {{owner->foot.data(), owner->foot.size()}}};
}

const model_facts& engine_loop::facts() const {
  return engine_->facts();
}

void engine_loop::tell(any_message message) {
  envelope e;
  e.from = {options_.self, role_kind::engine};
  e.to = {options_.self, role_kind::rank};
  e.stamp.epoch = epoch_;
  e.stamp.weights = engine_->weights_version();
  e.body = std::move(message);
  if (news_at_)
    held_news_.push_back(std::move(e));
  else
    around_.post(std::move(e));
}

/// All members of a group that shrinks have news at the same moment, and who carries them from
/// process to process takes the processors from those that decode on. So one after the other keeps
/// silent for a moment. Not on an emulated device, where nobody decodes and the planner's decisions
/// must not come late.
void engine_loop::hold_news() {
  if (options_.emulated) return;
  const auto ranks = static_cast<std::int64_t>(group_->members().size());
  const auto place = static_cast<std::int64_t>(group_->self_index());
  news_at_ = now() + std::min(news_apart, news_spread_max / ranks) * (place + 1);
}

void engine_loop::tell_held() {
  if (!news_at_ || now() < *news_at_) return;
  news_at_.reset();
  for (auto& e : std::exchange(held_news_, {}))
    around_.post(std::move(e));
}

void engine_loop::run() {
  take_short_turns();
  while (take_commands())
    if (stepping_) do_step();
}

/// Handles what is queued; sleeps while there is nothing to do. False: the loop ends.
bool engine_loop::take_commands() {
  std::deque<command> taken;
  {
    std::unique_lock lock(mutex_);
    auto until = now() + progress_every;
    if (news_at_) until = std::min<time_point>(until, *news_at_);
    if (!stepping_) wake_.wait_until(lock, until, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return false;
    taken.swap(queue_);
  }
  tell_held();
  if (!stepping_) around_.fabric->progress();
  for (const auto& c : taken)
    std::visit([&](const auto& x) { handle(x); }, c);
  moves_.tidy();
  return true;
}

void engine_loop::handle(const envelope& e) {
  std::visit([&](const auto& m) { on(m); }, e.body);
}

void engine_loop::on(const engine_admit& m) {
  for (const auto& r : m.requests) {
    auto spec = to_engine(r);
    for (const auto& run : m.resumed)
      if (run.request == r.id) {
        spec.resumed = run.tokens;
        spec.resumed_logprobs = run.logprobs;
      }
    if (auto added = engine_->add_request(std::move(spec)); !added) return give_up(added.error());
  }
}

void engine_loop::on(const engine_start& m) {
  if (stepping_ || !group_ || m.rollout == rollout_) return;
  rollout_ = m.rollout;
  rollout_steps_ = 0;
  finished_ = 0;
  generated_ = 0;
  unkept_ = 0;
  live_told_ = live_requests();
  begin(log_, rollout_);
  stepping_ = true;
  if (auto r = engine_->start_rollout(group_.get()); !r) return give_up(r.error());
}

void engine_loop::on(const response_kept& m) {
  if (m.rollout == rollout_ && unkept_ > 0) --unkept_;
}

void engine_loop::on(const engine_prepare& m) {
  if (next_ && next_->epoch == m.epoch) return; // A repeat; the answer is on its way.
  if (next_) {
    if ((next_->committed && !m.recover) || m.epoch < next_->epoch)
      return tell(engine_refused{m.epoch, refusal::busy, "another transition is being prepared"});
    engine_->cancel_prepare();
  }
  if (m.recover) {
    stall({error_code::aborted, "ranks are lost"});
    if (auto r = around_.renew_fabric(); !r) return give_up(r.error());
  }
  next_ = group_to_be{m.epoch, m.members, expert_map{m.owners}, {}, 0, false, m.recover, m.dead};
  if (!contains(m.members, options_.self)) return report_prepared(); // Leavers pull nothing.
  auto missing = engine_->prepare_experts(next_->owners);
  if (!missing) {
    next_.reset();
    const auto reason =
        missing.error().code == error_code::bad_input ? refusal::bad_map : refusal::no_memory;
    return tell(engine_refused{m.epoch, reason, missing.error().text});
  }
  next_->missing = std::move(*missing);
  pull_next();
}

/// Asks the present owner for one expert, for the transport's thread to write it where it will
/// stay. The next one waits for a step to end, so that copying is spread over steps where they are
/// short.
void engine_loop::pull_next() {
  if (next_->missing.empty()) return report_prepared();
  const auto epoch = next_->epoch;
  const auto expert = next_->missing.back();
  const auto from = engine_->owners().owner_of[expert];
  if (contains(next_->dead, from) || from == options_.self)
    return enqueue(
        pull_done{epoch, expert, 0, "rank " + std::to_string(from.value) + " has it no more"});
  const auto landing = std::make_shared<expert_landing>(engine_->open_expert_landing());
  std::vector<bytes_place> into{{landing->weights, landing->weights_bytes, &landing->digest},
                                {landing->foot.data(), landing->foot.size()}};
  const auto arrived = [this, epoch, expert, landing](const result<shared_bytes>& blob) {
    pull_done done{epoch, expert, landing->weights_bytes, {}};
    if (!blob)
      done.problem = blob.error().text;
    else if (auto r = engine_->import_expert(std::move(*landing)); !r)
      done.problem = r.error().text;
    if (!done.problem.empty()) done.bytes = 0;
    enqueue(std::move(done));
  };
  around_.fetch(from, std::string(expert_prefix) + std::to_string(expert), std::move(into),
                arrived);
}

void engine_loop::handle(const pull_done& p) {
  if (!next_ || next_->epoch != p.epoch || next_->missing.empty()) return; // Aborted meanwhile.
  if (!p.problem.empty()) {
    // The checkpoint is the second source.
    if (auto r = engine_->reload_experts({p.expert}); !r) {
      const auto epoch = next_->epoch;
      engine_->cancel_prepare();
      next_.reset();
      return tell(engine_refused{epoch, refusal::source_failed,
                                 p.problem + "; and from the checkpoint: " + r.error().text});
    }
  }
  next_->bytes += p.bytes;
  next_->missing.pop_back();
  pull_next();
}

/// The hash covers what is resident here and what the map says of the others, so a map that was
/// built from the plan while a slot is empty does not match.
void engine_loop::report_prepared() {
  const auto resident = engine_->resident_experts();
  const auto& owners = next_->owners.owner_of;
  auto hash = expert_map_hash_begin;
  std::uint32_t own = 0;
  for (std::uint32_t e = 0; e < owners.size(); ++e) {
    if (owners[e] == options_.self) {
      if (!std::binary_search(resident.begin(), resident.end(), e)) continue;
      ++own;
    }
    hash = expert_map_hash_add(hash, e, owners[e]);
  }
  tell(engine_prepared{next_->epoch, hash, own, next_->bytes, around_.fabric_address()});
}

void engine_loop::on(const engine_abort& m) {
  if (!next_ || next_->epoch != m.epoch || next_->committed) return;
  engine_->cancel_prepare();
  next_.reset();
}

void engine_loop::on(const engine_commit& m) {
  if (!next_ || next_->epoch != m.epoch || !next_->missing.empty()) return;
  next_->committed = true;
  next_->addresses = m.addresses;
  const bool recovers = next_->recover;
  if (recovers) stepping_ = false; // Told to start meanwhile, in a group that is no more.
  // Before `switched`: nobody may take it for idle and close the books.
  if (recovers && m.decode && contains(next_->members, options_.self))
    set_state(live_requests() > 0 ? rank_state::busy : rank_state::dummy, now());
  if (!stepping_) do_switch(); // No step of the old epoch can come any more.
  if (recovers && epoch_ == m.epoch) go_on_without_lost(m.decode);
}

void engine_loop::on(const engine_settle& m) {
  if (m.epoch == epoch_ && group_) engine_->drop_unowned();
}

void engine_loop::on(const tokens_kept& m) {
  hear(log_, m);
}

void engine_loop::on(const update_weights& m) {
  if (m.version == engine_->weights_version()) {
    // A repeat: answered below with what is loaded.
  } else if (stepping_ || next_) {
    return tell(weights_refused{m.version, "a rollout or a transition is running"});
  } else if (auto r = engine_->update_weights(m.source, m.version); !r) {
    return tell(weights_refused{m.version, r.error().text});
  } else {
    around_.weights_changed(m.version);
  }
  tensor_set dense, experts;
  for (const auto& t : engine_->digests())
    (t.name.find(".experts.") == std::string::npos ? dense : experts).add(t);
  const weights_updated done{m.version, dense.tensors, dense.digest, experts.tensors,
                             experts.digest};
  tell(done);
}

void engine_loop::do_step() {
  const auto live = live_requests();
  const auto work = live > 0 ? rank_state::busy : rank_state::dummy;
  const auto began = engine_->now();
  set_state(work, began);
  const auto ready = next_ && next_->committed ? next_->epoch : epoch_;
  const std::uint64_t kv_tokens = std::uint64_t{engine_->kv().used} * kv_page_tokens;
  const step_header mine{epoch_, step_, ready, live, finished_, kv_tokens};
  auto out = engine_->step(group_.get(), mine, holds_time());
  if (!out) return stall(out.error());
  if (out->paused_until > began) {
    set_state(rank_state::transition, began);
    set_state(work, out->paused_until);
  }
  wait_until(engine_->now());
  record_step(*out, std::max(began, out->paused_until));
  ++step_;
  rollout_steps_ += out->decode_steps;
  report_step(*out);
  decide(out->headers);
  if (stepping_ && out->decode_steps == 0) wait_for_news();
}

/// The planner may be about to change the group: it has not taken note of all responses yet, or a
/// transition is being prepared, or a request is on its way. On an emulated device that takes no
/// time, since the clock would show it enlarged by the time scale.
bool engine_loop::holds_time() const {
  return unkept_ > 0 || next_ || moves_.open();
}

/// Sleeps while the device's clock is ahead of the machine's.
void engine_loop::wait_until(time_point t) {
  if (t <= now()) return;
  std::unique_lock lock(mutex_);
  wake_.wait_until(lock, t, [&] { return stopping_; });
}

void engine_loop::wait_for_news() {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, news_wait, [&] { return stopping_ || !queue_.empty(); });
}

void engine_loop::report_step(const step_output& out) {
  generated_ += out.tokens.size();
  finished_ += static_cast<std::uint32_t>(out.finished.size());
  unkept_ += static_cast<std::uint32_t>(out.finished.size());
  for (const auto& t : out.tokens)
    add(log_, t.id, t.index, t.token, t.logprob, now());
  log_tokens(false);
  for (const auto& f : out.finished) {
    moves_.ended(f.id);
    tell(response{rollout_, f.id, f.tokens, f.logprobs, reason_of(f.stop), rollout_steps_});
  }
  const bool lockstep = options_.emulated && out.decode_steps > 0;
  if (lockstep || live_requests() != live_told_ || rollout_steps_ == 1) report_progress();
}

void engine_loop::report_progress() {
  live_told_ = live_requests();
  tell(rank_progress{rollout_, epoch_, rollout_steps_, live_told_, finished_, generated_});
}

/// The rank closes its books only when the log has every token, so all goes out before a rest.
void engine_loop::log_tokens(bool all) {
  while (auto batch = next_batch(log_, all, now()))
    tell(std::move(*batch));
}

void engine_loop::record_step(const step_output& out, time_point began) const {
  if (!around_.step_done || group_->self_index() != 0 || out.decode_steps == 0) return;
  const auto seconds = std::chrono::duration<double>(engine_->now() - began).count();
  step_record r{rollout_steps_, out.headers.size(), 0, 0, seconds / out.decode_steps};
  for (const auto& h : out.headers) {
    r.active += h.live_requests > 0 ? 1 : 0;
    r.max_kv_tokens = std::max(r.max_kv_tokens, h.kv_tokens);
  }
  around_.step_done(r);
}

/// Every member reads the same headers, so every member decides the same here.
void engine_loop::decide(const std::vector<step_header>& headers) {
  const auto ready = headers.front().ready_epoch;
  const bool all_ready = ready > epoch_
                         && std::all_of(headers.begin(), headers.end(),
                                        [&](const auto& h) { return h.ready_epoch == ready; });
  const bool quiet = std::all_of(headers.begin(), headers.end(),
                                 [](const auto& h) { return h.live_requests == 0; });
  if (quiet) {
    stepping_ = false;
    log_tokens(true);
    set_state(rank_state::idle, engine_->now());
    if (around_.behind) around_.behind(now() - engine_->now());
  }
  if (all_ready || (quiet && next_ && next_->committed)) do_switch();
}

void engine_loop::do_switch() {
  const auto began = engine_->now();
  const auto next = std::move(*next_);
  const auto from = group_ ? group_->members().size() : 0;
  next_.reset();
  if (stepping_) hold_news();
  if (auto r = engine_->switch_map(next.epoch, next.owners, next.members); !r)
    return give_up(r.error());
  group_.reset();
  if (contains(next.members, options_.self)) {
    for (std::size_t i = 0; i < next.addresses.size() && i < next.members.size(); ++i)
      if (auto r = around_.follow(next.members[i], next.addresses[i]); !r)
        return give_up(r.error());
    auto group = groups_.take(next.epoch, next.members);
    if (!group) return give_up(group.error());
    group_ = std::move(*group);
  }
  epoch_ = next.epoch;
  step_ = 0;
  if (next.recover) {
    const auto since = std::exchange(stalled_at_, std::nullopt);
    return tell(switched{epoch_, rollout_steps_, since ? now() - *since : microseconds{0}});
  }
  const auto pause = pass_change(from, next, began);
  if (!pause) return give_up(pause.error());
  tell(switched{epoch_, rollout_steps_, *pause});
}

/// Takes the time of the change on the device's clock and says how long the pause was.
result<microseconds> engine_loop::pass_change(std::size_t from, const group_to_be& next,
                                              time_point began) {
  if (stepping_) {
    engine_->pass_exit(from, next.members.size());
    set_state(rank_state::transition, began);
    const auto ended = engine_->now();
    wait_until(ended);
    if (!group_) {
      stepping_ = false;
      log_tokens(true);
      set_state(around_.outside, ended);
    }
    return ended - began;
  }
  if (next.members.size() < options_.world_size) return engine_->now() - began;
  const auto pause = engine_->pass_restore(group_.get());
  if (!pause) return tl::unexpected(pause.error());
  wait_until(pause->end);
  state_ = rank_state::transition; // The rank's machine counts it so.
  set_state(rank_state::idle, pause->end);
  return pause->end - std::max(began, pause->begin);
}

/// The running step comes to no end, and has changed nothing. Where a peer is lost the group goes
/// on without it once the membership has decided; until then this rank waits.
void engine_loop::stall(const error& why) {
  const bool lost = why.code == error_code::peer_lost || why.code == error_code::timed_out;
  if (options_.emulated || (!lost && why.code != error_code::aborted)) return give_up(why);
  if (stepping_) {
    if (!stalled_at_) stalled_at_ = now();
    set_state(rank_state::transition, now());
  }
  stepping_ = false;
  if (lost) tell(engine_failed{options_.self, true, why.text});
}

/// Members may have been at different steps, and some at rest already: all begin anew.
void engine_loop::go_on_without_lost(bool decode) {
  stepping_ = decode && group_;
  if (stepping_) return;
  log_tokens(true);
  set_state(group_ ? rank_state::idle : around_.outside, now());
}

void engine_loop::set_state(rank_state state, time_point at) {
  if (state == state_) return;
  state_ = state;
  tell(engine_state{rollout_, state, at.time_since_epoch(), rollout_steps_});
}

void engine_loop::give_up(const error& why) {
  stepping_ = false;
  log_tokens(true);
  set_state(rank_state::idle, engine_->now());
  const bool lost = why.code == error_code::peer_lost || why.code == error_code::timed_out;
  tell(engine_failed{options_.self, lost, why.text});
}

} // namespace adafloor
