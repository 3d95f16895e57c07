#include "gpu/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace adafloor {

namespace {

/// Closes a descriptor at scope end.
struct descriptor {
  int fd = -1;
  ~descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

result<std::uint64_t> open_regular(const std::string& path, descriptor* file) {
  file->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->fd < 0) return bad_input(path + ": cannot be opened: " + std::strerror(errno));
  struct stat facts {};
  if (::fstat(file->fd, &facts) != 0 || !S_ISREG(facts.st_mode))
    return bad_input(path + ": is no regular file");
  return static_cast<std::uint64_t>(facts.st_size);
}

} // namespace

bool file_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  descriptor file;
  auto size = open_regular(path, &file);
  if (!size) return tl::unexpected(size.error());
  if (*size > bytes_max)
    return bad_input(path + ": has " + std::to_string(*size) + " bytes, allowed are at most "
                     + std::to_string(bytes_max));
  std::string text(*size, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    auto n = ::read(file.fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return bad_input(path + ": cannot be read to its end");
    have += static_cast<std::size_t>(n);
  }
  return text;
}

result<mapped_file> map_file(const std::string& path) {
  descriptor file;
  auto size = open_regular(path, &file);
  if (!size) return tl::unexpected(size.error());
  auto bytes = static_cast<std::size_t>(*size);
  if (bytes == 0) return mapped_file{};
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return bad_input(path + ": cannot be mapped: " + std::strerror(errno));
  mapped_file mapping;
  mapping.owner = std::shared_ptr<void>(data, [bytes](void* p) { ::munmap(p, bytes); });
  mapping.bytes = {static_cast<const std::byte*>(data), bytes};
  return mapping;
}

} // namespace adafloor
