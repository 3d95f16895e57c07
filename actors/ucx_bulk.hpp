#pragma once
// Bulk bytes between processes, pulled by the receiver: expert weights, KV pages. UCX active
// messages; large ones are read out of the peer's memory within a host (one copy) and go by
// rendezvous elsewhere. Own UCX worker and owner thread, so that a large copy never delays a
// control frame.
#include "actors/buffer_pool.hpp"
#include "actors/ucx_options.hpp"
#include "gpu/communicator.hpp"
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace adafloor {

/// Bytes that stay in place and unchanged for as long as `owner` is held.
struct shared_bytes {
  std::shared_ptr<const void> owner;
  bytes_view bytes;
  /// They hold a checksum of their own, which whoever fetches them verifies: the transfer adds
  /// none.
  bool sealed = false;
  std::vector<bytes_view> rest = {}; ///< what follows `bytes`, in order

  std::size_t size() const;
  void copy_to(std::byte* into) const; ///< `size()` bytes
};

/// Memory to be written.
struct bytes_place {
  std::byte* data = nullptr;
  std::size_t size = 0;
  /// Gets the wide_digest64 of what was written, where the writer made it while the bytes were in
  /// its cache.
  std::uint64_t* digest = nullptr;

  void fill(const std::byte* from) const; ///< `size` bytes
};

struct bulk_stats {
  std::uint64_t fetched = 0, fetched_bytes = 0; ///< fetches that succeeded
  std::uint64_t served = 0, served_bytes = 0;   ///< requests answered with bytes
  std::uint64_t failed = 0;                     ///< fetches that ended in an error
  std::uint64_t checksum_errors = 0;
  std::uint64_t late = 0;         ///< answers after the deadline, dropped
  std::uint64_t stale = 0;        ///< requests or answers of an old incarnation, dropped
  std::uint64_t buffers_made = 0; ///< how often memory was faulted in instead of used again
  std::uint64_t undecodable = 0;  ///< frames that are no request and no answer, dropped
};

class ucx_bulk {
public:
  struct options {
    rank_id self;
    incarnation_id incarnation;
    std::uint32_t world_size = 1;
    ucx_options ucx;
    std::size_t transfer_bytes_max = std::size_t{1} << 30; ///< larger answers are refused
    std::size_t in_flight_max = 8; ///< fetches under way at once; the others wait their turn
    std::size_t queued_max = 4096; ///< waiting fetches; beyond it fetch answers busy
    std::size_t serving_max = 64;  ///< answers under way at once; beyond it the peer gets busy
    std::size_t pool_bytes = std::size_t{256} << 20; ///< receive buffers kept for later use
    bool single_copy = true; ///< within a host read the peer's memory directly where allowed
    bool checksum = true;    ///< CRC32C over bytes that are not sealed, on both sides
  };
  /// Owner thread; must not block. Called exactly once per accepted fetch. Errors: timed_out,
  /// peer_lost, refused (the provider's error), busy (the peer serves too many), io (checksum),
  /// aborted (closed). Texts name rank and key.
  using fetch_handler = std::function<void(result<pooled_buffer>)>;
  /// Owner thread; must not block. An error's code and text go to the fetching side.
  using request_handler = std::function<result<shared_bytes>(rank_id from, const std::string& key)>;
  using event_handler = std::function<void(const peer_event&)>; ///< owner thread

  static result<std::unique_ptr<ucx_bulk>> open(options o);
  ~ucx_bulk(); ///< closes

  const std::string& address() const;
  void on_request(request_handler h);  ///< before the first connect
  void on_peer_event(event_handler h); ///< before the first connect

  /// Any thread. Both sides connect before bytes flow; early requests wait. Self is allowed.
  /// Another incarnation: fetches from the old one end with peer_lost.
  result<void> connect(rank_id peer, std::string address, incarnation_id incarnation);
  void disconnect(rank_id peer);

  /// Any thread. `key` (at most 4 KiB) is the provider's business. The deadline counts from now.
  /// With `into`, the bytes are put there, place after place, and the handler gets an empty buffer;
  /// another number of bytes is an `io` error. Nothing is written there once the handler is called.
  /// Errors (then the handler is not called): busy, bad_input, aborted.
  result<void> fetch(rank_id from, std::string key, microseconds timeout, fetch_handler done,
                     std::vector<bytes_place> into = {});
  /// The same, waiting for the answer. Not from the owner thread.
  result<pooled_buffer> fetch_now(rank_id from, std::string key, microseconds timeout);

  bulk_stats stats() const;
  /// Ends the owner thread; open fetches end with `aborted`. Idempotent.
  void close();

private:
  struct impl;
  explicit ucx_bulk(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

} // namespace adafloor
