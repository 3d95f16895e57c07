#pragma once
// Groups over NCCL for ranks that are processes: which worlds there are, who starts a new one when
// a rank is lost, and how a running exchange is aborted. The exchanges themselves are the plug-in's
// (gpu/nccl_fabric).
//
// A world is a communicator of NCCL that some ranks have joined; groups of its members are made by
// shrinking it. All ranks begin in one. Who loses a peer leaves its world at once, and its address
// then offers the start of another. When members of a group are not all of one world, they join the
// one that the lowest of those offers. All of them see the same addresses, so all do the same.
#include "actors/rank_fabric.hpp"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace adafloor {

class nccl_group; // in the .cpp

class collective_over_nccl final : public rank_fabric {
public:
  struct options {
    rank_id self;
    std::uint32_t world_size = 1;
    std::chrono::milliseconds setup{60'000};    ///< for all members to join a world or group
    std::chrono::milliseconds exchange{30'000}; ///< each time that an exchange waits
  };

  /// The rank's GPU is `self` modulo their number, and no other rank of the host may have it.
  /// Errors: of find_nccl; refused where there is no GPU; internal when NCCL refuses.
  static result<std::unique_ptr<collective_over_nccl>> open(options o);
  ~collective_over_nccl() override;

  std::string address() override;
  result<void> connect(rank_id peer, const std::string& address, incarnation_id) override {
    return follow(peer, address);
  }
  /// Errors: timed_out, which names the ranks; internal.
  result<void> join() override;
  result<void> renew() override;
  result<void> follow(rank_id peer, const std::string& address) override;
  void abort_up_to(epoch_id epoch) noexcept override;

  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override;
  void set_weights_version(weights_id version) override;

private:
  friend class nccl_group;
  struct world;
  using id_bytes = std::vector<std::byte>;
  /// What a rank's address says.
  struct offer {
    id_bytes joined; ///< the world that it is in; empty: none
    id_bytes fresh;  ///< of one that it would start; empty: none
  };

  explicit collective_over_nccl(options o) : options_(o) {}
  result<std::shared_ptr<world>> world_of(const std::vector<rank_id>& members);
  result<collective_fabric*> joined(world& w, const std::atomic<bool>* stop);
  bool is_aborted(epoch_id epoch) const { return epoch.value <= aborted_up_to_.load(); }

  options options_;
  int ordinal_ = 0; ///< of this rank's GPU
  std::map<rank_id, offer> offers_;
  std::shared_ptr<world> world_; ///< null: none
  id_bytes fresh_;
  bool offers_world_ = false;
  weights_id weights_;
  std::atomic<std::uint64_t> aborted_up_to_{0};
  std::mutex mutex_; // guards groups_
  std::set<nccl_group*> groups_;
};

} // namespace adafloor
