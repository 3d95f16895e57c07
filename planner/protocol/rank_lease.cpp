#include "planner/protocol/rank_parts.hpp"

#include <algorithm>

namespace adafloor::rank_parts {
namespace {

/// Leases up to `id` are over: a late grant of one of them is never obeyed.
void close_up_to(rank_machine& m, lease_id id) {
  if (!m.lease_floor || *m.lease_floor < id) m.lease_floor = id;
}

bool is_over(const rank_machine& m, lease_id id) {
  return m.lease_floor && !(*m.lease_floor < id);
}

/// Why this rank must not be lent under `id`, or empty. Only a rank outside of its epoch's group,
/// whose members all confirmed that epoch, may be.
std::string objection_to(const rank_machine& m, lease_id id) {
  if (is_over(m, id)) return "this lease is over";
  if (m.lease) return "the rank is already lent";
  if (m.in_group()) return "the rank is a member of the group";
  if (id.epoch != m.who.stamp.epoch || !m.settled_epoch)
    return "the rank's epoch is " + std::to_string(m.who.stamp.epoch.value);
  if (m.transition) return "the rank is about to join the group";
  if (m.device_unclean) return "the end of an earlier lease could not be proven";
  if (m.stopping || m.orphaned) return "the job ends";
  return {};
}

} // namespace

void handle(rank_machine& m, const envelope&, const lease_grant& grant, time_point, effects& out) {
  if (m.lease && m.lease->id == grant.lease) {
    if (m.lease->accepted) post(m.who, broker_of(m), lease_accepted{grant.lease}, out);
    return;
  }
  if (m.returned && m.returned->report.lease == grant.lease)
    return post(m.who, broker_of(m), m.returned->report, out);
  if (auto text = objection_to(m, grant.lease); !text.empty()) {
    close_up_to(m, grant.lease);
    return post(m.who, broker_of(m), lease_denied{grant.lease, text}, out);
  }
  m.returned.reset();
  m.lease = rank_machine::lease_part{grant.lease, false};
  post(m.who, sidecar_of(m), grant, out);
}

void handle(rank_machine& m, const envelope&, const lease_renew& renew, time_point, effects& out) {
  if (m.lease && m.lease->id == renew.lease)
    post(m.who, sidecar_of(m), renew, out);
  else
    ++m.drops.stale_lease;
}

void handle(rank_machine& m, const envelope&, const lease_revoke& revoke, time_point,
            effects& out) {
  if (m.lease && m.lease->id == revoke.lease) return post(m.who, sidecar_of(m), revoke, out);
  close_up_to(m, revoke.lease);
  if (m.returned && m.returned->report.lease == revoke.lease)
    return post(m.who, broker_of(m), m.returned->report, out);
  lease_returned nothing;
  nothing.lease = revoke.lease;
  nothing.clean = !m.device_unclean;
  post(m.who, broker_of(m), nothing, out);
}

void handle(rank_machine& m, const envelope&, const lease_closed& closed, time_point, effects&) {
  if (m.returned && m.returned->report.lease == closed.lease) m.returned.reset();
}

void handle(rank_machine& m, const envelope&, const lease_accepted& yes, time_point now,
            effects& out) {
  if (!m.lease || !(m.lease->id == yes.lease)) {
    ++m.drops.stale_lease;
    return;
  }
  m.lease->accepted = true;
  note_lease(m.time, true, now.time_since_epoch());
  post(m.who, broker_of(m), yes, out);
}

void handle(rank_machine& m, const envelope&, const lease_denied& no, time_point, effects& out) {
  if (!m.lease || !(m.lease->id == no.lease)) {
    ++m.drops.stale_lease;
    return;
  }
  close_up_to(m, no.lease);
  m.lease.reset();
  post(m.who, broker_of(m), no, out);
}

void handle(rank_machine& m, const envelope&, const lease_returned& report, time_point now,
            effects& out) {
  if (!m.lease || !(m.lease->id == report.lease)) {
    ++m.drops.stale_lease;
    return;
  }
  close_up_to(m, report.lease);
  m.lease.reset();
  m.device_unclean = m.device_unclean || !report.clean;
  m.returned = rank_machine::return_part{report, now};
  note_lease(m.time, false, now.time_since_epoch());
  post(m.who, broker_of(m), report, out);
}

void tick_lease(rank_machine& m, time_point now, effects& out) {
  if (m.returned && !m.stopping && due(m.returned->sent_at, now, m.config.resend))
    post(m.who, broker_of(m), m.returned->report, out);
}

} // namespace adafloor::rank_parts
