#pragma once
// Faults on purpose, at actor level and by name: what befalls a message when it reaches its role.
// For those who test what a trainer does when a rank fails; a job without rules has none of this.
#include "messages/catalog.hpp"
#include "messages/result.hpp"
#include "planner/sim/faults.hpp"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace adafloor {

/// What a rule may do. delay: delivered `ms` later, behind what comes meanwhile. reorder: delivered
/// behind the next message from the same process. corrupt: one bit of its frame is flipped, which
/// its checksum must show; then it is dropped. refuse: not delivered, the sender gets the refusal.
/// slow: delivered after `ms`, during which the thread that brought it does nothing else. freeze:
/// the process stops itself (SIGSTOP) first, for `ms`, or for good with 0. crash: it kills itself
/// (SIGKILL) instead.
constexpr fault_kind last_kind_of_rules = fault_kind::crash;

/// The fault point is the arrival of message `at` at a role.
struct fault_rule {
  std::string at; ///< a message of the catalog
  fault_kind act = fault_kind::drop;
  std::optional<rank_id> rank;   ///< where it arrives; none: anywhere
  std::optional<rank_id> from;   ///< where it comes from; none: from anywhere
  std::optional<role_kind> role; ///< that it arrives at; none: any
  std::uint32_t skip = 0;        ///< arrivals that are let through first
  std::uint32_t count = 1;       ///< arrivals that are hit then; 0: all
  std::uint32_t ms = 0;          ///< of delay, slow and freeze
};

/// From "at=MESSAGE do=ACTION [rank=R] [from=R] [role=ROLE] [skip=N] [count=N] [ms=N]". Errors:
/// bad_input, which names the word.
result<fault_rule> parse_fault(const std::string& text);

/// What may be done where: every message, and whether it can be lost or refused there.
struct fault_point {
  std::string name;
  std::vector<fault_kind> actions;
};
std::vector<fault_point> fault_points();

/// Stands before the roles of a process. Drop, duplicate, reorder and corrupt spare messages that
/// are never lost and never come twice: those between a rank's machine and the engine or worker of
/// its own process, and those of trainer and recorder.
class fault_injector {
public:
  using handler = std::function<void(const envelope&)>;
  /// `deliver` brings an envelope to its role, `post` sends one; both on any thread.
  fault_injector(rank_id self, const std::vector<fault_rule>& rules, handler deliver, handler post);
  /// Forgets what is still delayed.
  ~fault_injector();

  /// An envelope has arrived. Any thread; blocks only in a frozen or slow process.
  void pass(const envelope& e);

private:
  using clock = std::chrono::steady_clock;
  struct armed_rule {
    fault_rule rule;
    std::uint64_t seen = 0;
  };
  struct delayed {
    clock::time_point due;
    envelope what;
    bool overtaken = false; ///< delivered as soon as the same process has sent something else
  };
  const fault_rule* strike(const envelope& e);
  void strike_or_deliver(const envelope& e);
  std::vector<envelope> take_overtaken(rank_id by);
  void hold(const envelope& e, std::chrono::milliseconds time, bool overtaken);
  void wait_for_due();

  rank_id self_;
  handler deliver_, post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<armed_rule> rules_;
  std::vector<delayed> delayed_;
  bool ending_ = false;
  std::thread timer_;
};

} // namespace adafloor
