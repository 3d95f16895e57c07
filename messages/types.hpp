#pragma once
// Ids and units. Two ids of different kinds never convert into each other.
#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>

namespace adafloor {

/// A number that means one thing only. `Tag` is never defined.
template <class Rep, class Tag>
struct named {
  Rep value{};
  constexpr named() = default;
  constexpr explicit named(Rep v) : value(v) {}
  friend constexpr bool operator==(named a, named b) { return a.value == b.value; }
  friend constexpr bool operator!=(named a, named b) { return a.value != b.value; }
  friend constexpr bool operator<(named a, named b) { return a.value < b.value; }
  friend constexpr bool operator<=(named a, named b) { return a.value <= b.value; }
  friend constexpr bool operator>(named a, named b) { return a.value > b.value; }
  friend constexpr bool operator>=(named a, named b) { return a.value >= b.value; }
  friend std::ostream& operator<<(std::ostream& os, named a) { return os << a.value; }
};

using rank_id = named<std::uint32_t, struct rank_tag>; ///< position in the full world, 0-based
using incarnation_id = named<std::uint64_t, struct incarnation_tag>; ///< random per process start
using term_id = named<std::uint64_t, struct term_tag>;               ///< planner leadership number
using epoch_id = named<std::uint64_t, struct epoch_tag>;             ///< number of the EP group
using weights_id = named<std::uint64_t, struct weights_tag>;         ///< policy version
using rollout_id = named<std::uint64_t, struct rollout_tag>;         ///< one step of rollouts
using request_id = named<std::uint64_t, struct request_tag>;         ///< unique in its rollout
using token_id = std::int32_t;

using microseconds = std::chrono::microseconds;
/// A point on a clock that the caller owns: virtual in tests, CLOCK_MONOTONIC in production.
using time_point = std::chrono::time_point<std::chrono::steady_clock, microseconds>;

} // namespace adafloor

template <class Rep, class Tag>
struct std::hash<adafloor::named<Rep, Tag>> {
  std::size_t operator()(adafloor::named<Rep, Tag> v) const noexcept {
    return std::hash<Rep>{}(v.value);
  }
};
