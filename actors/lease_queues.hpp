#pragma once
// The queues of auxiliary work and their durable results, one append-only JSON lines file for each
// kind: OUT/sidecar.jsonl (answers), scores.jsonl, exec.jsonl, callback.jsonl. A unit's result is
// written once, with its lease and fence, whatever comes twice; what a file holds when it is opened
// is not done again. A unit that could not be done has "error" there.
#include "actors/arm_result.hpp"
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "actors/recorder.hpp"
#include "actors/unit_number.hpp"
#include "messages/catalog.hpp"

#include <array>
#include <map>
#include <optional>
#include <set>

namespace adafloor {

class lease_queues {
public:
  /// A finished response of the rollout, as scores.jsonl names it.
  struct scored_response {
    std::uint32_t arm = 0, epoch = 0; ///< places in the job
    std::uint32_t step = 0;
    std::size_t prompt = 0; ///< place in the file
    std::string prompt_id;
    std::uint32_t sample = 0;
  };
  /// Reads queries, commands and earlier results. Errors: bad_input, io.
  static result<lease_queues> open(const job& task);

  /// For the broker: how the queues are served, and every unit that has no result yet.
  std::vector<any_message> opening() const;
  /// Work that scores a response with the model in folder `model`; none if responses are not
  /// scored, or this one has its score.
  std::optional<work_unit> score(scored_response who, const std::vector<token_id>& prompt,
                                 const std::vector<token_id>& response, const std::string& model);
  /// Makes a result durable; false for a unit that was never queued. Errors: io.
  result<bool> keep(const work_result& done, const fence& stamp);
  /// Units that have their result, those of earlier tries of the job included.
  const unit_counts& counts() const { return counts_; }
  /// Waits for the disk. Errors: io.
  result<void> sync();
  /// Lines of a unit that has a line already, over all files, read back from them: what a user of
  /// the results would find. Errors: io; internal for a torn line.
  result<std::uint64_t> duplicates() const;

private:
  struct queue {
    std::optional<durable_file> file;
    std::set<std::uint64_t> kept; ///< places
    queue_settings served;
  };
  explicit lease_queues(const job& task) : task_(&task) {}
  result<void> open_file(work_kind kind, const char* name, const queue_settings& served);
  result<void> read_commands();
  queue& of(work_kind kind) { return queues_[queue_of(kind)]; }
  const queue& of(work_kind kind) const { return queues_[queue_of(kind)]; }
  std::vector<work_unit> units() const;
  void count(work_kind kind, bool correct, bool failed);
  std::optional<std::string> line_of(const work_result& done, const fence& stamp, bool& correct);

  const job* task_;
  std::vector<prompt> queries_;
  std::vector<std::vector<std::string>> commands_;
  std::vector<std::string> inputs_;                 ///< of callbacks
  std::map<std::uint64_t, scored_response> scored_; ///< by place, queued and not kept
  unit_counts counts_;
  std::array<queue, queue_of(enum_max(work_kind{})) + 1> queues_;
};

/// Commands of auxiliary work: lines `{"command": "text for /bin/sh"}` or `{"command": ["program",
/// "argument", ...]}`. Errors: bad_input naming `file`:line and what is allowed.
result<std::vector<std::vector<std::string>>> load_commands(const std::string& file);

/// Inputs of callbacks: the lines that are not blank. Errors: bad_input naming `file`:line.
result<std::vector<std::string>> load_inputs(const std::string& file);

} // namespace adafloor
