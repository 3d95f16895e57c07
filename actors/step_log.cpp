#include "actors/step_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace adafloor {

result<step_log> step_log::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0)
    return fail(error_code::io, "cannot open " + path + ": " + std::strerror(errno)
                                    + "; choose another --out folder");
  return step_log(fd);
}

step_log::step_log(step_log&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

step_log::~step_log() {
  if (fd_ >= 0) ::close(fd_);
}

void step_log::begin() {
  [[maybe_unused]] const auto emptied = ::ftruncate(fd_, 0);
  write_line("step,group_size,active,max_kv,seconds");
}

void step_log::add(const step_record& r) {
  write_line(std::to_string(r.step) + ',' + std::to_string(r.group_size) + ','
             + std::to_string(r.active) + ',' + std::to_string(r.max_kv_tokens) + ','
             + std::to_string(r.seconds));
}

void step_log::write_line(const std::string& line) {
  const auto text = line + '\n';
  [[maybe_unused]] const auto written = ::write(fd_, text.data(), text.size());
}

} // namespace adafloor
