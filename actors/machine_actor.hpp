#pragma once
// The thin shell: turns envelopes and ticks into step() and tick() of a machine, and posts what the
// machine wants sent. One actor implementation serves every role.
#include "messages/caf.hpp"
#include "planner/protocol/machine.hpp"

#include <memory>

namespace adafloor {

class router;

/// What every actor of this project accepts: the passing of time and an envelope. Which bodies a
/// role takes is listed in roles.hpp and checked before the machine sees them.
using role_actor = caf::typed_actor<caf::reacts_to<atom::tick>, caf::reacts_to<envelope>>;

/// A machine without its type.
class machine_box {
public:
  virtual ~machine_box() = default;
  virtual const char* name() const = 0;
  virtual bool accepts(const any_message&) const = 0;
  virtual void on_message(const envelope&, time_point now, effects&) = 0;
  virtual void on_tick(time_point now, effects&) = 0;
};

/// `Role` names a machine and what it accepts; see roles.hpp.
template <class Role>
class boxed final : public machine_box {
public:
  explicit boxed(typename Role::machine m) : machine_(std::move(m)) {}
  const char* name() const override { return Role::name; }
  bool accepts(const any_message& m) const override { return Role::accepts::contains(m); }
  void on_message(const envelope& e, time_point now, effects& out) override {
    step(machine_, e, now, out);
  }
  void on_tick(time_point now, effects& out) override { tick(machine_, now, out); }

private:
  typename Role::machine machine_;
};

/// Spawns the actor. The router must outlive it. Ticks every `tick_every`.
role_actor spawn_machine(caf::actor_system& system, std::shared_ptr<machine_box> machine,
                         router& out, microseconds tick_every);

} // namespace adafloor
