#include "planner/sim/checkers.hpp"

namespace adafloor::sim {

static std::string rank_text(std::uint32_t r) {
  return "rank " + std::to_string(r);
}

/// The broker's own accounts: what would leak first (I9).
static void check_books(const broker_machine& b) {
  std::map<std::uint32_t, std::uint32_t> leases;
  std::set<lease_id> running;
  for (const auto& [rank, r] : b.ranks) {
    if (!r.lease) continue;
    ++leases[r.lease->queue];
    demand(running.insert(r.lease->id).second, "I9", "two ranks hold the same lease");
  }
  for (const auto& [number, q] : b.queues)
    demand(q.leases == leases[number], "I9",
           "queue " + std::to_string(number) + " counts leases that do not run");
  for (const auto& [number, unit] : b.units) {
    const auto name = "unit " + std::to_string(number);
    const bool waits = b.queues.at(unit.work.queue).waiting.count(number) != 0;
    demand(waits == (unit.state == broker_machine::unit_state::waiting), "I9",
           name + " is in its queue and given out, or in neither");
    demand(unit.state != broker_machine::unit_state::taken || running.count(unit.lease), "I9",
           name + " is taken by nobody");
  }
}

void check_quarantine(const world& w, const rank_quarantined& away) {
  const auto name = rank_text(away.rank.value);
  const bool unclean =
      w.nodes[away.rank.value].rank.device_unclean
      || w.nodes[away.rank.value].sidecar.now_in == sidecar_machine::phase::unclean;
  demand(w.what.unkillable == away.rank.value || unclean, "I10",
         name + " is kept out without cause");
  demand(away.text.find(name) != std::string::npos
             && away.text.find("lease " + std::to_string(away.lease.epoch.value) + "."
                               + std::to_string(away.lease.counter))
                    != std::string::npos,
         "I10", "the text does not name rank and lease: " + away.text);
}

void check_node(const world& w, std::uint32_t n) {
  const auto& node = w.nodes[n];
  const auto& rank = node.rank;
  const auto& engine = node.engine;
  const bool lent = node.sidecar.now_in != sidecar_machine::phase::idle || node.worker.active();
  demand(!lent || (!rank.in_group() && !engine.in_group()), "I4",
         rank_text(n) + " is lent and a member at once");
  demand(node.sidecar.now_in != sidecar_machine::phase::idle || !node.worker.active(), "I9",
         rank_text(n) + "'s lease is over, and its worker runs");
  demand(rank.who.stamp.epoch <= engine.epoch(), "I7",
         rank_text(n) + " claims an epoch that its engine does not run");
  demand(rank.rollout ? rank.rollout->outbox.size() <= w.what.requests : true, "I9",
         rank_text(n) + " holds more responses than there are requests");
  demand(!rank.rollout || rank.rollout->tokens_in_flight <= rank.config.token_window, "I9",
         rank_text(n) + " has more batches of tokens on the way than its window");
  if (n != 0) return;
  const auto& p = w.planner;
  const auto coordinator = p.transition.now_in;
  const bool committed = coordinator == transition_coordinator::phase::committed
                         || coordinator == transition_coordinator::phase::settling;
  if (p.rollout) {
    std::size_t counted = 0;
    for (const auto& [rank, part] : p.rollout->ranks)
      counted += part.requests;
    demand(counted == p.rollout->requests.size(), "I6", "a request counts for two ranks or none");
  }
  demand(p.who.stamp.epoch <= p.highest_epoch, "I7", "the planner's epochs fall");
  if (committed && p.transition.plan.kind == transition_kind::restore)
    for (const auto rank : p.transition.plan.members) {
      const auto& member = w.nodes[rank.value];
      demand(
          member.crashed
              || (member.sidecar.now_in == sidecar_machine::phase::idle && !member.worker.active()),
          "I5", rank_text(rank.value) + " is lent while the full world is committed");
    }
  if (w.events % 16 == 0) check_books(w.broker);
  if (committed) {
    const auto known = w.groups.find(p.transition.plan.epoch);
    demand(known == w.groups.end() || known->second.first == p.transition.plan.members, "I1",
           "the planner committed another group than the engines run");
  }
}

void check_delivery(const world& w, const envelope& message) {
  if (const auto* kept = std::get_if<response_kept>(&message.body))
    demand(w.recorder.responses.count({kept->rollout, kept->request}) != 0, "I6",
           "a response is acknowledged before it is durable");
  if (const auto* kept = std::get_if<tokens_kept>(&message.body)) {
    const auto logged = w.recorder.logged.find({kept->rollout, kept->rank});
    demand(logged != w.recorder.logged.end() && kept->sequence <= logged->second, "I6",
           "a batch of tokens is acknowledged before it is in the log");
  }
  if (const auto* kept = std::get_if<work_kept>(&message.body))
    demand(w.recorder.answers.count(kept->unit) != 0, "I6",
           "a unit is acknowledged before it is durable");
  if (const auto* commit = std::get_if<commit_transition>(&message.body)) {
    demand(commit->epoch <= w.planner.highest_epoch, "I1", "a commit that nobody decided");
  }
}

static void check_report(const world& w, const rollout_done& done, rank_id rank,
                         const rollout_report& report) {
  const auto name = rank_text(rank.value);
  demand(!report.intervals.empty(), "I8", name + " reports no time");
  demand(report.intervals.front().begin == done.began_at
             && report.intervals.back().end == done.ended_at,
         "I8", name + "'s time line does not cover the rollout");
  for (std::size_t i = 0; i < report.intervals.size(); ++i) {
    const auto& x = report.intervals[i];
    demand(x.begin < x.end, "I8", name + " has an empty or negative interval");
    demand(i == 0 || report.intervals[i - 1].end == x.begin, "I8", name + " loses or doubles time");
  }
  (void)w;
}

/// Nothing may be left over between rollouts (I9).
static void check_quiescence(const world& w) {
  demand(w.planner.transition.now_in == transition_coordinator::phase::none, "I9",
         "a transition is left in progress");
  demand(w.planner.members == w.planner.world
             && w.planner.world.size() + w.trainer.quarantined.size() + w.trainer.lost.size()
                    == w.what.world_size,
         "I9", "the full world is not back");
  for (std::uint32_t r = 0; r < w.nodes.size(); ++r) {
    const auto& n = w.nodes[r];
    if (w.is_dead(rank_id{r})) continue;
    const bool away = w.planner.quarantine.count(rank_id{r}) != 0;
    demand(!n.rank.transition && (away || !n.rank.lease), "I9",
           rank_text(r) + " still has a transition or a lease");
    demand(n.rank.rollout && n.rank.rollout->outbox.empty() && n.rank.rollout->tokens.empty(), "I9",
           rank_text(r) + " still has responses or tokens to be kept");
    demand(!n.engine.reserved() && n.engine.live() == 0 && n.engine.quiescent(), "I9",
           rank_text(r) + "'s engine holds reservations or requests");
    demand(!n.engine.moves_left(), "I9", rank_text(r) + "'s engine is not done with a move");
    for (const auto& [key, move] : n.rank.rollout->outbound)
      demand(move.now_in == outbound_move::phase::ended, "I9",
             rank_text(r) + " still gives a request away");
    for (const auto& [key, move] : n.rank.rollout->inbound)
      demand(move.over(), "I9", rank_text(r) + " still takes a request");
    if (away) continue;
    if (n.engine.failed()) continue; // news of it are on their way
    demand(n.engine.in_group() && n.engine.epoch() == w.planner.who.stamp.epoch, "I9",
           rank_text(r) + " is not in the full world");
    demand(n.engine.resident_count() == n.engine.home_or_owned(), "I9",
           rank_text(r) + " keeps experts that it does not serve");
  }
  for (const auto& [rank, r] : w.broker.ranks)
    demand(!r.lease || w.planner.quarantine.count(rank) != 0, "I9",
           rank_text(rank.value) + " has a lease at the broker");
  check_books(w.broker);
  for (const auto& [number, unit] : w.broker.units)
    demand(unit.state != broker_machine::unit_state::taken, "I9",
           "unit " + std::to_string(number) + " is taken by nobody");
}

void check_rollout_done(const world& w, const rollout_done& done) {
  const auto& order = w.trainer.order;
  demand(done.rollout == order.rollout, "I6", "another rollout is done");
  for (const auto& request : order.requests) {
    const auto found = w.recorder.responses.find({done.rollout, request.id});
    demand(found != w.recorder.responses.end(), "I6",
           "request " + std::to_string(request.id.value) + " has no response");
    demand(found->second == true_tokens(request), "I6",
           "request " + std::to_string(request.id.value) + " has wrong tokens");
    std::vector<token_id> logged;
    if (const auto log = w.recorder.tokens.find({done.rollout, request.id});
        log != w.recorder.tokens.end())
      for (const auto& [index, token] : log->second)
        if (index == logged.size()) logged.push_back(token);
    // A response whose rank died may be durable before the log has all of its tokens.
    const bool prefix = logged.size() <= found->second.size()
                        && std::equal(logged.begin(), logged.end(), found->second.begin());
    demand(w.trainer.lost.empty() ? logged == found->second : prefix, "I6",
           "the token log lacks tokens of request " + std::to_string(request.id.value));
  }
  std::size_t reports = w.trainer.lost.size() - w.trainer.lost_before;
  for (const auto& [rank, report] : w.trainer.reports)
    reports += w.planner.lost.count(rank) == 0;
  for (auto i = w.trainer.quarantined_before; i < w.trainer.quarantined.size(); ++i)
    reports += w.planner.lost.count(w.trainer.quarantined[i].rank); // Nobody named it as lost.
  demand(reports == w.trainer.group_size, "I8", "a rank's time line is missing");
  for (const auto& [rank, report] : w.trainer.reports)
    check_report(w, done, rank, report);
  const auto whole = static_cast<std::uint32_t>(w.planner.world.size());
  auto group = w.trainer.group_size;
  for (const auto& t : done.transitions) {
    // A recovery also takes the place of a transition that was committed and not settled.
    const bool recovers = t.kind == transition_kind::recover;
    demand(recovers || t.from == group, "I1",
           "a transition starts from a group that was not there");
    const bool restores = t.kind == transition_kind::restore;
    demand(recovers || (restores ? t.to == whole || !w.trainer.lost.empty() : t.to < t.from), "I1",
           "a transition goes the wrong way");
    group = t.to;
  }
  demand(group == whole, "I5", "the rollout ended without the full world");
  check_quiescence(w);
}

void check_end(const world& w) {
  const auto& t = w.trainer;
  demand(w.recorder.repeated == 0, "I6", "something was recorded twice");
  for (const auto& [unit, tokens] : w.recorder.answers)
    demand((tokens.empty() && w.broker.units.at(unit).deaths == w.broker.config.unit_attempts_max)
               || tokens == true_answer({unit, std::vector<token_id>((unit - 1) % 5 + 1, 7), 4}),
           "I6", "a unit has a wrong answer");
  const auto& failure = w.planner.failure;
  bool may_fail = w.what.engine_failure || w.recorder.disk_full || w.what.may_fail;
  for (const char* why : {"it runs the planner", "weights were being updated",
                          "no rank of the group is left"}) // There is no way, and it says so.
    may_fail |= !w.planner.lost.empty() && failure.find(why) != std::string::npos;
  demand(may_fail || t.failed.empty(), "I10",
         "a rollout failed without cause: " + (t.failed.empty() ? "" : t.failed.front().text));
  const bool broken = w.planner.now_in == planner_machine::phase::failed;
  demand(((broken || w.recorder.disk_full) && may_fail) || t.done.size() == w.what.rollouts, "I10",
         "not every rollout was run");
  const microseconds patience{3'000'000}; // To wake and to be told.
  const bool early = w.now - w.began_at < w.what.faults_end + patience;
  for (std::uint32_t r = 0; r < w.nodes.size(); ++r) {
    const auto& n = w.nodes[r];
    const bool frozen = n.paused_until != time_point{} && n.paused_until + patience > w.now;
    const bool unheard = early && w.planner.lost.count(rank_id{r}) != 0;
    demand(n.crashed || frozen || unheard || n.rank.stopping, "I10",
           rank_text(r) + " was not stopped");
  }
}

} // namespace adafloor::sim
