#pragma once
// Units of auxiliary work are numbered through the job: the kind in the upper bits, the place among
// the kind's units in the lower ones. Each kind is a queue of its own.
#include "messages/leases.hpp"

namespace adafloor {

constexpr std::uint32_t unit_index_bits = 40;

constexpr std::uint32_t queue_of(work_kind kind) {
  return static_cast<std::uint32_t>(kind) - 1;
}
constexpr std::uint64_t unit_number(work_kind kind, std::uint64_t index) {
  return (std::uint64_t{queue_of(kind)} << unit_index_bits) | index;
}
constexpr std::uint64_t index_of_unit(std::uint64_t unit) {
  return unit & ((std::uint64_t{1} << unit_index_bits) - 1);
}
/// Any value, also none of the enumeration's, for a number that no queue gave.
constexpr work_kind kind_of_unit(std::uint64_t unit) {
  return static_cast<work_kind>((unit >> unit_index_bits) + 1);
}

} // namespace adafloor
