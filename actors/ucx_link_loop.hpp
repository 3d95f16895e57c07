#pragma once
// The inside of ucx_link: what senders and the owner thread share, and the owner thread's loop.
#include "actors/reliable_channel.hpp"
#include "actors/ucx_link.hpp"
#include "actors/ucx_worker.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace adafloor {

struct ucx_link::impl {
  /// Between senders and the owner; under `mutex`.
  struct mailbox {
    bool known = false, live = false;
    incarnation_id incarnation;
    std::deque<std::string> posted;
    std::size_t posted_bytes = 0;
    std::size_t used_frames = 0, used_bytes = 0; // of the window, beyond `posted`
    bool was_busy = false;
    std::uint64_t busy = 0;
    link_stats stats;
  };
  /// The owner's.
  struct peer {
    rank_id rank;
    std::string address;
    incarnation_id incarnation;
    std::optional<reliable_channel> channel; // none for self
    std::deque<std::string> to_self;
    std::unique_ptr<ucx_endpoint> endpoint;
    std::size_t sends_pending = 0; // frames that UCX holds
    std::uint64_t life = 0;        // of the endpoint; tells late completions apart
    bool lost = false, silent = false, refused = false;
    std::optional<time_point> reconnect_at, offer_again_at;
    std::map<peer_event_kind, time_point> told; // when faults were reported
    microseconds reconnect_wait{0};
    int reconnects_left = 0;
    bool dirty = true;
    link_stats base; // of earlier incarnations, and what no channel counts
  };
  struct sending;
  struct command {
    rank_id peer;
    bool forget = false;
    std::string address;
    incarnation_id incarnation;
  };

  explicit impl(options given) : o(std::move(given)), boxes(o.world_size), peers(o.world_size) {}

  // Any thread.
  post_status post(rank_id to, std::string frame);
  void submit(command c);
  void stop();

  // Owner thread.
  void run();
  bool take_work(time_point now);
  void carry_out(const command& c, time_point now);
  void take_posted(peer& p, std::deque<std::string> posted, time_point now);
  void deliver(peer& p, time_point now);
  void pump(peer& p, time_point now);
  void send(peer& p, const transmission& t);
  void look_after(peer& p, time_point now);
  void reconnect(peer& p, time_point now);
  void publish();
  std::optional<time_point> next_wake() const;
  void sleep_until(std::optional<time_point> wake, int refused_arms, time_point now);
  void receive(std::string_view bytes);
  void report(peer& p, peer_event_kind kind, std::string text);
  void report_fault(std::string_view bytes, frame_fault fault);
  static ucs_status_t on_message(void* argument, const void* header, std::size_t header_size,
                                 void* data, std::size_t size, const ucp_am_recv_param_t* param);

  const options o;
  std::unique_ptr<ucx_worker> worker;
  std::string address;
  int wake_fd = -1;
  std::thread thread;

  mutable std::mutex mutex;
  std::vector<mailbox> boxes;
  std::vector<command> commands;
  std::vector<rank_id> posted_to; // boxes with something posted
  bool sleeping = false, stopping = false, stopped = false;
  std::condition_variable changed; // a window moved; for flush
  int flushing = 0;
  link_stats strangers; // frames that belong to no peer
  frame_handler handle_frame;
  event_handler handle_event;
  space_handler handle_space;

  std::vector<peer> peers;
  link_stats strangers_seen; // the owner's copy
};

} // namespace adafloor
