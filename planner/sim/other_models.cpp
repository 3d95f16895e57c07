// Worker and recorder of a simulated rank: see models.hpp.
#include "planner/sim/models.hpp"

namespace adafloor::sim {

std::vector<token_id> true_answer(const work_unit& work) {
  return {static_cast<token_id>(work.unit & 0xffff), static_cast<token_id>(work.prompt.size())};
}

void worker_model::say(any_message message, microseconds delay) {
  world_.tell({role_at(self_, role_kind::worker),
               role_at(self_, role_kind::sidecar),
               {},
               {},
               std::move(message)},
              delay);
}

void worker_model::handle(const any_message& order) {
  if (auto* unit = std::get_if<run_unit>(&order))
    run(*unit);
  else if (auto* end = std::get_if<stop_worker>(&order))
    stop(*end);
}

void worker_model::run(const run_unit& order) {
  demand(!stopping_, "I4", "a worker that stops is given work");
  auto duration = world_.rng.delay(2'000, 60'000);
  if (!active_ && world_.faults().worker_start_us > 0)
    duration += world_.rng.delay(0, world_.faults().worker_start_us);
  active_ = true;
  const bool crashes = world_.rng.chance(world_.faults().worker_crash);
  world_.after(self_.value, duration, [this, order, crashes, process = generation_] {
    if (process != generation_) return;
    if (crashes) {
      world_.note_fault(fault_kind::crash, self_);
      return gone(order.lease, stopping_ ? stop_kills_ : true);
    }
    say(work_result{order.lease, order.work.unit, true_answer(order.work)}, microseconds{0});
  });
}

void worker_model::stop(const stop_worker& order) {
  if (unkillable) return;
  if (!order.kill && world_.rng.chance(world_.faults().worker_stubborn))
    return world_.note_fault(fault_kind::freeze, self_);
  if (!active_) return say(worker_stopped{order.lease, order.kill, true}, microseconds{0});
  stopping_ = true;
  stop_kills_ = order.kill;
  world_.after(self_.value, world_.rng.delay(100, 40'000), [this, order, process = generation_] {
    if (process == generation_) gone(order.lease, order.kill);
  });
}

/// News of a death by itself takes a while: units on their way meanwhile start the next process.
void worker_model::gone(lease_id lease, bool forced) {
  const auto late = stopping_ ? microseconds{0} : world_.rng.delay(0, 40'000);
  active_ = stopping_ = false;
  ++generation_;
  const auto chance = world_.faults().worker_unclean;
  const bool unclean = chance > 0 && world_.rng.chance(chance);
  say(worker_stopped{lease, forced, !unclean}, late);
}

void recorder_model::handle(const envelope& message) {
  if (disk_full) return;
  const auto own = role_at(self_, role_kind::recorder);
  const auto disk = world_.rng.delay(50, 8'000);
  if (auto* done = std::get_if<response>(&message.body)) {
    const auto key = std::pair(done->rollout, done->request);
    world_.after(self_.value, disk, [this, own, key, tokens = done->tokens] {
      ++written[key];
      repeated += !responses.emplace(key, tokens).second;
      world_.tell(
          {own, role_at(self_, role_kind::planner), {}, {}, response_kept{key.first, key.second}},
          microseconds{0});
    });
  } else if (auto* batch = std::get_if<token_batch>(&message.body)) {
    const auto rank = message.from.rank;
    demand(batch->sequence == ++logged[{batch->rollout, rank}], "I6",
           "a batch of tokens is logged twice, or out of order");
    for (const auto& run : batch->runs)
      for (std::uint32_t i = 0; i < run.tokens.size(); ++i) {
        const auto [known, fresh] =
            tokens[{batch->rollout, run.request}].emplace(run.first + i, run.tokens[i]);
        // What died with a rank is generated again, and is the same.
        demand(fresh || (world_.anyone_lost() && known->second == run.tokens[i]), "I6",
               "a token is logged twice");
      }
    world_.tell({own,
                 role_at(self_, role_kind::planner),
                 {},
                 {},
                 tokens_kept{batch->rollout, rank, batch->sequence}},
                disk);
  } else if (auto* result = std::get_if<work_result>(&message.body)) {
    world_.after(self_.value, disk, [this, own, result = *result] {
      repeated += !answers.emplace(result.unit, result.tokens).second;
      world_.tell(
          {own, role_at(self_, role_kind::broker), {}, {}, work_kept{result.lease, result.unit}},
          microseconds{0});
    });
  }
}

} // namespace adafloor::sim
