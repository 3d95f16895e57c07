#pragma once
// Envelopes between two processes of one machine: a length and that many bytes each
// (messages/codec), over a stream socket that is never waited for.
#include "messages/catalog.hpp"
#include "messages/result.hpp"

#include <optional>
#include <string>
#include <utility>

namespace adafloor {

/// Thread: one makes all calls.
class envelope_stream {
public:
  /// Owns `fd`, a connected stream socket, from here on.
  explicit envelope_stream(int fd);
  envelope_stream(envelope_stream&& other) noexcept;
  envelope_stream& operator=(envelope_stream&&) = delete;
  ~envelope_stream();
  /// Both ends of a new one; closed by exec. Errors: io.
  static result<std::pair<int, int>> open_pair();

  int fd() const { return fd_; }
  /// Queues `e` and sends what the socket takes; the rest goes with later calls of send and flush.
  /// Nothing happens once the other end is gone, which `receive` tells.
  void send(const envelope& e);
  void flush();
  /// Call flush when the socket takes more (POLLOUT).
  bool unsent() const { return !out_.empty(); }
  /// The next envelope that has arrived as a whole, or none yet. Errors: peer_lost, the other end
  /// is gone; internal, it sent what is no envelope.
  result<std::optional<envelope>> receive();

private:
  int fd_;
  std::string in_, out_;
};

} // namespace adafloor
