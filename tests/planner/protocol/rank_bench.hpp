#pragma once
// Rank 1 of four, whose planner, broker, engine and sidecar are played by the test.
#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/rank.hpp"
#include "tests/planner/protocol/fixture.hpp"

namespace adafloor::testing {

constexpr std::uint32_t self = 1;

struct rank_bench : bench<rank_machine> {
  rank_bench() : bench(rank_machine(config(), first_fence, time_point{microseconds{1'000'000}})) {}
  static rank_config config() {
    rank_config c;
    c.self = rank_id{self};
    c.world_size = 4;
    c.incarnation = process_of(self);
    c.response_window = 2;
    return c;
  }
  fence planner_stamp = first_fence;
  effects planner(any_message m) {
    return tell(say(0, role_kind::planner, machine.who.self, std::move(m), planner_stamp));
  }
  effects broker(any_message m) {
    return tell(say(0, role_kind::broker, machine.who.self, std::move(m), planner_stamp));
  }
  effects engine(any_message m) {
    return tell(say(self, role_kind::engine, machine.who.self, std::move(m)));
  }
  effects sidecar(any_message m) {
    return tell(say(self, role_kind::sidecar, machine.who.self, std::move(m)));
  }
  void run_rollout(std::uint32_t requests, std::uint64_t id = 1) {
    planner(admission(requests, id));
    planner(start_rollout{rollout_id{id}, ms(900)});
    engine(rank_progress{rollout_id{id}, epoch_id{1}, 0, requests, 0, 0});
    engine(engine_state{rollout_id{id}, rank_state::busy, now.time_since_epoch(), 0});
  }
  void finish_requests(std::uint32_t requests, std::uint64_t id = 1) {
    engine(rank_progress{rollout_id{id}, epoch_id{1}, 9, 0, requests, 9});
    engine(engine_state{rollout_id{id}, rank_state::idle, now.time_since_epoch(), 9});
  }
  static admit_requests admission(std::uint32_t requests, std::uint64_t id = 1) {
    admit_requests a{rollout_id{id}, 0, 1, {}};
    for (std::uint32_t i = 0; i < requests; ++i)
      a.requests.push_back({request_id{i}, i, {1, 2}, 5, {}});
    return a;
  }
  static prepare_transition plan(std::uint64_t epoch, std::vector<std::uint32_t> members,
                                 std::vector<std::uint32_t> leavers,
                                 transition_kind kind = transition_kind::contract) {
    prepare_transition p{epoch_id{epoch}, epoch_id{1}, kind, {}, {}, {}, 0};
    for (auto r : members)
      p.members.emplace_back(r);
    for (auto r : leavers)
      p.leavers.emplace_back(r);
    p.owners = contract_owners(home_owners(8, 4), p.members);
    p.map_hash = expert_map_hash(p.owners);
    return p;
  }
  effects engine_ready(const prepare_transition& p) {
    return engine(engine_prepared{p.epoch, p.map_hash, experts_of(p.owners, rank_id{self}), 10});
  }
  /// This rank leaves the group with `epoch` and settles.
  void leave(std::uint64_t epoch = 2) {
    const auto p = plan(epoch, {2, 3}, {0, self});
    planner(p);
    engine_ready(p);
    planner_stamp.epoch = p.epoch;
    planner(commit_transition{p.epoch});
    engine(switched{p.epoch, 7, ms(1)});
    planner(settle_transition{p.epoch});
  }
};

} // namespace adafloor::testing
