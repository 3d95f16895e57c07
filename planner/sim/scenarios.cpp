// Which worlds there are: everything about one follows from its seed.
#include "planner/sim/world.hpp"

#include <algorithm>

namespace adafloor::sim {
namespace {

/// Kinds of fault with chance of their own, so that older seeds keep the rest of their world.
void add_later_kinds(scenario& s) {
  random_stream rng(s.seed ^ 0xadd);
  auto& f = s.faults;
  if (rng.chance(0.3)) f.corruption = 0.1;
  if (rng.chance(0.3)) f.lease_refusal = 0.2;
  if (rng.chance(0.3)) f.restore_refusal = 0.3;
  if (rng.chance(0.3)) f.slow = 0.004;
  if (rng.chance(0.2)) f.cut = 0.004;
  const auto kind = rng.below(12);
  using step = protocol_step;
  constexpr step rare[] = {step::move_offer,     step::move_copy,     step::move_hand_over,
                           step::move_cancel,    step::lease_grant,   step::lease_work,
                           step::lease_return,   step::abort,         step::contract_commit,
                           step::restore_commit, step::restore_settle};
  const auto where = rng.chance(0.5)
                         ? rare[rng.below(std::size(rare))]
                         : static_cast<step>(rng.between(1, static_cast<int>(step::stop)));
  constexpr fault_kind aimed[] = {fault_kind::crash, fault_kind::disk_full, fault_kind::freeze,
                                  fault_kind::slow};
  if (kind < std::size(aimed) && s.deaths.empty() && !s.engine_failure && !s.unkillable)
    s.aimed = aimed_fault{aimed[kind], where};
  else if (!s.deaths.empty())
    s.aimed = aimed_fault{aimed[kind % std::size(aimed)], step::recovery};
  if (rng.chance(0.2)) s.resumed = 0.6;
}

} // namespace

void keep_only(scenario& s, const std::set<fault_kind>& kept) {
  keep_only(s.faults, kept);
  const auto drop_deaths = [&](bool frozen) {
    auto& all = s.deaths;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const auto& d) { return (d.frozen > microseconds{0}) == frozen; }),
              all.end());
  };
  if (kept.count(fault_kind::crash) == 0) {
    s.engine_failure = std::nullopt;
    drop_deaths(false);
  }
  if (kept.count(fault_kind::freeze) == 0) {
    s.unkillable = std::nullopt;
    drop_deaths(true);
  }
  if (s.aimed && kept.count(s.aimed->kind) == 0) s.aimed = std::nullopt;
}

scenario scenario_of(std::uint64_t seed, std::uint32_t ranks) {
  random_stream rng(seed ^ 0x51ed);
  scenario s;
  s.seed = seed;
  const std::uint32_t sizes[] = {2, 4, 4, 8, 8, 16};
  s.world_size = sizes[rng.below(6)];
  if (ranks > 0) s.world_size = ranks;
  s.experts = s.world_size * static_cast<std::uint32_t>(rng.between(1, 2))
              + static_cast<std::uint32_t>(rng.chance(0.2) ? rng.below(3) : 0);
  s.rollouts = 2;
  s.requests = static_cast<std::uint32_t>(rng.between(1, s.world_size * 3));
  s.max_tokens = static_cast<std::uint32_t>(rng.between(20, 110));
  s.units = static_cast<std::uint32_t>(rng.below(40));
  s.exits.clear();
  for (auto to = s.world_size / 2; to >= 1; to = rng.chance(0.2) ? to / 4 : to / 2)
    s.exits.push_back(to);
  auto& f = s.faults; // a swarm: each kind is off in half of the worlds
  if (rng.chance(0.5)) f.loss = 0.3 * static_cast<double>(rng.below(100)) / 100;
  if (rng.chance(0.5)) f.doubling = 0.3;
  if (rng.chance(0.5)) f.late = 0.1;
  if (rng.chance(0.5)) f.engine_refusal = 0.1;
  if (rng.chance(0.3)) f.slow_prepare = 0.1;
  if (rng.chance(0.2)) f.wrong_coverage = 0.1;
  if (rng.chance(0.3)) f.worker_crash = 0.05;
  if (rng.chance(0.3)) f.worker_stubborn = 0.5;
  if (rng.chance(0.3)) f.weights_refusal = 0.1;
  if (rng.chance(0.3)) f.pause = 0.004;
  const auto victim = static_cast<std::uint32_t>(rng.between(1, s.world_size - 1));
  s.fault_at = rng.delay(0, 1'500'000);
  const auto kind = rng.below(20);
  if (kind == 0) s.deaths.push_back({victim, s.fault_at, microseconds{0}});
  if (kind == 1) s.engine_failure = victim;
  if (kind == 2) s.unkillable = victim;
  if (rng.chance(0.5)) s.moves = 0.3;
  if (rng.chance(0.3)) f.pull_failure = 0.1;
  if (rng.chance(0.3)) f.no_room = 0.2;
  if (rng.chance(0.3)) s.rules.residency = residency_kind::planned;
  s.rules.migrate = static_cast<migrate_kind>(rng.between(1, 3));
  s.rules.adaptive = rng.chance(0.3);
  s.rules.capacity_tokens = rng.chance(0.3) ? 3 * s.max_tokens : 0;
  s.places = static_cast<int>(rng.between(2, 12));
  add_later_kinds(s);
  return s;
}

scenario lease_scenario_of(std::uint64_t seed, std::uint32_t ranks) {
  random_stream rng(seed ^ 0x1ea5e);
  scenario s;
  s.seed = seed;
  const std::uint32_t sizes[] = {4, 8, 8, 16};
  s.world_size = sizes[rng.below(4)];
  if (ranks > 0) s.world_size = ranks;
  s.experts = s.world_size;
  s.rollouts = static_cast<std::uint32_t>(rng.between(2, 3));
  s.requests = static_cast<std::uint32_t>(rng.between(s.world_size / 2, s.world_size * 2));
  s.max_tokens = static_cast<std::uint32_t>(rng.between(40, 160));
  s.units = static_cast<std::uint32_t>(rng.between(20, 150));
  s.exits.clear();
  for (auto to = s.world_size - 1; to >= 1; to = to > 3 ? to * 2 / 3 : to - 1)
    s.exits.push_back(to);
  for (std::uint32_t q = 0, count = 1 + rng.below(4); q < count; ++q)
    s.queues.push_back({q, static_cast<std::uint32_t>(rng.below(2)),
                        static_cast<std::uint32_t>(rng.between(1, 4)), rng.delay(0, 100'000),
                        rng.delay(0, 60'000)});
  auto& f = s.faults;
  if (rng.chance(0.6)) f.loss = 0.35 * static_cast<double>(rng.below(100)) / 100;
  if (rng.chance(0.5)) f.doubling = 0.3;
  if (rng.chance(0.5)) f.late = 0.15;
  if (rng.chance(0.5)) f.worker_crash = 0.15;
  if (rng.chance(0.5)) f.worker_stubborn = 0.6;
  if (rng.chance(0.3)) f.worker_unclean = 0.1;
  if (rng.chance(0.5)) f.worker_start_us = 300'000;
  if (rng.chance(0.3)) f.pause = 0.004;
  if (rng.chance(0.2)) f.engine_refusal = 0.1;
  const auto victim = static_cast<std::uint32_t>(rng.between(1, s.world_size - 1));
  s.fault_at = rng.delay(0, 1'500'000);
  const auto kind = rng.below(12);
  if (kind == 0) s.deaths.push_back({victim, s.fault_at, microseconds{0}});
  if (kind <= 2 && kind > 0) s.unkillable = victim;
  s.pace = {0.01, 1, 1, microseconds{100'000}, microseconds{80'000}, microseconds{1000}, 1, 0.5, 3};
  if (rng.chance(0.4)) s.slow_leases = 0.1;
  add_later_kinds(s);
  return s;
}

scenario death_scenario_of(std::uint64_t seed, std::uint32_t ranks) {
  auto s = scenario_of(seed, ranks);
  random_stream rng(seed ^ 0xdead);
  if (s.world_size == 2 && ranks == 0) s.world_size = s.experts = 4;
  s.engine_failure.reset();
  s.unkillable.reset();
  s.deaths.clear();
  if (s.aimed && s.aimed->kind == fault_kind::disk_full) s.aimed.reset();
  s.requests = static_cast<std::uint32_t>(rng.between(2, s.world_size * 3));
  s.max_tokens = static_cast<std::uint32_t>(rng.between(40, 300));
  s.update_weights = rng.chance(0.3);
  for (auto count = 1 + rng.below(2); count > 0; --count) {
    const auto rank = static_cast<std::uint32_t>(rng.between(1, s.world_size - 1));
    const auto frozen = rng.chance(0.5) ? rng.delay(3'500'000, 9'000'000) : microseconds{0};
    s.deaths.push_back({rank, rng.delay(0, rng.chance(0.7) ? 1'000'000 : 6'000'000), frozen});
  }
  if (rng.chance(0.5)) s.moves = 0.3;
  return s;
}

} // namespace adafloor::sim
