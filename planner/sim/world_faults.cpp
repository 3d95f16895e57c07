// What goes wrong in a simulated world beyond its mail, and in which step of the protocols it does.
#include "planner/sim/world.hpp"

namespace adafloor::sim {

void keep_only(fault_profile& f, const std::set<fault_kind>& kept) {
  const auto off = [&](fault_kind k) { return kept.count(k) == 0; };
  if (off(fault_kind::drop)) f.loss = 0;
  if (off(fault_kind::duplicate)) f.doubling = 0;
  if (off(fault_kind::delay)) f.late = 0;
  if (off(fault_kind::reorder)) f.in_order = true;
  if (off(fault_kind::corrupt)) f.corruption = 0;
  if (off(fault_kind::refuse))
    f.engine_refusal = f.wrong_coverage = f.weights_refusal = f.pull_failure = f.no_room =
        f.lease_refusal = f.restore_refusal = 0;
  if (off(fault_kind::slow)) f.slow_prepare = f.slow = 0, f.worker_start_us = 0;
  if (off(fault_kind::freeze)) f.pause = f.worker_stubborn = 0;
  if (off(fault_kind::crash)) f.worker_crash = f.worker_unclean = 0;
  if (off(fault_kind::partition)) f.cut = 0;
}

transition_kind world::kind_of(const any_message& about) const {
  const auto epoch = std::visit(
      [](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (one_of<M, prepare_transition, prepared, refused, commit_transition, switched,
                             settle_transition, settled>)
          return m.epoch;
        else
          return epoch_id{};
      },
      about);
  const auto known = kinds_.find(epoch);
  return known == kinds_.end() ? transition_kind::contract : known->second;
}

void world::note_strike(fault_kind kind, protocol_step step, const envelope& message,
                        const std::string& how) {
  struck.add(step, kind);
  if (trace) write_trace(how + ": ", message);
}

void world::note_fault(fault_kind kind, rank_id rank) {
  const auto in = steps_at(rank.value);
  for (std::size_t s = 1; s <= fault_coverage::steps; ++s)
    if (in[s]) struck.add(static_cast<protocol_step>(s), kind);
  if (!trace) return;
  auto line = std::string(name_of(kind)) + " at rank " + std::to_string(rank.value) + " during";
  for (std::size_t s = 1; s <= fault_coverage::steps; ++s)
    if (in[s]) line += std::string(" ") + name_of(static_cast<protocol_step>(s));
  write_trace(line);
}

/// Whoever refuses, a machine or a model: refusals are seen where they arrive.
void world::note_refusal(const envelope& message) {
  const auto& body = message.body;
  if (const auto* no = std::get_if<move_rejected>(&body)) {
    const auto& rollout = nodes[message.to.rank.value].rank.rollout;
    if (message.from.role != role_kind::engine || !rollout) return;
    const auto found = rollout->inbound.find(no->key);
    const bool last = found != rollout->inbound.end() && found->second.last;
    struck.add(last ? protocol_step::move_hand_over : protocol_step::move_copy, fault_kind::refuse);
  } else if (std::get_if<refused>(&body) || std::get_if<move_refused>(&body)
             || std::get_if<lease_denied>(&body) || std::get_if<weights_refused>(&body)) {
    struck.add(*step_of(body, kind_of(body)), fault_kind::refuse);
  }
}

/// The one fault that the scenario has, once its moment has come; node `n` has just acted.
void world::strike(std::uint32_t n) {
  if (what.aimed) {
    const auto [kind, step] = *what.aimed;
    if ((n == 0 && kind == fault_kind::crash) || !steps_at(n)[static_cast<std::size_t>(step)])
      return;
    fault_struck_ = true;
    return strike_at(n, kind);
  }
  fault_struck_ = true;
  if (what.engine_failure) {
    note_fault(fault_kind::crash, rank_id{*what.engine_failure});
    nodes[*what.engine_failure].engine.fail();
  }
}

void world::die(const rank_death& death) {
  if (death.frozen == microseconds{0}) return strike_at(death.rank, fault_kind::crash);
  note_fault(fault_kind::freeze, rank_id{death.rank});
  nodes[death.rank].paused_until = now + death.frozen;
}

void world::strike_at(std::uint32_t n, fault_kind kind) {
  note_fault(kind, rank_id{n});
  switch (kind) {
  case fault_kind::crash:
    nodes[n].crashed = true;
    return;
  case fault_kind::freeze:
    nodes[n].paused_until = now + rng.delay(1'000, current_faults.pause_max_us);
    return;
  case fault_kind::slow:
    nodes[n].slow_until = now + chaos.delay(1'000, current_faults.slow_max_us);
    return;
  case fault_kind::disk_full:
    break;
  default:
    throw violation(std::string("no fault that can be aimed at a rank: ") + name_of(kind));
  }
  recorder.disk_full = true;
  if (trainer.now_in >= trainer_model::stage::stopping) return;
  trainer.now_in = trainer_model::stage::stopping; // as the real one: the job ends with the error
  effects out;
  out.push_back({role_at(rank_id{0}, role_kind::trainer),
                 role_at(rank_id{0}, role_kind::planner),
                 {},
                 {},
                 stop{"no space left on device"}});
  route(0, out);
}

/// Once per tick of node `n`.
void world::strike_by_chance(std::uint32_t n) {
  if (rng.chance(current_faults.pause)) strike_at(n, fault_kind::freeze);
  if (chaos.chance(current_faults.slow)) strike_at(n, fault_kind::slow);
  if (n != 0) return;
  if (heals_at_ && now >= *heals_at_) heal();
  if (heals_at_ || !chaos.chance(current_faults.cut)) return;
  std::vector<rank_id> away;
  for (std::uint32_t r = 0; r < nodes.size(); ++r)
    if (chaos.chance(0.5)) away.emplace_back(r);
  heals_at_ = now + chaos.delay(1'000, current_faults.cut_max_us);
  cut_off(away);
}

void world::cut_off(const std::vector<rank_id>& away) {
  for (auto& node : nodes)
    node.side = 0;
  for (const auto rank : away)
    nodes[rank.value].side = 1;
  for (const auto rank : away)
    note_fault(fault_kind::partition, rank);
}

void world::heal() {
  heals_at_.reset();
  for (auto& node : nodes)
    node.side = 0;
  std::vector<std::pair<epoch_id, std::uint64_t>> waiting;
  for (const auto& [key, collective] : collectives_)
    waiting.push_back(key);
  for (const auto& key : waiting)
    finish_if_complete(key);
}

/// Those that waited arrive now, in the order in which they came.
void world::open(const std::string& name) {
  const auto found = doors.find(name);
  if (found == doors.end()) return;
  found->second.closed = false;
  for (auto& message : std::exchange(found->second.waiting, {}))
    after(message.to.rank.value, microseconds{0},
          [this, message = std::move(message)] { deliver(message); });
}

namespace {

using planner_phase = planner_machine::phase;
using coordinator_phase = transition_coordinator::phase;

void add_moves(const rank_machine::rollout_part& rollout,
               const std::function<void(protocol_step)>& add) {
  for (const auto& [key, move] : rollout.outbound) {
    using phase = outbound_move::phase;
    if (move.now_in == phase::asking || move.now_in == phase::ending)
      add(protocol_step::move_order);
    if (move.now_in == phase::offering) add(protocol_step::move_offer);
    if (move.now_in == phase::copying) add(protocol_step::move_copy);
    if (move.now_in == phase::handing_over) add(protocol_step::move_hand_over);
    if (move.now_in == phase::cancelling) add(protocol_step::move_cancel);
  }
  for (const auto& [key, move] : rollout.inbound) {
    using phase = inbound_move::phase;
    if (move.now_in == phase::reserving) add(protocol_step::move_offer);
    if (move.now_in == phase::open || (move.now_in == phase::taking && !move.last))
      add(protocol_step::move_copy);
    if (move.now_in == phase::taking && move.last) add(protocol_step::move_hand_over);
    if (move.now_in == phase::cancelling) add(protocol_step::move_cancel);
  }
}

} // namespace

step_set world::steps_at(std::uint32_t n) const {
  step_set in;
  const auto add = [&](protocol_step s) { in.set(static_cast<std::size_t>(s)); };
  const auto& node = nodes[n];
  add(protocol_step::membership);
  if (planner.now_in == planner_phase::admitting || planner.now_in == planner_phase::starting)
    add(protocol_step::admission);
  if (!node.engine.quiescent()) add(protocol_step::decode);
  if (node.rank.rollout) add_moves(*node.rank.rollout, add);
  const auto& change = planner.transition;
  if (change.participants.count(rank_id{n}) != 0) {
    const auto kind = change.plan.kind;
    if (change.now_in == coordinator_phase::preparing) add(*step_of(prepared{}, kind));
    if (change.now_in == coordinator_phase::committed) add(*step_of(switched{}, kind));
    if (change.now_in == coordinator_phase::settling) add(*step_of(settled{}, kind));
    if (change.now_in == coordinator_phase::aborting) add(protocol_step::abort);
  }
  if (node.rank.lease && !node.rank.lease->accepted) add(protocol_step::lease_grant);
  if (const auto at = broker.ranks.find(rank_id{n}); at != broker.ranks.end() && at->second.lease) {
    using phase = broker_machine::lease_phase;
    const auto now_in = at->second.lease->phase;
    add(now_in == phase::offered    ? protocol_step::lease_grant
        : now_in == phase::revoking ? protocol_step::lease_return
                                    : protocol_step::lease_work);
  }
  using sidecar_phase = sidecar_machine::phase;
  if (node.sidecar.now_in == sidecar_phase::holding) add(protocol_step::lease_work);
  if (node.sidecar.now_in == sidecar_phase::stopping
      || node.sidecar.now_in == sidecar_phase::killing || node.rank.returned)
    add(protocol_step::lease_return);
  if (planner.now_in == planner_phase::reporting) add(protocol_step::report);
  if (node.rank.loading || (n == 0 && trainer.now_in == trainer_model::stage::weights))
    add(protocol_step::weights);
  if (trainer.now_in == trainer_model::stage::stopping) add(protocol_step::stop);
  return in;
}

} // namespace adafloor::sim
