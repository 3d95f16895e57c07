#pragma once
// OUT/books.jsonl: where a job stands, a line when an arm begins and one for each step that is
// over, with what it added to the arm's books. With responses.jsonl and tokens.log it is what a job
// goes on from after a crash.
#include "actors/arm_result.hpp"
#include "actors/recorder.hpp"

#include <optional>
#include <string>

namespace adafloor {

/// A step of the job; all steps before it are over.
struct job_point {
  std::uint32_t arm = 0;   ///< place in the job
  std::uint32_t epoch = 0; ///< of the arm
  std::uint32_t step = 0;  ///< of the epoch
  FIELDS(job_point, arm, epoch, step)
  friend bool operator<(const job_point& a, const job_point& b) { return a.fields() < b.fields(); }
};

/// A line of the file.
struct books_line {
  job_point next;             ///< the step to come
  std::uint64_t rollouts = 0; ///< steps that are over, in the whole job
  double unix_seconds = 0;    ///< when the line was written
  unit_counts units_before;   ///< in the result files when the arm began
  arm_sums sums;              ///< of the arm so far
  arm_lists added;            ///< to the arm since the last line
  FIELDS(books_line, next, rollouts, unix_seconds, units_before, sums, added)
};

class step_books {
public:
  /// Creates or continues `path`. Errors: io; bad_input naming a line that is not one of its own.
  static result<step_books> open(const std::string& path);

  /// Appends a line, with the time of the wall clock. Errors: io.
  result<void> append(books_line line);
  /// Waits for the disk. Errors: io.
  result<void> sync() { return file_.sync(); }

  /// There are lines of an earlier try of the job.
  bool continues() const { return earlier_.has_value(); }
  /// The newest of them, with everything that was added to its arm.
  const books_line& earlier() const { return *earlier_; }
  /// From the first line to now, and from the newest to now, by the wall clock; at least 0.
  double seconds_since_first() const;
  double seconds_since_newest() const;

private:
  explicit step_books(durable_file file) : file_(std::move(file)) {}
  durable_file file_;
  std::optional<books_line> earlier_;
  double first_at_ = 0;
};

} // namespace adafloor
