#include "actors/event_stream.hpp"

#include <unistd.h>

#include <utility>

namespace adafloor {

double seconds_of(microseconds duration) {
  return static_cast<double>(duration.count()) / 1e6;
}

result<event_stream> event_stream::open(const std::string& path, int fd, microseconds began_at) {
  auto file = durable_file::open(path);
  if (!file) return tl::unexpected(file.error());
  return event_stream(std::move(*file), fd, began_at);
}

event_stream::event_stream(durable_file file, int fd, microseconds began_at)
  : file_(std::move(file)), fd_(fd), began_at_(began_at) {}

event_stream::event_stream(event_stream&& other) noexcept
  : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)), began_at_(other.began_at_) {}

event_stream::~event_stream() {
  if (fd_ >= 0) ::close(fd_);
}

void event_stream::emit(const char* name, json fields) {
  json line{{"event", name}};
  line.update(fields);
  const auto text = line.dump();
  if (auto r = file_.append(text); !r) std::fprintf(stderr, "%s\n", r.error().text.c_str());
  if (fd_ < 0) return;
  const auto out = text + "\n";
  for (std::size_t done = 0; done < out.size();) {
    const auto n = ::write(fd_, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return; // The launcher is gone; the liveness watch ends this process.
    done += static_cast<std::size_t>(n);
  }
}

double event_stream::seconds(microseconds at) const {
  return seconds_of(at - began_at_);
}

} // namespace adafloor
