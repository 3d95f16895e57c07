#include "planner/protocol/transition.hpp"

#include "planner/protocol/expert_placement.hpp"

#include <algorithm>

namespace adafloor {
namespace {

using coordinator = transition_coordinator;
using phase = coordinator::phase;
using outcome = coordinator::outcome;
using participant = coordinator::participant;

/// What the phase waits for from each participant.
bool participant::*awaited(phase p) {
  switch (p) {
  case phase::aborting:
    return &participant::aborted;
  case phase::committed:
    return &participant::switched;
  case phase::settling:
    return &participant::settled;
  case phase::none:
  case phase::preparing:
    break;
  }
  return &participant::prepared;
}

bool all(const coordinator& t, bool participant::*done) {
  return std::all_of(t.participants.begin(), t.participants.end(),
                     [&](const auto& p) { return p.second.*done; });
}

/// "rank 3, 5" of those that the phase still waits for.
std::string missing(const coordinator& t) {
  std::string text;
  for (const auto& [rank, p] : t.participants)
    if (!(p.*awaited(t.now_in)))
      text += (text.empty() ? "rank " : ", ") + std::to_string(rank.value);
  return text;
}

std::vector<std::string> addresses_of(const coordinator& t) {
  std::vector<std::string> addresses;
  for (auto member : t.plan.members)
    addresses.push_back(t.participants.at(member).address);
  return addresses;
}

void send(const coordinator& t, const identity& who, rank_id rank, effects& out) {
  const auto to = role_at(rank, role_kind::rank);
  switch (t.now_in) {
  case phase::none:
    break;
  case phase::preparing:
    post(who, to, t.plan, out);
    break;
  case phase::aborting:
    post(who, to, abort_transition{t.plan.epoch, t.reason}, out);
    break;
  case phase::committed:
    post(who, to, commit_transition{t.plan.epoch, addresses_of(t)}, out);
    break;
  case phase::settling:
    post(who, to, settle_transition{t.plan.epoch}, out);
    break;
  }
}

void enter(coordinator& t, const identity& who, phase next, time_point now, effects& out) {
  t.now_in = next;
  t.phase_began_at = now;
  for (auto& [rank, p] : t.participants) {
    p.sent_at = now;
    send(t, who, rank, out);
  }
}

outcome leave(coordinator& t, outcome how) {
  t.now_in = phase::none;
  t.participants.clear();
  return how;
}

void hear(coordinator& t, identity& who, rank_id rank, participant& p, const prepared& m,
          time_point now, effects& out) {
  if (t.now_in != phase::preparing || p.prepared) return;
  const auto due_there = experts_of(t.plan.owners, rank);
  if (m.map_hash != t.plan.map_hash || m.experts_resident != due_there)
    return abandon(t, who,
                   "rank " + std::to_string(rank.value) + " prepared "
                       + std::to_string(m.experts_resident) + " of " + std::to_string(due_there)
                       + " experts, or another map",
                   now, out);
  p.prepared = true;
  p.address = m.address;
  t.record.bytes += m.bytes_pulled;
  if (all(t, &participant::prepared) && t.plan.kind != transition_kind::recover)
    commit(t, who, now, out);
}

void hear(coordinator& t, identity& who, rank_id rank, participant&, const refused& m,
          time_point now, effects& out) {
  if (t.now_in != phase::preparing) return;
  abandon(t, who,
          "rank " + std::to_string(rank.value) + " refused (" + name_of(m.reason) + "): " + m.text,
          now, out);
}

void hear(coordinator& t, identity&, rank_id, participant& p, const transition_aborted&, time_point,
          effects&) {
  if (t.now_in == phase::aborting) p.aborted = true;
}

void hear(coordinator& t, identity& who, rank_id, participant& p, const switched& m, time_point now,
          effects& out) {
  if (t.now_in != phase::committed || p.switched) return;
  p.switched = true;
  t.record.at_step = std::max(t.record.at_step, m.at_step);
  t.record.pause_max = std::max(t.record.pause_max, m.pause);
  if (all(t, &participant::switched)) enter(t, who, phase::settling, now, out);
}

void hear(coordinator& t, identity&, rank_id, participant& p, const settled&, time_point,
          effects&) {
  if (t.now_in == phase::settling) p.settled = true;
}

template <class M>
constexpr bool is_answer = one_of<M, prepared, refused, transition_aborted, switched, settled>;

microseconds longest(const coordinator& t) {
  switch (t.now_in) {
  case phase::aborting:
    return t.config.abort_max;
  case phase::committed:
    return t.config.switch_max;
  case phase::settling:
    return t.config.settle_max;
  case phase::none:
  case phase::preparing:
    break;
  }
  return t.config.prepare_max;
}

const char* verb(phase p) {
  switch (p) {
  case phase::aborting:
    return "confirm the abort of";
  case phase::committed:
    return "switch to committed";
  case phase::settling:
    return "settle";
  case phase::none:
  case phase::preparing:
    break;
  }
  return "prepare";
}

} // namespace

void begin(transition_coordinator& t, identity& who, prepare_transition plan,
           const std::vector<rank_id>& participants, std::uint32_t from_size, time_point now,
           effects& out) {
  assert(t.now_in == phase::none);
  t.plan = std::move(plan);
  t.reason.clear();
  t.participants.clear();
  for (auto rank : participants)
    t.participants[rank];
  t.record = {};
  t.record.epoch = t.plan.epoch;
  t.record.kind = t.plan.kind;
  t.record.from = from_size;
  t.record.to = static_cast<std::uint32_t>(t.plan.members.size());
  t.record.members = t.plan.members;
  t.record.began_at = now.time_since_epoch();
  enter(t, who, phase::preparing, now, out);
}

void abandon(transition_coordinator& t, identity& who, std::string reason, time_point now,
             effects& out) {
  if (t.now_in != phase::preparing) return;
  t.reason = std::move(reason);
  enter(t, who, phase::aborting, now, out);
}

bool all_prepared(const transition_coordinator& t) {
  return t.now_in == phase::preparing && all(t, &participant::prepared);
}

void commit(transition_coordinator& t, identity& who, time_point now, effects& out) {
  assert(all_prepared(t));
  who.stamp.epoch = t.plan.epoch;
  enter(t, who, phase::committed, now, out);
}

transition_coordinator::outcome step(transition_coordinator& t, identity& who, const envelope& in,
                                     time_point now, effects& out) {
  const auto found = t.participants.find(in.from.rank);
  if (found == t.participants.end()) return outcome::pending;
  std::visit(
      [&](const auto& m) {
        if constexpr (is_answer<std::decay_t<decltype(m)>>)
          if (m.epoch == t.plan.epoch) hear(t, who, found->first, found->second, m, now, out);
      },
      in.body);
  if (t.now_in == phase::aborting && all(t, &participant::aborted))
    return leave(t, outcome::aborted);
  if (t.now_in == phase::settling && all(t, &participant::settled)) {
    t.record.settled_at = now.time_since_epoch();
    return leave(t, outcome::settled);
  }
  return outcome::pending;
}

transition_coordinator::outcome tick(transition_coordinator& t, identity& who, time_point now,
                                     effects& out) {
  if (t.now_in == phase::none) return outcome::pending;
  if (now - t.phase_began_at > longest(t)) {
    const auto text = missing(t) + " did not " + verb(t.now_in) + " epoch "
                      + std::to_string(t.plan.epoch.value) + " within "
                      + std::to_string(longest(t).count() / 1000) + " ms";
    if (t.now_in != phase::preparing) {
      t.reason = text;
      return leave(t, outcome::failed);
    }
    abandon(t, who, text, now, out);
  }
  for (auto& [rank, p] : t.participants)
    if (!(p.*awaited(t.now_in)) && due(p.sent_at, now, t.config.resend)) send(t, who, rank, out);
  return outcome::pending;
}

} // namespace adafloor
