#pragma once
// The reliability of the control link between two processes, without any I/O: sequence numbers,
// cumulative acknowledgements, duplicates dropped, gaps re-requested, a retransmission timer and a
// bounded window. Time is an argument. One instance per peer on each side.
#include "messages/frame.hpp"
#include "messages/types.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

struct channel_config {
  rank_id self;
  incarnation_id own;
  rank_id peer;
  incarnation_id theirs;
  std::uint16_t version_min = 1, version_max = 1; ///< of the conversation
  std::size_t window_frames = 1024;               ///< offered and not yet consumed by the peer
  std::size_t window_bytes = 8 << 20;             ///< the same; a single frame always fits
  microseconds hello_interval{20'000};            ///< doubles up to retransmit_max
  microseconds retransmit_min{100'000};
  microseconds retransmit_max{2'000'000};
  microseconds ack_delay{2'000};
  microseconds resend_interval{20'000}; ///< a gap is asked for again after this
  microseconds silent_after{10'000'000};
};

struct channel_counters {
  std::uint64_t frames_sent = 0, bytes_sent = 0;         ///< first transmissions of payloads
  std::uint64_t frames_received = 0, bytes_received = 0; ///< handed over
  std::uint64_t retransmitted = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t gaps = 0;
  std::uint64_t stale = 0;
  std::uint64_t beyond_window = 0;
};

/// A frame that the shell shall send. It may be dropped: only first transmissions of data are
/// not repeated for at least `retransmit_min`.
struct transmission {
  frame_header header;
  std::shared_ptr<const std::string> payload; ///< data only
  bool again = false;                         ///< a retransmission
};

class reliable_channel {
public:
  enum class state : std::uint8_t { greeting = 1, open, refused };

  reliable_channel(channel_config c, time_point now);

  /// False: the window is full, nothing was taken.
  bool offer(std::string payload, time_point now);
  bool has_room_for(std::size_t payload_bytes) const;
  /// At most half of the window is in use.
  bool is_half_empty() const;

  /// A decoded frame from this peer's rank. `payload` is copied when it is kept.
  void receive(const frame& f, time_point now);
  void tick(time_point now);
  /// When `tick` has something to do; nothing while all is quiet.
  std::optional<time_point> wake_at() const;

  /// The next payload in order, or null. Stays until `pop`.
  const std::string* front() const { return ready_.empty() ? nullptr : &ready_.front(); }
  void pop(time_point now);

  /// What to send now; empties the list.
  std::vector<transmission> take_transmissions(time_point now);
  bool has_transmissions() const { return !out_.empty(); }

  state current_state() const { return state_; }
  std::size_t window_frames_used() const { return unconsumed_sizes_.size(); }
  std::size_t window_bytes_used() const { return unconsumed_bytes_; }
  /// The peer has acknowledged everything that was offered.
  bool is_settled() const { return unacked_.empty(); }
  /// Something waits for the peer, and nothing was heard from it for `silent_after`.
  bool is_silent(time_point now) const;
  time_point last_heard() const { return last_heard_; }
  const channel_counters& counters() const { return counters_; }
  const channel_config& config() const { return config_; }

private:
  struct sent_frame {
    std::uint64_t seq;
    std::shared_ptr<const std::string> payload;
    time_point sent_at;
  };
  frame_header header(frame_type t) const;
  void say_hello(time_point now);
  void receive_hello(const frame_header& h, time_point now);
  void receive_data(const frame& f, time_point now);
  void receive_ack(const frame_header& h, time_point now);
  void receive_resend(const frame_header& h, time_point now);
  void transmit(sent_frame& f, bool again, time_point now);
  void transmit_again(time_point now);
  void open(time_point now);
  void ask_for_gap(time_point now);
  void owe_ack(time_point now);
  bool hello_owed() const { return state_ != state::refused && !peer_heard_; }

  channel_config config_;
  state state_ = state::greeting;
  bool peer_heard_ = false; // the peer has our hello
  std::optional<time_point> hello_at_;
  microseconds hello_wait_;

  std::uint64_t next_seq_ = 1;
  std::deque<sent_frame> unacked_;
  std::deque<std::size_t> unconsumed_sizes_; // of consumed_by_peer_ + 1, ...
  std::size_t unconsumed_bytes_ = 0;
  std::uint64_t consumed_by_peer_ = 0;
  microseconds retransmit_wait_;
  std::optional<time_point> retransmit_at_;

  std::uint64_t arrived_ = 0;  // all data up to here is here
  std::uint64_t consumed_ = 0; // all data up to here was popped
  std::deque<std::string> ready_;
  std::map<std::uint64_t, std::string> early_; // beyond a gap
  std::size_t early_bytes_ = 0;
  std::optional<time_point> gap_asked_at_;
  std::uint64_t told_consumed_ = 0;
  std::optional<time_point> ack_at_;

  time_point last_heard_, waiting_since_;
  std::vector<transmission> out_;
  channel_counters counters_;
};

} // namespace adafloor
