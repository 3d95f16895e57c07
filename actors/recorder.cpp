#include "actors/recorder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

namespace adafloor {
namespace {

tl::unexpected<error> io_failure(const std::string& what, const std::string& path) {
  return fail(error_code::io, what + " " + path + ": " + std::strerror(errno)
                                  + "; free space or choose another --out folder");
}

template <class T>
void append_numbers(std::string& out, const char* name, const std::vector<T>& numbers) {
  out += std::string(",\"") + name + "\":[";
  char text[32];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    bool finite = true;
    if constexpr (std::is_floating_point_v<T>) finite = std::isfinite(numbers[i]);
    if (!finite) {
      out += "null";
      continue;
    }
    const auto end = std::to_chars(text, text + sizeof text, numbers[i]).ptr;
    out.append(text, end);
  }
  out += ']';
}

template <class T>
bool read_numbers(std::string_view line, const char* name, std::vector<T>& numbers) {
  const auto head = std::string(",\"") + name + "\":[";
  const auto begin = line.rfind(head);
  if (begin == std::string_view::npos) return false;
  line.remove_prefix(begin + head.size());
  numbers.clear();
  while (!line.empty() && line.front() != ']') {
    if (!numbers.empty()) {
      if (line.front() != ',') return false;
      line.remove_prefix(1);
    }
    T number{};
    const auto read = std::from_chars(line.data(), line.data() + line.size(), number);
    if (read.ec != std::errc{}) return false;
    numbers.push_back(number);
    line.remove_prefix(static_cast<std::size_t>(read.ptr - line.data()));
  }
  return !line.empty();
}

} // namespace

void append_list(std::string& out, const char* name, const std::vector<token_id>& numbers) {
  append_numbers(out, name, numbers);
}

void append_list(std::string& out, const char* name, const std::vector<float>& numbers) {
  append_numbers(out, name, numbers);
}

bool read_list(std::string_view line, const char* name, std::vector<token_id>& numbers) {
  return read_numbers(line, name, numbers);
}

bool read_list(std::string_view line, const char* name, std::vector<float>& numbers) {
  return read_numbers(line, name, numbers);
}

result<void> write_whole_file(const std::string& path, const std::string& content) {
  const auto part = path + ".part";
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  std::size_t done = 0;
  while (fd >= 0 && done < content.size()) {
    const auto size = ::write(fd, content.data() + done, content.size() - done);
    if (size <= 0) break;
    done += static_cast<std::size_t>(size);
  }
  const bool whole = fd >= 0 && done == content.size() && ::fsync(fd) == 0;
  if (fd >= 0) ::close(fd);
  if (whole && std::rename(part.c_str(), path.c_str()) == 0) return {};
  ::unlink(part.c_str());
  return fail(error_code::io, path + ": cannot be written; is the disk full?");
}

std::size_t whole_lines(std::string_view bytes) {
  const auto end = bytes.rfind('\n');
  return end == std::string_view::npos ? 0 : end + 1;
}

result<durable_file> durable_file::open(const std::string& path, const whole_part& whole) {
  durable_file f;
  f.path_ = path;
  f.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (f.fd_ < 0) return io_failure("cannot open", path);
  struct stat about {};
  if (::fstat(f.fd_, &about) != 0 || !S_ISREG(about.st_mode))
    return fail(error_code::io, path + " is not a regular file; choose another --out folder");
  char chunk[65536];
  ssize_t got = 0;
  while ((got = ::read(f.fd_, chunk, sizeof chunk)) > 0)
    f.earlier_.append(chunk, static_cast<std::size_t>(got));
  if (got < 0) return io_failure("cannot read", path);
  f.earlier_.resize(whole(f.earlier_));
  f.size_ = static_cast<long long>(f.earlier_.size());
  if (::ftruncate(f.fd_, f.size_) != 0) return io_failure("cannot cut the torn end of", path);
  if (::lseek(f.fd_, f.size_, SEEK_SET) < 0) return io_failure("cannot seek in", path);
  return f;
}

durable_file::durable_file(durable_file&& other) noexcept {
  *this = std::move(other);
}

durable_file& durable_file::operator=(durable_file&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(earlier_, other.earlier_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

durable_file::~durable_file() {
  if (fd_ >= 0) ::close(fd_);
}

result<void> durable_file::append(std::string_view line) {
  return append_record(std::string(line) + '\n');
}

result<void> durable_file::append_record(std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = ::write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      auto failure = io_failure("cannot write", path_);
      if (::ftruncate(fd_, size_) == 0) ::lseek(fd_, size_, SEEK_SET);
      return failure;
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += static_cast<long long>(text.size());
  return {};
}

result<void> durable_file::sync() {
  if (::fdatasync(fd_) != 0) return io_failure("cannot sync", path_);
  return {};
}

} // namespace adafloor
