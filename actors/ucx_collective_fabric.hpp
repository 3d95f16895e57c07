#pragma once
// The inside of ucx_collective: endpoints, frames that arrived, frames that are on their way. Used
// by the engine's thread alone, but for the abort flags.
#include "actors/buffer_pool.hpp"
#include "actors/ucx_collective.hpp"
#include "actors/ucx_collective_frame.hpp"
#include "actors/ucx_worker.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>

namespace adafloor {

struct ucx_collective::impl {
  struct loan { // a frame that the peer reads out of this process
    std::uint64_t token;
    pooled_buffer buffer;
  };
  struct peer {
    std::string address;
    incarnation_id incarnation;
    std::unique_ptr<ucx_endpoint> endpoint;
    std::deque<arrived> frames;
    std::uint64_t neighbourhood = 0; // as its frames say
    bool unreadable = false;         // one side cannot read the other's memory
    std::map<std::pair<std::uint64_t, std::uint64_t>, loan> loans; // by epoch and turn
  };
  struct retired_worker {
    std::unique_ptr<ucx_worker> worker;
    std::vector<std::unique_ptr<ucx_endpoint>> endpoints;
  };
  struct sending;
  struct receiving;

  options o;
  std::unique_ptr<ucx_worker> worker;
  std::vector<retired_worker> retired; // until the end
  std::vector<peer> peers;
  buffer_pool pool;
  int abort_fd = -1;
  std::atomic<std::uint64_t> aborted_up_to{0};
  std::atomic<bool> anything_aborted{false};
  epoch_id floor;          // of the group that exchanged last
  std::uint64_t turns = 0; // exchanges in that epoch
  weights_id weights_version;
  std::size_t parked_bytes = 0;
  std::uint64_t token = 0; // of the running exchange
  std::size_t sends_pending = 0;
  std::size_t receives_pending = 0;
  bool closing = false;
  collective_stats stats;

  result<void> open_worker();
  void retire_worker(); // and whatever was sent, lent and received
  void move_retired_on();
  explicit impl(options given) : o(std::move(given)), peers(o.world_size), pool(o.pool_bytes) {}
  ~impl();

  static ucs_status_t on_message(void* argument, const void* header, std::size_t header_size,
                                 void* data, std::size_t size, const ucp_am_recv_param_t* param);
  ucs_status_t start_receive(void* descriptor, std::size_t size);
  void accept(pooled_buffer buffer);
  bool is_current(const frame_head& h) const;
  void take_loan(const frame_head& offer);
  void end_loan(const frame_head& note);
  bool lend(rank_id to, pooled_buffer& whole);
  void transmit(rank_id to, std::uint64_t for_token, pooled_buffer buffer);
  void forget_below(epoch_id epoch, std::uint64_t turn);
  void park(arrived a);
  result<void> send(rank_id to, const frame_head& head, bytes_view payload);
  void wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(abort_fd, &one, sizeof one);
  }
  void sleep(std::chrono::steady_clock::time_point until);
  void doze(); // where UCX cannot tell when it has room again
};

} // namespace adafloor
