#include "actors/reliable_channel.hpp"

#include <algorithm>
#include <utility>

namespace adafloor {

namespace {
constexpr std::size_t retransmit_batch = 32; // frames per expiry of the timer
}

reliable_channel::reliable_channel(channel_config c, time_point now)
  : config_(std::move(c)), hello_wait_(config_.hello_interval),
    retransmit_wait_(config_.retransmit_min), last_heard_(now), waiting_since_(now) {
  say_hello(now);
}

frame_header reliable_channel::header(frame_type t) const {
  frame_header h;
  h.type = t;
  h.sender = config_.self;
  h.from = config_.own;
  h.to = config_.theirs;
  return h;
}

void reliable_channel::say_hello(time_point now) {
  transmission t{header(frame_type::hello), nullptr, false};
  t.header.heard = state_ == state::open;
  t.header.seq = config_.version_min;
  t.header.reach = config_.version_max;
  out_.push_back(std::move(t));
  hello_at_ = now + hello_wait_;
}

bool reliable_channel::has_room_for(std::size_t payload_bytes) const {
  if (unconsumed_sizes_.empty()) return true;
  return unconsumed_sizes_.size() < config_.window_frames
         && unconsumed_bytes_ + payload_bytes <= config_.window_bytes;
}

bool reliable_channel::is_half_empty() const {
  return unconsumed_sizes_.size() * 2 <= config_.window_frames
         && unconsumed_bytes_ * 2 <= config_.window_bytes;
}

bool reliable_channel::offer(std::string payload, time_point now) {
  const bool fits =
      unconsumed_sizes_.empty() || unconsumed_bytes_ + payload.size() <= config_.window_bytes;
  if (!fits || unconsumed_sizes_.size() >= config_.window_frames) return false;
  if (unconsumed_sizes_.empty()) waiting_since_ = now;
  unconsumed_sizes_.push_back(payload.size());
  unconsumed_bytes_ += payload.size();
  ++counters_.frames_sent;
  counters_.bytes_sent += payload.size();
  unacked_.push_back({next_seq_++, std::make_shared<const std::string>(std::move(payload)), now});
  if (state_ == state::open) transmit(unacked_.back(), false, now);
  return true;
}

void reliable_channel::transmit(sent_frame& f, bool again, time_point now) {
  transmission t{header(frame_type::data), f.payload, again};
  t.header.seq = f.seq;
  out_.push_back(std::move(t));
  f.sent_at = now;
  if (again) ++counters_.retransmitted;
  if (!retransmit_at_) retransmit_at_ = now + retransmit_wait_;
}

void reliable_channel::open(time_point now) {
  if (state_ == state::open) return;
  state_ = state::open;
  waiting_since_ = now;
  for (auto& f : unacked_)
    transmit(f, false, now);
}

void reliable_channel::receive(const frame& f, time_point now) {
  if (f.header.from != config_.theirs || f.header.to != config_.own) {
    ++counters_.stale;
    return;
  }
  last_heard_ = now;
  if (f.header.type == frame_type::hello) return receive_hello(f.header, now);
  if (state_ == state::refused) return;
  peer_heard_ = true; // it sends these only after our hello
  hello_at_.reset();
  // Its own hello may be late or lost: it speaks a version that we offered, so go on.
  open(now);
  receive_ack(f.header, now);
  if (f.header.type == frame_type::data) receive_data(f, now);
  if (f.header.wants_ack) ack_at_ = now;
  if (f.header.type == frame_type::resend) receive_resend(f.header, now);
}

void reliable_channel::receive_hello(const frame_header& h, time_point now) {
  if (h.seq > config_.version_max || h.reach < config_.version_min) {
    state_ = state::refused;
    hello_at_.reset();
    retransmit_at_.reset();
    return;
  }
  open(now);
  peer_heard_ = peer_heard_ || h.heard;
  if (!h.heard) say_hello(now);
  if (peer_heard_) hello_at_.reset();
}

void reliable_channel::receive_ack(const frame_header& h, time_point now) {
  if (h.ack >= next_seq_ || h.consumed > h.ack) return; // no honest peer says so
  bool progress = false;
  while (!unacked_.empty() && unacked_.front().seq <= h.ack) {
    unacked_.pop_front();
    progress = true;
  }
  while (consumed_by_peer_ < h.consumed) {
    ++consumed_by_peer_;
    unconsumed_bytes_ -= unconsumed_sizes_.front();
    unconsumed_sizes_.pop_front();
  }
  if (unconsumed_sizes_.empty()) {
    retransmit_at_.reset();
    retransmit_wait_ = config_.retransmit_min;
  } else if (progress) {
    waiting_since_ = now;
    retransmit_wait_ = config_.retransmit_min;
    retransmit_at_ = now + retransmit_wait_;
  }
}

void reliable_channel::receive_data(const frame& f, time_point now) {
  const std::uint64_t seq = f.header.seq;
  if (seq <= arrived_ || early_.count(seq) != 0) {
    ++counters_.duplicates;
    ack_at_ = now; // the acknowledgement may have been lost
    return;
  }
  if (seq > consumed_ + config_.window_frames) {
    ++counters_.beyond_window;
    return;
  }
  if (seq != arrived_ + 1) {
    if (early_bytes_ + f.payload.size() > config_.window_bytes && !early_.empty()) return;
    const bool new_gap = early_.empty();
    early_.emplace(seq, std::string(f.payload));
    early_bytes_ += f.payload.size();
    if (new_gap) ask_for_gap(now);
    return;
  }
  ready_.emplace_back(f.payload);
  ++arrived_;
  bool filled = false;
  for (auto it = early_.begin(); it != early_.end() && it->first == arrived_ + 1;) {
    early_bytes_ -= it->second.size();
    ready_.push_back(std::move(it->second));
    ++arrived_;
    it = early_.erase(it);
    filled = true;
  }
  if (early_.empty())
    gap_asked_at_.reset();
  else if (filled)
    ask_for_gap(now);
  owe_ack(now);
}

void reliable_channel::ask_for_gap(time_point now) {
  transmission t{header(frame_type::resend), nullptr, false};
  t.header.seq = arrived_ + 1;
  t.header.reach = early_.begin()->first - 1;
  out_.push_back(std::move(t));
  ++counters_.gaps;
  gap_asked_at_ = now;
}

void reliable_channel::receive_resend(const frame_header& h, time_point now) {
  std::size_t sent = 0;
  for (auto& f : unacked_) {
    if (f.seq > h.reach || sent == retransmit_batch) break;
    if (f.seq < h.seq) continue;
    transmit(f, true, now);
    ++sent;
  }
}

void reliable_channel::pop(time_point now) {
  counters_.bytes_received += ready_.front().size();
  ++counters_.frames_received;
  ready_.pop_front();
  ++consumed_;
  owe_ack(now);
}

void reliable_channel::owe_ack(time_point now) {
  if (consumed_ - told_consumed_ >= std::max<std::size_t>(config_.window_frames / 4, 1))
    ack_at_ = now;
  else if (!ack_at_)
    ack_at_ = now + config_.ack_delay;
}

void reliable_channel::tick(time_point now) {
  if (hello_owed() && hello_at_ && *hello_at_ <= now) {
    hello_wait_ = std::min(hello_wait_ * 2, config_.retransmit_max);
    say_hello(now);
  }
  if (state_ != state::open) return;
  if (retransmit_at_ && *retransmit_at_ <= now) transmit_again(now);
  if (gap_asked_at_ && *gap_asked_at_ + config_.resend_interval <= now) ask_for_gap(now);
}

// Repeats what is unacknowledged; where all has arrived but is not consumed, asks how far the peer
// is: the acknowledgement that opens the window again may have been lost.
void reliable_channel::transmit_again(time_point now) {
  std::size_t sent = 0;
  for (auto& f : unacked_) {
    if (sent == retransmit_batch || f.sent_at + config_.retransmit_min > now) break;
    transmit(f, true, now);
    ++sent;
  }
  if (unacked_.empty()) {
    out_.push_back({header(frame_type::ack), nullptr, true});
    out_.back().header.wants_ack = true;
    ++sent;
  }
  if (sent > 0) retransmit_wait_ = std::min(retransmit_wait_ * 2, config_.retransmit_max);
  retransmit_at_ = now + retransmit_wait_;
}

std::optional<time_point> reliable_channel::wake_at() const {
  std::optional<time_point> first;
  const auto consider = [&first](const std::optional<time_point>& t) {
    if (t && (!first || *t < *first)) first = t;
  };
  if (hello_owed()) consider(hello_at_);
  if (state_ != state::open) return first;
  consider(retransmit_at_);
  consider(ack_at_);
  if (gap_asked_at_) consider(*gap_asked_at_ + config_.resend_interval);
  return first;
}

std::vector<transmission> reliable_channel::take_transmissions(time_point now) {
  const bool carried = std::any_of(out_.begin(), out_.end(), [](const transmission& t) {
    return t.header.type != frame_type::hello;
  });
  if (state_ == state::open && ack_at_ && *ack_at_ <= now && !carried)
    out_.push_back({header(frame_type::ack), nullptr, false});
  auto taken = std::exchange(out_, {});
  for (auto& t : taken) { // every frame carries the latest acknowledgement
    if (t.header.type == frame_type::hello) continue;
    t.header.ack = arrived_;
    t.header.consumed = consumed_;
    told_consumed_ = consumed_;
    ack_at_.reset();
  }
  return taken;
}

bool reliable_channel::is_silent(time_point now) const {
  const bool waits = !unconsumed_sizes_.empty() || (hello_owed() && state_ != state::refused);
  return waits && now - std::max(last_heard_, waiting_since_) >= config_.silent_after;
}

} // namespace adafloor
