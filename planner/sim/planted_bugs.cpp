// Bugs that a test plants in a world around the real machines, to see that the checkers notice.
#include "planner/protocol/expert_placement.hpp"
#include "planner/sim/world.hpp"

namespace adafloor::sim {

const char* name_of(mutant m) {
  switch (m) {
  case mutant::none:
    return "none";
  case mutant::rank_forgets_aborted_epochs:
    return "a rank forgets which epochs were aborted";
  case mutant::kept_before_durable:
    return "a response is acknowledged before it is durable";
  case mutant::leaver_leaves_on_commit:
    return "a leaver leaves on commit, not in band";
  case mutant::gate_lends_members:
    return "the lease gate lends members";
  case mutant::gate_forgets_ended_leases:
    return "the lease gate forgets which leases ended";
  case mutant::commit_without_all_prepared:
    return "a refusal counts as prepared";
  case mutant::sidecar_returns_with_worker_running:
    return "a sidecar returns the lease while its worker runs";
  case mutant::epoch_number_used_twice:
    return "the epoch number of an aborted transition is used again";
  case mutant::restore_without_recall:
    return "the full world is restored without recalling leases";
  case mutant::response_recorded_twice:
    return "a doubled response is recorded twice";
  case mutant::experts_dropped_on_prepare:
    return "experts are dropped before the new map is in force";
  case mutant::map_given_from_plan_not_slots:
    return "an engine reports experts that it did not load";
  case mutant::member_switches_alone:
    return "a member switches before every header says so";
  case mutant::batch_kept_before_logged:
    return "a batch of tokens is acknowledged before it is in the log";
  case mutant::timeline_loses_time:
    return "a time line loses time";
  case mutant::source_frees_before_commit:
    return "a source frees a request when the last round is ready";
  case mutant::source_resumes_when_unsure:
    return "a source resumes a request whose fate it does not know";
  case mutant::destination_forgets_commits:
    return "a destination forgets which requests it took over";
  case mutant::move_number_used_twice:
    return "the number of a move is used again";
  case mutant::leaver_takes_requests:
    return "a rank that is about to leave takes a request";
  case mutant::held_requests_do_not_count:
    return "requests between two ranks do not count as live";
  case mutant::unclean_return_called_clean:
    return "a sidecar calls a return clean without proof";
  case mutant::quarantine_is_ignored:
    return "the broker does not tell which ranks are not back";
  case mutant::units_lost_with_their_lease:
    return "units that a lease did not finish are forgotten";
  case mutant::unit_given_out_twice:
    return "a unit is given out while somebody has it";
  }
  return "?";
}

/// Changes the receiving machine before it sees `message`.
void world::plant_before(const envelope& message) {
  if (bug == mutant::none) return;
  auto& n = nodes[message.to.rank.value];
  if (bug == mutant::rank_forgets_aborted_epochs) {
    n.rank.dead_epoch = n.rank.who.stamp.epoch;
    n.rank.last_refusal.reset();
  } else if (bug == mutant::gate_forgets_ended_leases) {
    n.rank.lease_floor.reset();
    n.rank.returned.reset();
  } else if (bug == mutant::epoch_number_used_twice) {
    if (planner.transition.now_in == transition_coordinator::phase::none)
      planner.highest_epoch = planner.who.stamp.epoch;
  } else if (bug == mutant::response_recorded_twice) {
    if (auto* done = std::get_if<response>(&message.body);
        done && message.to.role == role_kind::planner && planner.rollout)
      if (auto& r = planner.rollout->requests[done->request];
          r.state == planner_machine::response_state::storing)
        r.state = planner_machine::response_state::missing;
  } else if (bug == mutant::sidecar_returns_with_worker_running) {
    if (std::get_if<lease_revoke>(&message.body)) n.sidecar.worker_gone = true;
  } else if (bug == mutant::destination_forgets_commits) {
    if (auto* round = std::get_if<kv_ready>(&message.body); round && n.rank.rollout)
      if (auto found = n.rank.rollout->inbound.find(round->key);
          found != n.rank.rollout->inbound.end() && found->second.over())
        n.rank.rollout->inbound.erase(found);
  } else if (bug == mutant::move_number_used_twice) {
    planner.moves_ordered = 0;
  } else if (bug == mutant::units_lost_with_their_lease) {
    if (std::get_if<lease_returned>(&message.body) && message.to.role == role_kind::broker)
      if (auto& lease = broker.ranks[message.from.rank].lease) lease->taken.clear();
  } else if (bug == mutant::unit_given_out_twice) {
    if (std::get_if<take_work>(&message.body))
      for (auto& [number, unit] : broker.units)
        if (unit.state == broker_machine::unit_state::taken)
          broker.queues.at(unit.work.queue).waiting.insert(number);
  } else if (bug == mutant::leaver_takes_requests) {
    if (std::get_if<move_offer>(&message.body) && n.rank.transition)
      n.rank.transition->plan.leavers.clear();
  }
}

/// Changes what the receiving machine wants sent after it saw `message`.
void world::plant(const envelope& message, effects& out) {
  if (bug == mutant::none) return;
  const auto self = message.to;
  if (bug == mutant::kept_before_durable && self.role == role_kind::planner) {
    if (auto* done = std::get_if<response>(&message.body))
      out.push_back(
          {self, message.from, {}, planner.who.stamp, response_kept{done->rollout, done->request}});
  } else if (bug == mutant::batch_kept_before_logged && self.role == role_kind::planner) {
    if (auto* batch = std::get_if<token_batch>(&message.body))
      out.push_back({self,
                     message.from,
                     {},
                     planner.who.stamp,
                     tokens_kept{batch->rollout, message.from.rank, batch->sequence}});
  } else if (bug == mutant::gate_lends_members && self.role == role_kind::planner) {
    if (auto* done = std::get_if<prepared>(&message.body))
      out.push_back({role_at(rank_id{0}, role_kind::planner),
                     role_at(rank_id{0}, role_kind::broker),
                     {},
                     planner.who.stamp,
                     rank_available{message.from.rank, done->epoch, microseconds{9'000'000}}});
  } else if (bug == mutant::gate_lends_members && self.role == role_kind::rank) {
    if (std::get_if<lease_grant>(&message.body)) {
      out.clear();
      out.push_back({self, role_at(self.rank, role_kind::sidecar), {}, {}, message.body});
    }
  } else if (bug == mutant::commit_without_all_prepared && self.role == role_kind::rank) {
    for (auto& m : out)
      if (auto* no = std::get_if<refused>(&m.body)) {
        const auto& plan = planner.transition.plan;
        m.body = prepared{no->epoch, plan.map_hash, experts_of(plan.owners, self.rank), 0};
      }
  } else if (bug == mutant::restore_without_recall && self.role == role_kind::planner) {
    for (auto& m : out)
      if (auto* recall = std::get_if<recall_leases>(&m.body))
        m = {m.to, self, {}, m.stamp, leases_recalled{recall->rollout, {}}};
  } else if (bug == mutant::unclean_return_called_clean && self.role == role_kind::rank) {
    nodes[self.rank.value].rank.device_unclean = false;
    for (auto& m : out)
      if (auto* back = std::get_if<lease_returned>(&m.body)) back->clean = true;
  } else if (bug == mutant::quarantine_is_ignored && self.role == role_kind::broker) {
    for (auto& m : out)
      if (auto* back = std::get_if<leases_recalled>(&m.body)) back->unreturned.clear();
  } else if (bug == mutant::timeline_loses_time && self.role == role_kind::rank) {
    for (auto& m : out)
      if (auto* report = std::get_if<rollout_report>(&m.body); report && !report->intervals.empty())
        report->intervals.erase(report->intervals.begin());
  } else if (self.role == role_kind::rank && nodes[self.rank.value].rank.rollout) {
    plant_in_moves(message, out);
  }
}

/// A planner that does not care who is about to leave.
void world::order_moves_to_leavers(effects& out) {
  const auto phase = std::exchange(planner.transition.now_in, transition_coordinator::phase::none);
  if (phase != transition_coordinator::phase::none)
    for (std::uint32_t r = 0; r < what.requests; ++r)
      for (const auto leaver : planner.transition.plan.leavers)
        order_move(planner, request_id{r}, leaver, now, out);
  planner.transition.now_in = phase;
}

/// A source that does not wait for the destination's word.
void world::plant_in_moves(const envelope& message, effects& out) {
  const auto engine = role_at(message.to.rank, role_kind::engine);
  for (auto& [key, move] : nodes[message.to.rank.value].rank.rollout->outbound) {
    if (move.now_in != outbound_move::phase::handing_over) continue;
    const bool frees = bug == mutant::source_frees_before_commit;
    const bool resumes = bug == mutant::source_resumes_when_unsure
                         && local(message.to.rank.value) - move.began_at > microseconds{50'000};
    if (!frees && !resumes) continue;
    move.now_in = outbound_move::phase::ending;
    const auto how = frees ? move_outcome::moved : move_outcome::given_up;
    out.push_back({message.to, engine, {}, {}, engine_move_end{key, how}});
  }
}

} // namespace adafloor::sim
