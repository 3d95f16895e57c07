#pragma once
// A planner whose ranks, trainer and recorder are played by the test.
#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/planner.hpp"
#include "tests/planner/protocol/fixture.hpp"

#include <algorithm>

namespace adafloor::testing {

/// Every rank has one request; `world` ranks.
struct planner_bench : bench<planner_machine> {
  std::uint32_t world;
  explicit planner_bench(std::uint32_t ranks = 8)
    : bench(planner_machine(config(ranks), first_fence, time_point{microseconds{1'000'000}})),
      world(ranks) {}
  static planner_config config(std::uint32_t ranks) {
    planner_config c;
    c.world_size = ranks;
    c.experts = 2 * ranks;
    return c;
  }
  effects rank(std::uint32_t r, any_message m) {
    return tell(say(r, role_kind::rank, machine.who.self, std::move(m)));
  }
  effects local(role_kind role, any_message m) {
    return tell(say(0, role, machine.who.self, std::move(m)));
  }
  begin_rollout order(std::vector<std::uint32_t> exits, std::uint64_t id = 1) const {
    begin_rollout b{rollout_id{id}, {}, {}, {}, 100, {}};
    for (std::uint32_t r = 0; r < world; ++r) {
      b.requests.push_back({request_id{r}, r, {1}, 9, {}});
      b.homes.emplace_back(r);
    }
    for (auto to : exits)
      b.exits.push_back({50, to});
    return b;
  }
  void run_all_but_last(std::vector<std::uint32_t> exits, std::uint64_t id) {
    local(role_kind::trainer, order(std::move(exits), id));
    for (std::uint32_t r = 0; r < world; ++r)
      rank(r, requests_admitted{rollout_id{id}, 0});
    for (std::uint32_t r = 0; r + 1 < world; ++r)
      rank(r, rollout_started{rollout_id{id}});
  }
  void run(std::vector<std::uint32_t> exits, std::uint64_t id = 1) {
    run_all_but_last(std::move(exits), id);
    rank(world - 1, rollout_started{rollout_id{id}});
  }
  /// The planner can act for the first time when only `live` are unfinished.
  void run_down_to(std::vector<std::uint32_t> live, std::vector<std::uint32_t> exits) {
    run_all_but_last(std::move(exits), 1);
    finish_all_but(std::move(live));
    rank(world - 1, rollout_started{rollout_id{1}});
  }
  effects finish(std::uint32_t r, std::uint64_t id = 1) {
    auto out = rank(r, response{rollout_id{id}, request_id{r}, {1}, {0}, finish_reason::eos, 5});
    const auto more = local(role_kind::recorder, response_kept{rollout_id{id}, request_id{r}});
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  effects finish_all_but(std::vector<std::uint32_t> live, std::uint64_t id = 1) {
    effects out;
    for (std::uint32_t r = 0; r < world; ++r) {
      if (std::find(live.begin(), live.end(), r) != live.end()) continue;
      const auto more = finish(r, id);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
  effects all_prepare() {
    const auto& plan = machine.transition.plan;
    effects out;
    for (const auto& [r, p] : std::map(machine.transition.participants)) {
      const auto more =
          rank(r.value, prepared{plan.epoch, plan.map_hash, experts_of(plan.owners, r), 1});
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
  template <class Message>
  effects all_say(Message m) {
    effects out;
    for (const auto& [r, p] : std::map(machine.transition.participants)) {
      if constexpr (std::is_same_v<Message, settled>)
        m.detached = std::count(machine.members.begin(), machine.members.end(), r) == 0;
      const auto more = rank(r.value, m);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
  /// Carries the transition that is being prepared through to its end.
  effects carry_through() {
    const auto epoch = machine.transition.plan.epoch;
    all_prepare();
    all_say(switched{epoch, 6, ms(1)});
    return all_say(settled{epoch, false});
  }
  bool preparing() const {
    return machine.transition.now_in == transition_coordinator::phase::preparing;
  }
};

} // namespace adafloor::testing
