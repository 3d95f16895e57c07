#include "actors/turns.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace adafloor {

namespace {

constexpr std::uint64_t shortest_turn_ns = 100'000; // that the system grants

// The kernel's struct sched_attr, as of its first version; its header and <sched.h> exclude each
// other.
struct turns {
  std::uint32_t size = sizeof(turns);
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t turn_ns = 0, deadline_ns = 0, period_ns = 0;
};
static_assert(sizeof(turns) == 48);

} // namespace

void take_short_turns() {
  turns wish;
  errno = 0;
  wish.nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
  wish.turn_ns = shortest_turn_ns;
  if (errno == 0) (void)::syscall(SYS_sched_setattr, 0, &wish, 0);
}

void give_way(int by) {
  [[maybe_unused]] const int now = ::nice(by); // Of this thread alone, on Linux.
}

} // namespace adafloor
