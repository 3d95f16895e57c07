#pragma once
// A broker that is told what planner, trainer, recorder, ranks and sidecars say.
#include "planner/protocol/broker.hpp"
#include "tests/planner/protocol/fixture.hpp"

namespace adafloor::testing {

struct lease_bench : bench<broker_machine> {
  /// Times are short, and what leases cost is not judged.
  static broker_config quick() {
    broker_config c;
    c.grace = ms(200);
    c.return_margin = ms(300);
    c.window_min = ms(50);
    c.pace.max_slowdown = 0;
    return c;
  }
  explicit lease_bench(broker_config c) : bench(broker_machine(c, term_id{1})) {}
  effects local(role_kind role, any_message m) {
    return tell(say(0, role, machine.who.self, std::move(m)));
  }
  effects rank(std::uint32_t r, any_message m) {
    return tell(say(r, role_kind::rank, machine.who.self, std::move(m)));
  }
  effects sidecar(std::uint32_t r, any_message m) {
    return tell(say(r, role_kind::sidecar, machine.who.self, std::move(m)));
  }
};

} // namespace adafloor::testing
