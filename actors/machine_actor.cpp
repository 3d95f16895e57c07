#include "actors/machine_actor.hpp"

#include "actors/router.hpp"

namespace adafloor {
namespace {

struct machine_state {
  std::shared_ptr<machine_box> machine;
  router* out = nullptr;
  static inline const char* name = "machine";
};
using machine_self = role_actor::stateful_pointer<machine_state>;

time_point now_of(machine_self self) {
  return std::chrono::time_point_cast<microseconds>(self->clock().now());
}

void flush(machine_self self, effects& out) {
  for (auto& e : out)
    self->state.out->post(std::move(e));
}

role_actor::behavior_type machine_behavior(machine_self self, std::shared_ptr<machine_box> machine,
                                           router* out, microseconds tick_every) {
  self->state.machine = std::move(machine);
  self->state.out = out;
  self->send(self, atom::tick_v);
  return {[=](atom::tick) {
            effects fx;
            self->state.machine->on_tick(now_of(self), fx);
            flush(self, fx);
            self->delayed_send(self, tick_every, atom::tick_v);
          },
          [=](const envelope& e) {
            effects fx;
            if (self->state.machine->accepts(e.body))
              self->state.machine->on_message(e, now_of(self), fx);
            else
              self->state.out->count_misdirected(e);
            self->state.out->consumed(e);
            flush(self, fx);
          }};
}

} // namespace

role_actor spawn_machine(caf::actor_system& system, std::shared_ptr<machine_box> machine,
                         router& out, microseconds tick_every) {
  return system.spawn(machine_behavior, std::move(machine), &out, tick_every);
}

} // namespace adafloor
