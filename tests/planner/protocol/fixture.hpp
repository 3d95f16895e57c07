#pragma once
// Short ways to speak to a machine in a test and to look at what it wants sent.
#include "planner/protocol/machine.hpp"

#include <optional>
#include <vector>

namespace adafloor::testing {

constexpr fence first_fence{term_id{1}, epoch_id{1}, weights_id{1}};
constexpr incarnation_id process_of(std::uint32_t rank) {
  return incarnation_id{1000 + rank};
}

inline envelope say(std::uint32_t from, role_kind role, address to, any_message body,
                    fence stamp = first_fence) {
  return {role_at(rank_id{from}, role), to, process_of(from), stamp, std::move(body)};
}

template <class Message>
std::vector<Message> sent(const effects& out, std::optional<role_kind> to = {}) {
  std::vector<Message> found;
  for (const auto& e : out)
    if (const auto* m = std::get_if<Message>(&e.body); m && (!to || e.to.role == *to))
      found.push_back(*m);
  return found;
}

template <class Message>
std::vector<std::uint32_t> receivers(const effects& out) {
  std::vector<std::uint32_t> ranks;
  for (const auto& e : out)
    if (std::get_if<Message>(&e.body)) ranks.push_back(e.to.rank.value);
  return ranks;
}

/// One machine with a clock of its own.
template <class Machine>
struct bench {
  Machine machine;
  time_point now;

  explicit bench(Machine m, time_point start = time_point{microseconds{1'000'000}})
    : machine(std::move(m)), now(start) {}
  effects tell(const envelope& in) {
    effects out;
    step(machine, in, now, out);
    return out;
  }
  /// Time passes in ticks of 10 ms; everything sent meanwhile.
  effects wait(microseconds span) {
    effects out;
    for (const auto end = now + span; now < end;) {
      now += microseconds{10'000};
      tick(machine, now, out);
    }
    return out;
  }
};

constexpr microseconds ms(std::int64_t count) {
  return microseconds{count * 1000};
}

} // namespace adafloor::testing
