#pragma once
// What every protocol machine in this project has in common: it is a struct, and
//   void step(machine&, const envelope&, time_point now, effects&)
//   void tick(machine&, time_point now, effects&)
// are the only ways to change it. A machine does no I/O, reads no clock, draws no random number and
// starts no thread, so the same inputs give the same effects. What it wants done - a message to
// another process, or work by the engine or the sidecar of its own - is an envelope in `effects`.
#include "messages/catalog.hpp"

#include <cassert>
#include <vector>

namespace adafloor {

/// What a machine wants sent. The shell fills in the sender's incarnation.
using effects = std::vector<envelope>;

/// Who a machine is: stamps what it sends.
struct identity {
  address self;
  fence stamp; ///< the highest term, epoch and weights version that the machine has seen
};

template <class Message>
void post(const identity& from, address to, Message body, effects& out) {
  out.push_back(envelope{from.self, to, incarnation_id{}, from.stamp, std::move(body)});
}

} // namespace adafloor
