#pragma once
// The control link of one process to all others: ordered, reliable, bounded frames over UCX active
// messages. One owner thread has the UCX worker and sleeps while there is nothing to do; senders
// queue and signal. Reliability (sequence numbers, acknowledgements, windows) is in
// reliable_channel.hpp; this file moves its frames.
#include "actors/ucx_options.hpp"
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

/// What became of a frame that was handed to `ucx_link::post`.
enum class post_status : std::uint8_t {
  accepted = 1, ///< will be delivered once and in order, or its peer is reported
  busy,         ///< the window to this peer is full; keep the frame and try again (on_space)
  too_large,    ///< above options::frame_bytes_max
  unknown_peer, ///< no `connect` for this rank
  closed,       ///< the link is closed
};

struct link_stats {
  std::uint64_t frames_sent = 0, frames_received = 0; ///< payload frames, retransmissions excluded
  std::uint64_t bytes_sent = 0, bytes_received = 0;   ///< payload bytes
  std::uint64_t retransmitted = 0;                    ///< frames sent again
  std::uint64_t duplicates = 0;                       ///< received again and dropped
  std::uint64_t gaps = 0;                             ///< ranges that were re-requested
  std::uint64_t crc_errors = 0;                       ///< frames whose CRC32C was wrong
  std::uint64_t undecodable = 0;                      ///< wrong magic, length or type
  std::uint64_t unknown_version = 0;
  std::uint64_t stale = 0;         ///< from or for an old incarnation, dropped
  std::uint64_t beyond_window = 0; ///< a sequence number no honest peer could use yet, dropped
  std::uint64_t busy = 0;          ///< posts that were turned away
  std::uint64_t reconnects = 0;
};

class ucx_link {
public:
  struct options {
    rank_id self;
    incarnation_id incarnation;
    std::uint32_t world_size = 1;
    ucx_options ucx;
    std::size_t frame_bytes_max = 1 << 20; ///< payload of one frame
    std::size_t window_frames = 1024;      ///< per peer: posted and not yet acknowledged
    std::size_t window_bytes = 8 << 20;    ///< per peer; one frame always fits
    microseconds spin{0};                  ///< poll this long before sleeping; 0 = never
    microseconds silent_after{10'000'000}; ///< unacknowledged for so long: `silent` is reported
  };
  /// Owner thread; must not block. True: consumed. False: keep it and offer it again soon (1 ms);
  /// the frames stay unacknowledged, so the sender's window fills and its `post` answers busy.
  using frame_handler = std::function<bool(rank_id from, std::string_view frame)>;
  using event_handler = std::function<void(const peer_event&)>; ///< owner thread; must not block
  using space_handler = std::function<void(rank_id to)>;        ///< owner thread; must not block

  /// Starts the owner thread. Errors: io (no such transport or device; says how to choose).
  static result<std::unique_ptr<ucx_link>> open(options o);
  ~ucx_link(); ///< closes

  /// Opaque bytes for the other processes' `connect`.
  const std::string& address() const;

  // Handlers are set before the first connect and not changed afterwards.
  void on_frame(frame_handler h);
  void on_peer_event(event_handler h);
  /// After a `busy`, once half of the window to that peer is free again.
  void on_space(space_handler h);

  /// Any thread; returns at once, the handshake runs in the background and posted frames wait for
  /// it. A second call with the same incarnation makes a new endpoint and keeps what is
  /// unacknowledged; with another incarnation it forgets the old one, frames included.
  /// Self is allowed. Errors: bad_input (rank outside the world, no frame handler), aborted.
  result<void> connect(rank_id peer, std::string address, incarnation_id incarnation);
  /// Forgets a peer: nothing is sent to it or taken from it until the next connect. Any thread.
  void disconnect(rank_id peer);

  /// Any thread, never blocks.
  post_status post(rank_id to, std::string frame);

  /// True once everything posted to all live peers is acknowledged; false at the deadline.
  bool flush(microseconds timeout);
  link_stats stats(rank_id peer) const;
  link_stats stats() const; ///< sum over peers, and frames of unknown senders

  /// Ends the owner thread. What is unacknowledged is lost: `flush` first. Idempotent.
  void close();

private:
  struct impl;
  explicit ucx_link(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

} // namespace adafloor
