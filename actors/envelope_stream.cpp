#include "actors/envelope_stream.hpp"

#include "actors/bootstrap_wire.hpp"
#include "messages/codec.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace adafloor {

envelope_stream::envelope_stream(int fd) : fd_(fd) {
  fcntl(fd_, F_SETFL, O_NONBLOCK); // NOLINT
}

envelope_stream::envelope_stream(envelope_stream&& other) noexcept
  : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)), out_(std::move(other.out_)) {}

envelope_stream::~envelope_stream() {
  if (fd_ >= 0) close(fd_);
}

result<std::pair<int, int>> envelope_stream::open_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(error_code::io, std::string("no socket pair: ") + std::strerror(errno)
                                    + "; allow more open files (ulimit -n)");
  return std::pair(ends[0], ends[1]);
}

void envelope_stream::send(const envelope& e) {
  out_ += framed(encode(e));
  flush();
}

void envelope_stream::flush() {
  while (!out_.empty()) {
    const auto sent = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) out_.clear(); // Nobody is there to read it.
    if (sent < 0) return;
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

result<std::optional<envelope>> envelope_stream::receive() {
  constexpr std::size_t part = 65536;
  for (bool more = true;;) {
    std::string frame;
    const auto state = take_frame(in_, frame_bytes_max, &frame);
    if (state == frame_state::whole) {
      auto e = decode(frame);
      if (!e) return fail(error_code::internal, "a frame that is no envelope");
      return e;
    }
    if (state == frame_state::too_long)
      return fail(error_code::internal, "a frame beyond the limit");
    if (!more) return std::nullopt;
    const auto had = in_.size();
    in_.resize(had + part);
    const auto got = ::recv(fd_, in_.data() + had, part, 0);
    in_.resize(had + static_cast<std::size_t>(got < 0 ? 0 : got));
    if (got < 0 && errno == EINTR) continue;
    more = got > 0;
    if (got == 0 || (got < 0 && errno != EAGAIN))
      return fail(error_code::peer_lost, "the other process is gone");
  }
}

} // namespace adafloor
