#pragma once
// What happens in a run, one JSON object a line: to the launcher (a pipe) and to OUT/events.jsonl.
// Seconds count from the stream's beginning.
#include "actors/recorder.hpp"
#include "messages/types.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace adafloor {

using json = nlohmann::ordered_json;

class event_stream {
public:
  /// `fd` -1: only the file. Owns `fd`. Errors: io.
  static result<event_stream> open(const std::string& path, int fd, microseconds began_at);
  event_stream(event_stream&& other) noexcept;
  event_stream& operator=(event_stream&& other) = delete;
  ~event_stream();

  /// {"event": name, ...fields}. A launcher that is gone does not stop the run's books.
  void emit(const char* name, json fields);
  /// Seconds from the beginning to `at`, a CLOCK_MONOTONIC time.
  double seconds(microseconds at) const;

private:
  event_stream(durable_file file, int fd, microseconds began_at);
  durable_file file_;
  int fd_;
  microseconds began_at_;
};

/// Seconds as JSON numbers, to the microsecond.
double seconds_of(microseconds duration);

} // namespace adafloor
