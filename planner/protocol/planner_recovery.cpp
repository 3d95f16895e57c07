// A rank died (protocols.md section 7): the others abandon what they were at, form a group without
// it, and take its requests as far as the log has them.
#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/planner_parts.hpp"

#include <algorithm>

namespace adafloor::planner_parts {
namespace {

using rank_part = planner_machine::rank_part;
using request_part = planner_machine::request_part;
using response_state = planner_machine::response_state;

bool holds(const std::vector<rank_id>& ranks, rank_id rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<rank_id> without_lost(const planner_machine& m, const std::vector<rank_id>& ranks) {
  std::vector<rank_id> alive;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(alive),
               [&](rank_id r) { return m.lost.count(r) == 0; });
  return alive;
}

/// Why the world cannot go on without `rank`, or empty.
std::string objection_to_recovery(const planner_machine& m, rank_id rank) {
  if (!m.config.recover) return "emulated ranks have no recovery";
  if (rank == m.config.self) return "it runs the planner";
  if (m.weights) return "weights were being updated";
  if (m.now_in != phase::restoring && without_lost(m, m.members).empty())
    return "no rank of the group is left";
  return {};
}

/// Whatever the dead rank had has come in.
bool owes_nothing(const planner_machine& m, rank_id rank) {
  if (!m.rollout) return true;
  const auto& requests = m.rollout->requests;
  return std::none_of(requests.begin(), requests.end(), [&](const auto& r) {
    return r.second.home == rank && r.second.state == response_state::missing;
  });
}

/// The members of the group to be are those that are left of the running one, or, when the full
/// world is being formed anyway, of that.
prepare_transition plan_without_lost(planner_machine& m) {
  prepare_transition plan;
  const bool whole = m.now_in == phase::restoring;
  plan.kind = transition_kind::recover;
  plan.from_epoch = m.who.stamp.epoch;
  plan.epoch = m.highest_epoch = epoch_id{m.highest_epoch.value + 1};
  plan.members = without_lost(m, whole ? m.world : m.members);
  auto& leavers = m.recovery->leavers;
  for (const auto& [rank, p] : m.transition.participants)
    if (p.settled)
      leavers.erase(rank); // It has left, and may be lent already.
    else
      leavers.insert(rank);
  for (auto rank : leavers)
    if (!m.lost.count(rank) && !holds(plan.members, rank)) plan.leavers.push_back(rank);
  plan.owners = contract_owners(whole ? restored_owners(m) : m.owners, plan.members);
  plan.map_hash = expert_map_hash(plan.owners);
  plan.dead.assign(m.lost.begin(), m.lost.end());
  plan.decode = m.now_in == phase::starting || m.now_in == phase::running;
  if (!m.rollout) return plan;
  for (const auto& [id, move] : m.rollout->moves)
    if (m.lost.count(move.to) && m.rollout->requests.at(id).state != response_state::missing)
      plan.ended.push_back(id);
  return plan;
}

void open_transition(planner_machine& m, time_point now, effects& out) {
  auto plan = plan_without_lost(m);
  auto participants = plan.members;
  participants.insert(participants.end(), plan.leavers.begin(), plan.leavers.end());
  std::sort(participants.begin(), participants.end());
  m.transition.now_in = transition_coordinator::phase::none;
  begin(m.transition, m.who, std::move(plan), participants,
        static_cast<std::uint32_t>(m.members.size()), now, out);
}

void begin_recovery(planner_machine& m, const member_lost& news, time_point now, effects& out) {
  if (!m.recovery) m.recovery.emplace();
  auto& recovery = *m.recovery;
  recovery.adopted = false;
  recovery.record.lost.push_back(news.rank);
  recovery.record.began_at = now.time_since_epoch();
  recovery.record.silence = std::max(recovery.record.silence, news.silence);
  recovery.record.experts += experts_of(m.owners, news.rank);
  m.suspected.reset();
  if (m.rollout) {
    m.rollout->retry_at.reset();
    m.rollout->attempts = 0;
    m.rollout->decision.chosen.reset();
  }
  open_transition(m, now, out);
}

/// A dead rank at one end, and the other has not said yet what became of the request.
bool moves_undecided(const planner_machine& m) {
  if (!m.rollout) return false;
  const auto& moves = m.rollout->moves;
  return std::any_of(moves.begin(), moves.end(), [&](const auto& move) {
    return m.lost.count(move.second.to) && !m.lost.count(move.second.from);
  });
}

/// What the log has of the response without a gap.
token_run known_of(const planner_machine& m, request_id id) {
  token_run all{id, 0, {}, {}};
  for (const auto& [first, run] : m.rollout->requests.at(id).known) {
    if (first > all.tokens.size()) break;
    const auto known = static_cast<std::ptrdiff_t>(all.tokens.size() - first);
    if (known >= static_cast<std::ptrdiff_t>(run.tokens.size())) continue;
    all.tokens.insert(all.tokens.end(), run.tokens.begin() + known, run.tokens.end());
    all.logprobs.insert(all.logprobs.end(), run.logprobs.begin() + known, run.logprobs.end());
  }
  return all;
}

/// Requests that each rank takes over, in parts that fit a frame.
class adoption {
public:
  explicit adoption(planner_machine& m) : m_(m) {}

  void add(request_id id, request_part& request, rank_id to) {
    auto known = known_of(m_, id);
    auto& r = *m_.rollout;
    request.waits = false;
    request.started_at = r.last_step - std::min<std::uint64_t>(r.last_step, known.tokens.size());
    auto& record = m_.recovery->record;
    ++record.requests;
    record.tokens += known.tokens.size();
    record.prompt_tokens += request.spec.prompt.size();
    auto& open = open_[to];
    const auto tokens = known.tokens.size() + request.spec.prompt.size();
    const bool full = open.body.requests.size() >= m_.config.part_requests_max
                      || open.tokens + tokens > m_.config.part_tokens_max;
    if (full && !open.body.requests.empty()) close(to);
    open.tokens += tokens;
    open.body.requests.push_back(request.spec);
    if (!known.tokens.empty()) open.body.resumed.push_back(std::move(known));
  }

  void send(time_point now, effects& out) {
    for (auto& [rank, open] : open_) {
      if (!open.body.requests.empty()) close(rank);
      send_parts(m_, rank, m_.rollout->ranks.at(rank), now, out);
    }
  }

private:
  struct open_part {
    admit_requests body;
    std::size_t tokens = 0;
  };
  void close(rank_id to) {
    auto& parts = m_.rollout->ranks.at(to).parts;
    auto& body = open_[to].body;
    body.rollout = m_.rollout->id;
    body.part = static_cast<std::uint32_t>(parts.size());
    body.parts = body.part + 1;
    parts.emplace_back();
    parts.back().body = std::move(body);
    open_[to] = {};
  }

  planner_machine& m_;
  std::map<rank_id, open_part> open_;
};

rank_id least_loaded(const planner_machine& m) {
  const auto& ranks = m.rollout->ranks;
  const auto& members = m.transition.plan.members;
  const auto load = [&](rank_id r) { return ranks.at(r).requests - ranks.at(r).received; };
  return *std::min_element(members.begin(), members.end(),
                           [&](rank_id a, rank_id b) { return load(a) < load(b); });
}

/// Whose requests those of the dead that have a response count as: the planner's rank, unless it is
/// out of the rollout itself.
rank_id heir(const planner_machine& m, const std::vector<rank_id>& members) {
  return m.rollout->ranks.count(m.config.self) ? m.config.self : members.front();
}

/// Gives every request of the dead a new home: one without a response is rebuilt on whoever has the
/// fewest.
void adopt(planner_machine& m, time_point now, effects& out) {
  m.recovery->adopted = true;
  if (!m.rollout) return;
  auto& r = *m.rollout;
  for (auto move = r.moves.begin(); move != r.moves.end();)
    move = m.lost.count(move->second.from) ? r.moves.erase(move) : std::next(move);
  adoption adopted(m);
  for (auto& [id, request] : r.requests) {
    if (!m.lost.count(request.home)) continue;
    const bool missing = request.state == response_state::missing;
    const auto to = missing ? least_loaded(m) : heir(m, m.transition.plan.members);
    rehome(m, request, to);
    if (missing) adopted.add(id, request, to);
  }
  for (const auto& rank : m.lost) {
    r.ranks.erase(rank);
    r.freed.erase(rank);
  }
  adopted.send(now, out);
}

bool parts_open(const planner_machine& m) {
  if (!m.rollout) return false;
  const auto& ranks = m.rollout->ranks;
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const auto& r) { return !all_admitted(r.second); });
}

/// What the phase was waiting for when the rank died.
void resume_phase(planner_machine& m, time_point now, effects& out) {
  m.phase_began_at = now;
  switch (m.now_in) {
  case phase::admitting:
    return start_if_admitted(m, now, out);
  case phase::starting:
    return run_if_started(m, now, out);
  case phase::running:
    return advance(m, now, out);
  case phase::restoring:
    if (m.members == m.world) return close_books(m, now, out);
    return begin_restoration(m, now, out);
  case phase::reporting:
    return end_if_reported(m, now, out);
  case phase::idle:
  case phase::recalling:
  case phase::failed:
    return;
  }
}

/// A rank outside of the group that owes nothing: nobody else needs to hear of it.
void drop_outsider(planner_machine& m, rank_id rank, time_point now, effects& out) {
  if (!m.rollout) return;
  auto& r = *m.rollout;
  for (auto& [id, request] : r.requests)
    if (request.home == rank) rehome(m, request, heir(m, m.members));
  r.ranks.erase(rank);
  r.freed.erase(rank);
  advance(m, now, out);
  end_if_reported(m, now, out); // Perhaps nobody else was waited for.
}

} // namespace

void lose_rank(planner_machine& m, const member_lost& news, time_point now, effects& out) {
  const auto rank = news.rank;
  if (!m.lost.insert(rank).second) return;
  hear_stopped(m, rank, out);
  if (m.now_in == phase::failed || m.stopping) return;
  const bool away = m.quarantine.count(rank) && !(m.rollout && m.rollout->ranks.count(rank));
  if (away) return;
  const auto text = "rank " + std::to_string(rank.value) + " is lost: " + news.reason;
  if (const auto why = objection_to_recovery(m, rank); !why.empty())
    return fail_world(m, text + " (" + why + ")", true, out);
  const bool concerned = holds(m.members, rank) || m.transition.participants.count(rank) != 0
                         || !owes_nothing(m, rank);
  const bool news_to_trainer = m.quarantine.insert(rank).second;
  m.world.erase(std::remove(m.world.begin(), m.world.end(), rank), m.world.end());
  if (news_to_trainer)
    post(m.who, local(m, role_kind::trainer),
         rank_lost{rank, static_cast<std::uint32_t>(m.world.size()), news.silence, text}, out);
  if (concerned)
    begin_recovery(m, news, now, out);
  else
    drop_outsider(m, rank, now, out);
}

void hear_taken(planner_machine& m, rank_id by, const prepared& done) {
  if (!m.recovery || !m.rollout || done.epoch != m.transition.plan.epoch) return;
  auto& r = *m.rollout;
  for (auto id : done.taken) {
    const auto move = r.moves.find(id);
    if (move == r.moves.end() || move->second.to != by || !m.lost.count(move->second.from))
      continue;
    if (auto& request = r.requests.at(id); request.home != by) rehome(m, request, by);
    r.moves.erase(move);
  }
}

void go_on_with_recovery(planner_machine& m, time_point now, effects& out) {
  if (!m.recovery || !all_prepared(m.transition) || moves_undecided(m)) return;
  if (!m.recovery->adopted) adopt(m, now, out);
  if (parts_open(m)) return;
  commit(m.transition, m.who, now, out);
  take_over_group(m);
}

void retry_recovery(planner_machine& m, time_point now, effects& out) {
  const auto& record = m.recovery->record;
  if (++m.recovery->attempts >= m.config.attempts_max)
    return fail_world(m,
                      name_ranks(record.lost) + " is lost, and the others cannot go on ("
                          + m.transition.reason + ")",
                      true, out);
  open_transition(m, now, out);
}

void conclude_recovery(planner_machine& m, time_point now, effects& out) {
  auto record = m.recovery->record;
  const auto& done = m.transition.record;
  m.recovery.reset();
  m.recovered_epoch = record.epoch = done.epoch;
  record.members = done.to;
  record.switched_at = m.transition.phase_began_at.time_since_epoch();
  post(m.who, local(m, role_kind::trainer), std::move(record), out);
  post(m.who, local(m, role_kind::trainer), done, out);
  if (m.rollout) m.rollout->transitions.push_back(done);
  resume_phase(m, now, out);
  for (const auto& order : std::exchange(m.deferred, {}))
    hear_local(m, order, now, out);
}

void suspect(planner_machine& m, const envelope& in, std::string text, time_point now) {
  const bool settled = m.recovery || in.stamp.epoch < m.recovered_epoch;
  if (settled || m.suspected || m.now_in == phase::failed) return;
  m.suspected = planner_machine::suspicion{std::move(text), now};
}

void tick_recovery(planner_machine& m, time_point now, effects& out) {
  if (!m.suspected || now - m.suspected->since <= m.config.peer_lost_max) return;
  fail_world(m, m.suspected->text, true, out);
}

} // namespace adafloor::planner_parts
