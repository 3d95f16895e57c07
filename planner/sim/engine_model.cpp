#include "planner/protocol/expert_placement.hpp"
#include "planner/sim/models.hpp"

#include <algorithm>

namespace adafloor::sim {

std::vector<token_id> true_tokens(const rollout_request& request) {
  const auto draw = mix(request.random_key, 17);
  const std::uint64_t span = draw % 4 == 0 ? request.max_tokens : request.max_tokens / 4 + 1;
  const auto length = 1 + (draw >> 8) % std::max<std::uint64_t>(span, 1);
  std::vector<token_id> tokens(std::min<std::uint64_t>(length, request.max_tokens));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<token_id>(mix(request.random_key, i) & 0x7fff);
  return tokens;
}

engine_model::engine_model(host& world, rank_id self, std::uint32_t world_size,
                           std::uint32_t experts, epoch_id epoch)
  : world_(world), self_(self), owners_(home_owners(experts, world_size)), epoch_(epoch),
    ready_epoch_(epoch) {
  for (std::uint32_t r = 0; r < world_size; ++r)
    members_.emplace_back(r);
  for (auto owner : owners_)
    home_.push_back(owner == self);
  resident_ = home_;
  log_.lag_max = microseconds{15'000};
  log_.window = 2;
  log_.tokens_max = 50;
}

std::uint32_t engine_model::resident_count() const {
  return static_cast<std::uint32_t>(std::count(resident_.begin(), resident_.end(), true));
}

std::uint32_t engine_model::home_or_owned() const {
  std::uint32_t count = 0;
  for (std::size_t e = 0; e < owners_.size(); ++e)
    count += home_[e] || (member_ && owners_[e] == self_);
  return count;
}

void engine_model::say(any_message message) {
  const auto to = role_at(self_, role_kind::rank);
  world_.tell({role_at(self_, role_kind::engine), to, {}, {}, std::move(message)},
              world_.rng.delay(0, 300));
}

void engine_model::become(rank_state state) {
  if (state == state_) return;
  state_ = state;
  say(engine_state{rollout_, state, world_.clock(self_.value), step_});
}

void engine_model::handle(const any_message& order) {
  if (broken_) return;
  if (auto* admit_order = std::get_if<engine_admit>(&order))
    admit(*admit_order);
  else if (auto* start_order = std::get_if<engine_start>(&order))
    start(*start_order);
  else if (auto* plan = std::get_if<engine_prepare>(&order))
    prepare(*plan);
  else if (auto* no = std::get_if<engine_abort>(&order))
    abort(no->epoch);
  else if (auto* yes = std::get_if<engine_commit>(&order))
    commit(*yes);
  else if (std::get_if<engine_settle>(&order))
    settle();
  else if (auto* weights = std::get_if<update_weights>(&order))
    load(*weights);
  else if (auto* kept = std::get_if<tokens_kept>(&order))
    hear(log_, *kept);
  else if (std::get_if<adafloor::stop>(&order) || std::get_if<member_lost>(&order))
    broken_ = true;
  else
    handle_move(order);
}

void engine_model::fail() {
  if (broken_) return;
  broken_ = true;
  say(engine_failed{self_, false, "planted engine failure"});
}

void engine_model::admit(const engine_admit& order) {
  demand(member_ && quiescent_, "I6", "requests admitted on a rank that cannot serve them");
  demand(stalled_ || !moves_left(), "I9", "requests are admitted while old ones still move");
  if (rollout_ != order.rollout) {
    requests_.clear();
    live_ = finished_ = 0;
    generated_ = step_ = 0;
    rollout_ = order.rollout;
    adafloor::begin(log_, rollout_);
  }
  for (const auto& spec : order.requests) {
    demand(!find(spec.id), "I6", "a request is admitted where it is");
    requests_.push_back({spec, true_tokens(spec), {}, false, false});
  }
  for (const auto& run : order.resumed) {
    auto& r = *find(run.request);
    demand(run.first == 0 && run.tokens.size() <= r.tokens.size()
               && std::equal(run.tokens.begin(), run.tokens.end(), r.tokens.begin()),
           "I6", "a request is rebuilt from wrong tokens");
    r.generated = run.tokens;
  }
  live_ += static_cast<std::uint32_t>(order.requests.size());
}

void engine_model::start(const engine_start& order) {
  demand(member_ && quiescent_ && rollout_ == order.rollout, "I1",
         "started outside of the group, or twice");
  quiescent_ = false;
  say(rank_progress{rollout_, epoch_, 0, live_, 0, 0});
  begin_step();
}

/// The abort of the collective: no step of the running epoch comes to an end any more.
void engine_model::stall() {
  ++attempt_;
  if (!quiescent_) become(rank_state::transition);
  stalled_ = quiescent_ = true;
  for (auto& work : std::exchange(deferred_, {}))
    work();
}

void engine_model::begin_step() {
  if (stalled_) {
    quiescent_ = true;
    return;
  }
  for (auto& work : std::exchange(deferred_, {}))
    work();
  become(live_ > 0 ? rank_state::busy : rank_state::dummy);
  auto live = live_;
  if (world_.bug == mutant::held_requests_do_not_count)
    for (const auto& r : requests_)
      live -= r.held && !r.done ? 1 : 0;
  const step_header own{self_, epoch_, epoch_step_, ready_epoch_, live, expert_map_hash(owners_)};
  world_.exchange(own, members_, [this, attempt = attempt_](const step_headers& all) {
    if (attempt == attempt_) read_headers(all);
  });
}

/// Every member reads the same headers, so every member decides the same.
void engine_model::read_headers(const step_headers& all) {
  if (broken_) return;
  bool any_live = false, all_ready = true;
  for (const auto& h : all) {
    const bool same_step = h.epoch == epoch_ && h.step == epoch_step_;
    demand(same_step && h.map_hash == expert_map_hash(owners_), "I2",
           "members of a step disagree on epoch, step or expert map");
    any_live = any_live || h.live > 0;
    all_ready = all_ready && h.ready_epoch == all.front().ready_epoch;
  }
  all_ready = all_ready && all.front().ready_epoch > epoch_;
  if (world_.bug == mutant::member_switches_alone) all_ready = ready_epoch_ > epoch_;
  if (!any_live) return stop_quietly();
  for (std::uint32_t e = 0; e < owners_.size(); ++e)
    demand(world_.is_lost(self_) || world_.expert_resident(owners_[e], e), "I2",
           "expert " + std::to_string(e) + " is not resident on its owner, rank "
               + std::to_string(owners_[e].value));
  world_.after(self_.value, world_.rng.delay(step_us / 2, step_us),
               [this, all_ready, attempt = attempt_] {
                 if (attempt == attempt_) finish_step(all_ready);
               });
}

void engine_model::stop_quietly() {
  quiescent_ = true;
  log_tokens(true);
  become(rank_state::idle);
  for (auto& work : std::exchange(deferred_, {}))
    work();
  if (ready_epoch_ > epoch_) switch_epoch(microseconds{0});
}

void engine_model::log_tokens(bool all) {
  while (auto batch = next_batch(log_, all, time_point{world_.clock(self_.value)}))
    say(std::move(*batch));
}

void engine_model::finish_step(bool all_ready) {
  if (broken_) return;
  if (!member_) return; // only a planted bug makes a member leave in the middle of a step
  ++step_;
  ++epoch_step_;
  const auto before = live_;
  for (auto& r : requests_) {
    if (r.done || r.held) continue;
    if (r.generated.size() < r.tokens.size()) { // Else it was complete when it was rebuilt.
      world_.note_token(self_, rollout_, r.spec.id, r.generated.size());
      add(log_, r.spec.id, static_cast<std::uint32_t>(r.generated.size()),
          r.tokens[r.generated.size()], -0.5f, time_point{world_.clock(self_.value)});
      r.generated.push_back(r.tokens[r.generated.size()]);
      ++generated_;
    }
    if (r.generated.size() < r.tokens.size()) continue;
    r.done = true;
    --live_;
    ++finished_;
    for (const auto& [key, move] : std::map(leaving_))
      if (key.request == r.spec.id) conclude_move(key, move_outcome::finished);
    response done{rollout_, r.spec.id, r.generated, {}, finish_reason::eos, step_};
    done.logprobs.assign(r.generated.size(), -0.5f);
    say(std::move(done));
  }
  log_tokens(false);
  if (live_ != before) report_progress();
  if (all_ready) {
    become(rank_state::transition);
    switch_epoch(world_.rng.delay(10, 500));
  }
  if (member_) return begin_step();
  for (auto& work : std::exchange(deferred_, {}))
    work();
  log_tokens(true);
  become(rank_state::idle);
}

void engine_model::report_progress() {
  say(rank_progress{rollout_, epoch_, step_, live_, finished_, generated_});
}

void engine_model::switch_epoch(microseconds pause) {
  demand(prepared_ && prepared_->done && prepared_->plan.epoch == ready_epoch_, "I1",
         "switch to an epoch that is not prepared");
  epoch_ = ready_epoch_;
  epoch_step_ = 0;
  members_ = prepared_->plan.members;
  owners_ = prepared_->plan.owners;
  prepared_.reset();
  member_ = std::binary_search(members_.begin(), members_.end(), self_);
  demand(member_ || live_ == 0, "I6", "a leaver owns live requests");
  if (!member_) quiescent_ = true;
  world_.note_switch(self_, epoch_, members_, owners_);
  say(switched{epoch_, step_, pause});
}

void engine_model::prepare(const engine_prepare& plan) {
  if (plan.recover) {
    stall();
    prepared_.reset();
    ready_epoch_ = epoch_;
  }
  demand(!prepared_, "I9", "a second transition is prepared while one is reserved");
  demand(plan.epoch > epoch_, "I7", "an old epoch is prepared");
  prepared_ = preparation{plan, {}, false};
  if (world_.bug == mutant::experts_dropped_on_prepare)
    for (std::uint32_t e = 0; e < owners_.size(); ++e)
      if (plan.owners[e] != self_) resident_[e] = home_[e] = false;
  const bool slow = world_.rng.chance(world_.faults().slow_prepare);
  if (slow) world_.note_fault(fault_kind::slow, self_);
  const bool restore = plan.recover || plan.members.size() > members_.size() || !member_;
  const std::int64_t slowest_us = restore ? 300'000 : 2'500'000;
  world_.after(self_.value,
               slow ? world_.rng.delay(100'000, slowest_us) : world_.rng.delay(200, 30'000),
               [this, epoch = plan.epoch] { finish_prepare(epoch); });
}

void engine_model::finish_prepare(epoch_id epoch) {
  if (broken_ || !prepared_ || prepared_->plan.epoch != epoch) return; // aborted meanwhile
  auto& p = *prepared_;
  const bool restore = p.plan.recover || p.plan.members.size() > members_.size() || !member_;
  const auto from_checkpoint = [&](std::uint32_t e) {
    const auto& dead = p.plan.dead;
    const bool lost = std::find(dead.begin(), dead.end(), owners_[e]) != dead.end();
    return p.plan.recover && (lost || !member_);
  };
  if (!restore && world_.rng.chance(world_.faults().engine_refusal)) {
    prepared_.reset();
    return say(engine_refused{epoch, refusal::no_memory, "planted refusal"});
  }
  if (restore && world_.chaos.chance(world_.faults().restore_refusal)
      && world_.may_refuse_restoring()) {
    prepared_.reset();
    return say(engine_refused{epoch, refusal::no_memory, "planted refusal to restore"});
  }
  engine_prepared done{epoch, expert_map_hash(p.plan.owners), 0, 0};
  for (std::uint32_t e = 0; e < p.plan.owners.size(); ++e) {
    if (p.plan.owners[e] != self_) continue;
    ++done.experts_resident;
    if (resident_[e] || world_.bug == mutant::map_given_from_plan_not_slots) continue;
    demand(from_checkpoint(e) || (member_ && world_.expert_resident(owners_[e], e)), "I2",
           "expert " + std::to_string(e) + " is pulled from a rank that does not hold it");
    resident_[e] = true;
    p.pulled.push_back(e);
    done.bytes_pulled += 1000;
  }
  if (!restore && done.experts_resident > 0 && world_.rng.chance(world_.faults().wrong_coverage))
    --done.experts_resident;
  p.done = true;
  say(done);
}

void engine_model::abort(epoch_id epoch) {
  if (!prepared_ || prepared_->plan.epoch != epoch) return;
  demand(ready_epoch_ < epoch, "I1", "a committed transition is taken back");
  for (auto e : prepared_->pulled)
    resident_[e] = false;
  prepared_.reset();
}

void engine_model::commit(const engine_commit& order) {
  const auto epoch = order.epoch;
  demand(prepared_ && prepared_->done && prepared_->plan.epoch == epoch, "I1",
         "commit of an epoch that is not prepared");
  ready_epoch_ = epoch;
  const bool leaves =
      !std::binary_search(prepared_->plan.members.begin(), prepared_->plan.members.end(), self_);
  const bool early = world_.bug == mutant::leaver_leaves_on_commit && leaves;
  if (!quiescent_ && member_ && !early) return;
  const bool recovers = stalled_ && prepared_->plan.recover;
  if (recovers && order.decode
      && std::binary_search(prepared_->plan.members.begin(), prepared_->plan.members.end(), self_))
    become(live_ > 0 ? rank_state::busy : rank_state::dummy);
  switch_epoch(microseconds{0});
  if (!recovers) return;
  stalled_ = false;
  if (!order.decode || !member_) {
    log_tokens(true);
    return become(rank_state::idle);
  }
  quiescent_ = false;
  begin_step();
}

void engine_model::settle() {
  for (std::uint32_t e = 0; e < owners_.size(); ++e)
    resident_[e] = home_[e] || (member_ && owners_[e] == self_);
}

void engine_model::load(const update_weights& order) {
  const bool refuses = world_.rng.chance(world_.faults().weights_refusal);
  world_.after(self_.value, world_.rng.delay(1'000, 80'000), [this, order, refuses] {
    if (refuses) return say(weights_refused{order.version, "planted refusal"});
    weights_updated done{order.version, 10, mix(order.version.value, 99), 0, 0};
    for (std::uint32_t e = 0; e < owners_.size(); ++e)
      if (owners_[e] == self_) ++done.expert_tensors, done.expert_digest += e;
    say(done);
  });
}

} // namespace adafloor::sim
