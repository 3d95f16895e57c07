#pragma once
// Append-only result files. A line is written with one write(2) before it is acknowledged, so it
// survives the process; `sync` makes it survive the machine.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace adafloor {

/// How many leading bytes of a file are whole records, its torn end left out.
using whole_part = std::function<std::size_t(std::string_view)>;
std::size_t whole_lines(std::string_view bytes);

/// Appends `,"name":[...]` to a JSON line, each number as short as it reads back (what is not
/// finite as null): ten times as fast as a JSON tree, and the group may be waiting for the answer.
void append_list(std::string& out, const char* name, const std::vector<token_id>& numbers);
void append_list(std::string& out, const char* name, const std::vector<float>& numbers);

/// Reads the last such list of a line, with the bits that were written. False if it is not there,
/// or a number of it is none; null is not a number, either.
bool read_list(std::string_view line, const char* name, std::vector<token_id>& numbers);
bool read_list(std::string_view line, const char* name, std::vector<float>& numbers);

/// Replaces `path` in one go: a reader sees the old content or the new, never a part. Errors: io.
result<void> write_whole_file(const std::string& path, const std::string& content);

class durable_file {
public:
  /// Creates or continues `path`. A torn last record of a crashed writer is cut off.
  /// Errors: io naming path and reason.
  static result<durable_file> open(const std::string& path, const whole_part& whole = whole_lines);
  durable_file(durable_file&& other) noexcept;
  durable_file& operator=(durable_file&& other) noexcept;
  ~durable_file();

  /// Appends `line` and an end of line. Errors: io (full disk, say); then nothing of it stays.
  result<void> append(std::string_view line);
  /// Appends the bytes as they are. Errors as `append`.
  result<void> append_record(std::string_view bytes);
  /// Waits until the disk has everything.
  result<void> sync();
  const std::string& path() const { return path_; }
  /// What the file held when it was opened, whole records only; a second call finds nothing.
  std::string take_earlier() { return std::exchange(earlier_, {}); }

private:
  durable_file() = default;
  std::string path_;
  std::string earlier_;
  int fd_ = -1;
  long long size_ = 0;
};

} // namespace adafloor
