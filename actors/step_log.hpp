#pragma once
// OUT/steps.csv: one line per decode step of the run, for `adafloor calibrate`. The first member of
// the group writes it; which rank that is changes with the group, so lines are appended whole.
#include "actors/engine_loop.hpp"

#include <string>

namespace adafloor {

class step_log {
public:
  /// Opens `path` for appending. Errors: io naming path and reason.
  static result<step_log> open(const std::string& path);
  step_log(step_log&& other) noexcept;
  step_log& operator=(step_log&& other) = delete;
  ~step_log();

  /// Empties the log and writes the header line; once per run, before any rank decodes.
  void begin();
  /// The engine's thread. A line that cannot be written is left out: the log is no result.
  void add(const step_record& r);

private:
  explicit step_log(int fd) : fd_(fd) {}
  void write_line(const std::string& line);
  int fd_;
};

} // namespace adafloor
