#pragma once
// Auxiliary work of a user's own on leased ranks. A program that links AdaFloor implements
// `aux_work`, registers it under a name at its start, and calls `run_program` (apps/program.hpp),
// which makes it `adafloor` with that work: `PROGRAM run --lease-callback NAME
// --lease-callback-file FILE`. tests/process/callback_user.cpp is such a program.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace adafloor {

/// The lease that a unit runs under. Any thread.
class aux_lease {
public:
  std::string id; ///< EPOCH.COUNTER, as the results have it
  rank_id rank;
  std::string device; ///< of the job: cpu, cuda, emulated
  /// The rank is needed again, as predicted when the unit began. The lease is renewed that long,
  /// but may be revoked at any time.
  time_point needed_at;

  explicit aux_lease(const std::atomic<bool>& stop) : stop_(&stop) {}
  /// The rank is wanted back: from now on the process has lease.grace_seconds, then it is killed.
  bool stop_requested() const { return *stop_; }

private:
  const std::atomic<bool>* stop_;
};

/// One object per rank, made when its first unit comes, in a process of its own that gives way to
/// decoding and stays between leases, so what it loads stays loaded. `lease.memory_bytes` and
/// `lease.cpus` hold for that process; when it dies, the next unit finds a new one.
class aux_work {
public:
  static constexpr std::size_t text_bytes_max = 65536; ///< of an input, and of a result
  virtual ~aux_work() = default;
  /// Does unit `unit`, whose input is a line of lease.callback_file, and returns its result, UTF-8,
  /// which is kept once in OUT/callback.jsonl. One call at a time, all on the same thread. Errors:
  /// aborted, it ended because `lease.stop_requested()`, and the unit is done again under another
  /// lease; any other, as an exception, is the unit's result, as "error". A unit may run again
  /// after its process was killed: what it does besides returning must bear that.
  virtual result<std::string> run(std::uint64_t unit, const std::string& input,
                                  const aux_lease& lease) = 0;
};

using aux_work_maker = std::function<std::unique_ptr<aux_work>()>;
/// At the start of the program, before `run_program`. Throws std::invalid_argument for an empty
/// name and one that is taken.
void register_aux_work(const std::string& name, aux_work_maker maker);
/// What is registered, by name; null for what is not.
const aux_work_maker* find_aux_work(const std::string& name);
std::vector<std::string> aux_work_names();

} // namespace adafloor
