#pragma once
// Append-only result files. A line is written with one write(2) before it is acknowledged, so it
// survives the process; `sync` makes it survive the machine.
#include "messages/result.hpp"

#include <string>
#include <string_view>

namespace adafloor {

class durable_file {
public:
  /// Creates or continues `path`. A torn last line of a crashed writer is cut off.
  /// Errors: io naming path and reason.
  static result<durable_file> open(const std::string& path);
  durable_file(durable_file&& other) noexcept;
  durable_file& operator=(durable_file&& other) noexcept;
  ~durable_file();

  /// Appends `line` and an end of line. Errors: io (full disk, say); then nothing of it stays.
  result<void> append(std::string_view line);
  /// Waits until the disk has everything.
  result<void> sync();
  const std::string& path() const { return path_; }
  /// What the file held when it was opened, complete lines only.
  const std::string& earlier() const { return earlier_; }

private:
  durable_file() = default;
  std::string path_;
  std::string earlier_;
  int fd_ = -1;
  long long size_ = 0;
};

} // namespace adafloor
