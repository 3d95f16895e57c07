// Bugs that a test plants in a world around the real machines, to see that the checkers notice.
#include "planner/protocol/expert_placement.hpp"
#include "planner/sim/world.hpp"

#include <algorithm>

namespace adafloor::sim {

namespace {
/// By number.
constexpr struct {
  const char *name, *text;
} bugs[] = {
    {"none", "none"},
    {"rank_forgets_aborted_epochs", "a rank forgets which epochs were aborted"},
    {"kept_before_durable", "a response is acknowledged before it is durable"},
    {"leaver_leaves_on_commit", "a leaver leaves on commit, not in band"},
    {"gate_lends_members", "the lease gate lends members"},
    {"gate_forgets_ended_leases", "the lease gate forgets which leases ended"},
    {"commit_without_all_prepared", "a refusal counts as prepared"},
    {"sidecar_returns_with_worker_running", "a sidecar returns the lease while its worker runs"},
    {"epoch_number_used_twice", "the epoch number of an aborted transition is used again"},
    {"restore_without_recall", "the full world is restored without recalling leases"},
    {"response_recorded_twice", "a doubled response is recorded twice"},
    {"experts_dropped_on_prepare", "experts are dropped before the new map is in force"},
    {"map_given_from_plan_not_slots", "an engine reports experts that it did not load"},
    {"member_switches_alone", "a member switches before every header says so"},
    {"batch_kept_before_logged", "a batch of tokens is acknowledged before it is in the log"},
    {"timeline_loses_time", "a time line loses time"},
    {"source_frees_before_commit", "a source frees a request when the last round is ready"},
    {"source_resumes_when_unsure", "a source resumes a request whose fate it does not know"},
    {"destination_forgets_commits", "a destination forgets which requests it took over"},
    {"move_number_used_twice", "the number of a move is used again"},
    {"leaver_takes_requests", "a rank that is about to leave takes a request"},
    {"held_requests_do_not_count", "requests between two ranks do not count as live"},
    {"unclean_return_called_clean", "a sidecar calls a return clean without proof"},
    {"quarantine_is_ignored", "the broker does not tell which ranks are not back"},
    {"units_lost_with_their_lease", "units that a lease did not finish are forgotten"},
    {"unit_given_out_twice", "a unit is given out while somebody has it"},
    {"rebuilt_with_a_hole", "a request is rebuilt from tokens with a hole"},
    {"survivor_hides_what_it_took", "a survivor does not tell what it took over from the dead"},
    {"dead_source_is_waited_for",
     "a survivor waits for the rest of a request whose source is dead"},
    {"dead_requests_are_forgotten", "the requests of the dead are admitted nowhere"},
    {"beginnings_are_dropped", "what an earlier try generated is generated again"},
};
static_assert(std::size(bugs) == static_cast<std::size_t>(enum_max(mutant{})) + 1);
} // namespace

const char* name_of(mutant m) {
  return bugs[static_cast<std::size_t>(m)].name;
}

const char* describe(mutant m) {
  return bugs[static_cast<std::size_t>(m)].text;
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
  } else if (bug == mutant::rebuilt_with_a_hole) {
    for (auto& m : out)
      if (auto* part = std::get_if<admit_requests>(&m.body))
        for (auto& run : part->resumed)
          if (run.tokens.size() > 1) run.tokens.erase(run.tokens.begin());
  } else if (bug == mutant::survivor_hides_what_it_took) {
    for (auto& m : out)
      if (auto* done = std::get_if<prepared>(&m.body)) done->taken.clear();
  } else if (bug == mutant::dead_source_is_waited_for) {
    if (auto* plan = std::get_if<prepare_transition>(&message.body); plan && !plan->dead.empty())
      out.erase(std::remove_if(out.begin(), out.end(),
                               [](const envelope& m) {
                                 return std::get_if<engine_receive_cancel>(&m.body) != nullptr;
                               }),
                out.end());
  } else if (bug == mutant::dead_requests_are_forgotten) {
    for (auto& m : out)
      if (auto* part = std::get_if<admit_requests>(&m.body);
          part && part->part > 0 && planner.recovery) {
        part->requests.clear();
        part->resumed.clear();
      }
  } else if (bug == mutant::beginnings_are_dropped) {
    for (auto& m : out)
      if (auto* part = std::get_if<admit_requests>(&m.body); part && !planner.recovery)
        part->resumed.clear();
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
