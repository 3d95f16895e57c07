#pragma once
// How the files of the broker machine reach each other. Nobody else includes this.
#include "planner/protocol/broker.hpp"

#include <algorithm>

namespace adafloor::broker_parts {

using lease_phase = broker_machine::lease_phase;
using lease_state = broker_machine::lease_state;
using rank_state = broker_machine::rank_state;
using queue_state = broker_machine::queue_state;
using unit_state = broker_machine::unit_state;
using unit_entry = broker_machine::unit_entry;

inline address local(const broker_machine& m, role_kind role) {
  return role_at(m.config.self, role);
}

// broker.cpp
void revoke(broker_machine&, rank_id, lease_state&, time_point now, effects&);
void note_accepted(lease_state&, time_point now);
/// Lends free ranks as long as there is work that fits them.
void offer(broker_machine&, time_point now, effects&);
/// The state of the rank if `id` is its lease; counts the message if not.
rank_state* holder(broker_machine&, rank_id, lease_id id);

// broker_work.cpp
/// What is left of the predicted window. A rollout beyond it has a remainder that grows with its
/// age: at least a tenth of the time since it was predicted.
microseconds left_of(const rank_state&, time_point now);
/// The queue that the rank is to work for, or none; see broker_machine.
queue_state* choose_queue(broker_machine&, const rank_state&, time_point now);
/// The queue's account and estimates learn that a lease of it began, or ended.
void open_account(broker_machine&, lease_state&);
void close_account(broker_machine&, lease_state&, time_point now);
/// Units that the lease took and did not answer go back to the queue.
void requeue(broker_machine&, lease_state&);
/// The lease's worker died on `rank` with these units under way: those that it happened to too
/// often get an error as their result.
void note_deaths(broker_machine&, const lease_state&, rank_id rank,
                 const std::vector<std::uint64_t>& units, effects&);
/// The next lease of these units goes on where this one was interrupted.
void keep_partial(broker_machine&, const lease_state&, const std::vector<partial_answer>&);
/// A queue that nothing could be lent for because of its estimate is tried again some day.
void fade_estimates(broker_machine&, const rank_state&, time_point now);

void hear_work(broker_machine&, const queue_work&, time_point now, effects&);
void hear_policy(broker_machine&, const queue_policy&);
void hear_take(broker_machine&, const envelope&, const take_work&, time_point now, effects&);
void hear_result(broker_machine&, const envelope&, const work_result&, time_point now, effects&);
void hear_kept(broker_machine&, const work_kept&, effects&);

} // namespace adafloor::broker_parts
