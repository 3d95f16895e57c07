#pragma once
// The inside of ucx_bulk: what callers and the owner thread share, and the owner thread's loop.
#include "actors/ucx_bulk.hpp"
#include "actors/ucx_worker.hpp"
#include "gpu/digest.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

namespace adafloor {

/// Stands in front of requests and answers. Both ends have the same byte order: UCX refuses others.
struct bulk_head {
  std::uint32_t magic = 0;
  std::uint32_t sender = 0;
  std::uint64_t from = 0, to = 0;  // incarnations
  std::uint64_t request = 0;       // number, unique per fetching process
  std::uint64_t length = 0;        // of key, bytes or error text
  std::uint64_t neighbourhood = 0; // request: of who asks, 0 where it cannot read memory directly
  std::uint64_t timeout_us = 0;    // request: how long the answer is wanted
  std::uint32_t pid = 0;           // lent: in which process
  std::uint32_t crc = 0;           // of the bytes; 0 where checksums are off
  std::uint8_t code = 0;           // answer: 0 or an error_code
  std::uint8_t checked = 0;        // whether crc counts
  std::uint8_t unused[6] = {};
};
static_assert(sizeof(bulk_head) == 72);

/// Where a part of lent bytes is, in the lender's memory; a loan has one after the other behind its
/// head.
struct lent_part {
  std::uint64_t address = 0, size = 0;
};

namespace bulk {

constexpr std::uint32_t magic = 0x42464131; // "1AFB"
// The letter in front of what is in one piece.
constexpr char is_request = 'q', is_answer = 'a', is_loan = 'l', is_loan_over = 'd';
constexpr std::size_t parts_max = 256; // of a loan: they must fit into a note

inline time_point clock_now() {
  return std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now());
}

inline std::string what(rank_id from, const std::string& key) {
  return "fetch of \"" + key.substr(0, 80) + "\" from rank " + std::to_string(from.value);
}

inline std::size_t size_of(const std::vector<bytes_place>& places) {
  std::size_t sum = 0;
  for (const auto& p : places)
    sum += p.size;
  return sum;
}

} // namespace bulk

struct ucx_bulk::impl {
  struct fetching {
    rank_id from;
    std::string key;
    time_point deadline;
    fetch_handler done;
    std::vector<bytes_place> into; // empty: a buffer of the pool
    bool asked = false;            // on its way, not in the queue
  };
  struct peer {
    bool known = false;
    std::string address;
    incarnation_id incarnation;
    std::unique_ptr<ucx_endpoint> endpoint;
    bool unreadable = false; // its memory cannot be read directly
  };
  struct loan { // bytes that a peer reads from this process
    shared_bytes bytes;
    time_point until;
  };
  struct command {
    rank_id peer;
    bool forget = false;
    std::string address;
    incarnation_id incarnation;
  };
  struct note;       // a request or a small answer
  struct serving;    // a large answer
  struct receiving { // bytes on their way into a buffer
    impl* bulk = nullptr;
    bulk_head head;
    pooled_buffer buffer;
    std::vector<lent_part> parts{};   // lent: what is still to be read, the next one last
    std::vector<bytes_place> goals{}; // lent: where to, alike
    wide_digest digest{};             // of what is in the present goal
    bool readable = true;             // lent: until reading failed
    std::atomic<bool> unwanted{false};
    static void done(void* request, ucs_status_t status, std::size_t size, void* argument);
  };

  explicit impl(options given)
    : o(std::move(given)), pool(o.pool_bytes), known(o.world_size), peers(o.world_size) {}

  // Any thread.
  result<void> fetch(rank_id from, std::string key, microseconds timeout, fetch_handler done,
                     std::vector<bytes_place> into);
  void wake();
  void stop();

  // The copier's thread.
  void copy_loans();
  static void copy_parts(receiving& r, std::size_t size);

  // Owner thread.
  void run();
  bool take_work();
  void carry_out(const command& c);
  void start_fetches();
  void ask(std::uint64_t request, fetching& f);
  void send_request(std::uint64_t request, const fetching& f);
  void fetch_from_self(std::uint64_t request, const std::string& key);
  void finish(std::uint64_t request, result<pooled_buffer> outcome);
  void finish_all(rank_id from, const std::string& why);
  void expire(time_point now);
  void look_after(rank_id r);
  void sleep(int refused_arms);
  void wind_up();
  bulk_head head_for(rank_id to, std::uint64_t request) const;
  bool is_current(const bulk_head& h); // counts what is stale
  void on_request_bytes(std::string_view bytes);
  void serve(const bulk_head& h, const std::string& key);
  void on_small_answer(std::string_view bytes);
  ucs_status_t on_large_answer(const bulk_head& h, void* descriptor, std::size_t size);
  void on_loan(std::string_view bytes);
  void on_loan_over(std::string_view bytes);
  bool collect_copies();
  void on_copied(std::unique_ptr<receiving> r);
  void stop_copy(std::uint64_t request);
  void end_copier();
  static result<pooled_buffer> scatter(pooled_buffer whole, const fetching& f);
  void lend(rank_id to, bulk_head reply, const bulk_head& asked, shared_bytes bytes);
  void end_loans(rank_id to);
  void on_received(std::unique_ptr<receiving> r, ucs_status_t status);
  void send_note(rank_id to, char letter, const bulk_head& h, std::string_view text);
  static ucs_status_t message(void* argument, const void* header, std::size_t header_size,
                              void* data, std::size_t size, const ucp_am_recv_param_t* param);

  const options o;
  std::unique_ptr<ucx_worker> worker;
  std::string address;
  int wake_fd = -1;
  std::thread thread;
  buffer_pool pool;
  request_handler provide;
  event_handler handle_event;

  mutable std::mutex mutex; // up to the next line with a comment
  std::vector<bool> known;
  std::vector<command> commands;
  std::vector<fetching> wanted;
  std::size_t open_fetches = 0;
  bool stopping = false, stopped = false;
  bulk_stats stats;

  std::mutex copy_mutex; // up to the next line with a comment
  std::condition_variable copy_wanted, copy_over;
  std::deque<std::unique_ptr<receiving>> to_copy, copied;
  receiving* copying = nullptr;
  bool copier_ends = false;
  std::thread copier; // begun with the first large loan

  std::vector<peer> peers; // the owner's, like all below
  std::map<std::uint64_t, fetching> fetches;
  std::deque<std::uint64_t> queue; // fetches that were not asked yet
  std::size_t in_flight = 0, serving_now = 0, receives_pending = 0;
  std::uint64_t next_request = 1;
  std::map<std::pair<std::uint32_t, std::uint64_t>, loan> loans; // by rank and request
  std::deque<std::string> early; // requests of ranks that are not connected yet
  bulk_stats counts;             // the owner's copy
};

} // namespace adafloor
