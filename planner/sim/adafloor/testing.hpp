#pragma once
// For test suites of users (CMake target adafloor::testing): a whole cluster of the real protocol
// machines in virtual time, on one thread, the same for the same seed everywhere. A test plays it
// up to a moment by name, lets something go wrong there, and looks what becomes of it. The
// invariants of the protocols are checked after every event; a broken one is a `violation`, which
// Boost.Test and others report with its text. Nothing here is thread-safe.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace adafloor::sim {
class world;
}

namespace adafloor::testing {

using std::chrono::microseconds;
using rank = std::uint32_t; ///< 0-based; rank 0 also runs planner, broker, membership and trainer

/// An invariant of the protocols is broken: its number and how.
struct violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The job that is played: `rollouts` rollouts with a policy update between two.
struct job {
  std::uint64_t seed = 1;  ///< of lengths, delays and chance
  std::uint32_t ranks = 4; ///< from 2
  std::uint32_t rollouts = 1;
  std::uint32_t requests = 24;         ///< per rollout
  std::uint32_t max_tokens = 96;       ///< per request; most end earlier
  std::vector<std::uint32_t> exits{2}; ///< sizes that the group shrinks to, one after the other
  std::uint32_t units = 0;             ///< of work for ranks that have left
  double moves = 0;                    ///< chance of an order to move a live request, every 10 ms
  /// Chance that a message between two processes is lost, comes twice, or comes up to 1.5 s late;
  /// while the first 4 s last.
  double loss = 0, doubling = 0, late = 0;
};

class world {
public:
  explicit world(const job& what = {});
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  // --- time: nothing happens but in these

  microseconds now() const; ///< since the begin
  void play(microseconds time);
  /// Until `done` holds, looked at after every event; false: `limit` has passed before.
  bool play_until(const std::function<bool()>& done, microseconds limit = std::chrono::minutes(2));
  /// Until `who`, or any rank, takes part in this step of the protocols: one of `steps()`.
  bool play_to(const std::string& step, std::optional<rank> who = std::nullopt);
  /// To the end of the job, where it is checked that nothing is left over. A job that was not
  /// disturbed beyond what it must endure has to end well; see `tolerate_failure`.
  void play_to_end();
  static std::vector<std::string> steps(); ///< as `adafloor faults run` lists them

  // --- barriers: messages between processes that wait

  /// From now on each message of this name (as in `adafloor faults list`) that reaches `at`, or any
  /// rank, waits at the barrier `name`. Throws std::invalid_argument for a message that does not
  /// exist or never leaves its process.
  void close(const std::string& name, const std::string& message,
             std::optional<rank> at = std::nullopt);
  std::size_t waiting(const std::string& name) const; ///< messages
  /// Lets them go on, in the order in which they came; later ones do not wait.
  void open(const std::string& name);

  // --- what goes wrong now

  /// Nothing passes between these ranks and the others until `heal`. One cut at a time.
  void cut_off(const std::vector<rank>& away);
  void heal();
  void freeze(rank who, microseconds time); ///< the process does nothing meanwhile
  void slow(rank who, microseconds time);   ///< everything that it does takes up to 2 ms more
  void crash(rank who);                     ///< for good; not rank 0
  void fill_disk();                         ///< the results file takes nothing more
  /// The job may end with a clear error, as it does on a full disk: for faults that nobody gets
  /// over, and cuts over seconds.
  void tolerate_failure();

  // --- what can be seen

  bool stopped() const;        ///< the job has ended
  std::string failure() const; ///< the error that it ended with, or empty
  std::uint32_t rollouts_done() const;
  std::uint64_t epoch(rank who) const; ///< number of the group that its engine runs
  bool in_group(rank who) const;
  bool decodes(rank who) const;
  bool lent(rank who) const; ///< work of a lease may run there
  bool declared_dead(rank who) const;
  std::vector<std::string> steps_of(rank who) const; ///< that it takes part in at this moment
  /// Every group that some rank has switched to: its members by epoch.
  std::map<std::uint64_t, std::vector<rank>> committed_groups() const;
  /// How often a result of this request was written; rollouts count from 1, requests from 0.
  std::uint32_t times_ended(std::uint32_t rollout, std::uint32_t request) const;
  /// Its tokens as written; and what a run without any fault gives.
  std::vector<std::int32_t> tokens(std::uint32_t rollout, std::uint32_t request) const;
  std::vector<std::int32_t> true_tokens(std::uint32_t rollout, std::uint32_t request) const;

  /// Runs after every event: for invariants of one's own.
  std::function<void()> after_event;
  /// A line per message and fault from now on; null: none.
  void trace_to(std::ostream* lines);

private:
  bool step();
  std::unique_ptr<sim::world> world_;
};

/// For BOOST_FIXTURE_TEST_CASE and the like: eight ranks that shrink to four and two, with work for
/// those that leave.
struct eight_ranks : world {
  eight_ranks() : world(settings()) {}
  static job settings();
};

} // namespace adafloor::testing
