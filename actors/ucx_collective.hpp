#pragma once
// Exchanges between the engines of an EP group over UCX. The engine's thread owns the worker and
// makes progress inside `exchange`; nothing else runs in between.
#include "actors/rank_fabric.hpp"
#include "actors/ucx_options.hpp"
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace adafloor {

struct collective_stats {
  std::uint64_t exchanges = 0;
  std::uint64_t frames_sent = 0, bytes_sent = 0, frames_received = 0, bytes_received = 0;
  std::uint64_t stale = 0;         ///< of a lower epoch or an old incarnation, dropped
  std::uint64_t parked = 0;        ///< of a higher epoch or a later exchange, kept until its turn
  std::uint64_t overflow = 0;      ///< beyond the bound of parked frames, dropped
  std::uint64_t undecodable = 0;   ///< no collective frame at all, dropped
  std::uint64_t single_copies = 0; ///< frames read out of a neighbour's memory
  std::uint64_t sleeps = 0;        ///< how often a wait went beyond its spin
};

class ucx_collective final : public rank_fabric {
public:
  struct options {
    rank_id self;
    incarnation_id incarnation;
    std::uint32_t world_size = 1;
    ucx_options ucx;
    microseconds spin{30};             ///< poll with sched_yield this long, then sleep
    microseconds deadline{30'000'000}; ///< watchdog of one exchange
    std::size_t frame_bytes_max = std::size_t{1} << 30;  ///< what one member may send to another
    std::size_t parked_bytes_max = std::size_t{1} << 30; ///< over all peers
    std::size_t pool_bytes = std::size_t{256} << 20;     ///< buffers kept for later use
    bool single_copy = true; ///< within a host read large frames directly where allowed
    bool checksum = false;   ///< CRC32C over each payload
  };

  /// Errors: io (no such transport or device).
  static result<std::unique_ptr<ucx_collective>> open(options o);
  ~ucx_collective() override;

  std::string address() override;
  /// Engine's thread (or before the engine has the fabric). Makes the endpoint that all groups
  /// use; with another incarnation it replaces the old one. Self is not needed.
  result<void> connect(rank_id peer, const std::string& address,
                       incarnation_id incarnation) override;

  /// The same for a peer that was connected before and may have another address now; nothing
  /// happens where it has not, or for no address.
  result<void> follow(rank_id peer, const std::string& address) override;
  /// Engine's thread, between exchanges: another address, and no connection. A process that is
  /// killed while it writes into shared memory leaves what it had begun there, and nothing that
  /// others send comes through behind it. Errors: those of open.
  result<void> renew() override;

  /// Errors: bad_input (members not ascending, without self, not connected, or an epoch below the
  /// one in use). Cheap: no message, no file descriptor.
  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override;

  void progress() override;

  void set_weights_version(weights_id version) override;
  void abort_up_to(epoch_id epoch) noexcept override;

  collective_stats stats() const; ///< engine's thread

private:
  struct impl;
  friend class ucx_communicator;
  explicit ucx_collective(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

/// Fabrics of ranks 0..n-1 inside this process, connected, for one thread each.
result<std::vector<std::unique_ptr<collective_fabric>>> make_local_ucx_fabrics(int ranks);

} // namespace adafloor
