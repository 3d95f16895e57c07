#pragma once
// Brings every envelope to its role: an actor or a thread of this process, or the control link.
#include "actors/fault_injection.hpp"
#include "actors/machine_actor.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace adafloor {

class ucx_link;

struct router_stats {
  std::uint64_t local = 0, sent = 0, received = 0;
  std::uint64_t undecodable = 0; ///< frames that are no envelope
  std::uint64_t misdirected = 0; ///< for another rank, an absent role, or a role that has no use
  std::uint64_t dropped = 0;     ///< the overflow queue to a peer was full; machines resend
};

/// Thread-safe.
class router {
public:
  router(rank_id self, incarnation_id incarnation);

  /// Roles of this process. `handler` runs on the sender's thread and must not block.
  void attach(role_kind role, role_actor actor);
  void attach(role_kind role, std::function<void(const envelope&)> handler);
  /// Forgets all roles: CAF waits at shutdown for actors whose handles are held.
  void detach_all();
  void attach_link(ucx_link* link);
  /// Before the first envelope; at most once.
  void inject_faults(const std::vector<fault_rule>& rules);

  /// Sends an envelope on its way. Local ones arrive, in order; remote ones may be lost when the
  /// link's window and the overflow queue are full.
  void post(envelope e);

  /// A frame from the link (its owner thread). False: too much is unread here, offer it again; the
  /// sender's window fills meanwhile.
  bool receive(rank_id from, std::string_view frame);
  /// The link has space for `to` again.
  void space(rank_id to);

  /// An actor is through with an envelope that may have come from the link.
  void consumed(const envelope& e);
  void count_misdirected(const envelope& e);

  rank_id self() const { return self_; }
  router_stats stats() const;

private:
  using handler = std::function<void(const envelope&)>;
  void deliver(const envelope& e);
  void hand_over(const envelope& e);
  void send_remote(const envelope& e);

  static constexpr std::int64_t unread_max = 4096;         ///< remote envelopes in mailboxes
  static constexpr std::size_t overflow_frames_max = 4096; ///< per peer

  rank_id self_;
  incarnation_id incarnation_;
  ucx_link* link_ = nullptr;
  mutable std::shared_mutex roles_mutex_;
  std::array<handler, static_cast<std::size_t>(enum_max(role_kind{})) + 1> roles_;
  std::atomic<std::int64_t> unread_{0};
  mutable std::mutex overflow_mutex_;
  std::map<rank_id, std::deque<std::string>> overflow_;
  std::atomic<std::uint64_t> local_{0}, sent_{0}, received_{0}, undecodable_{0}, misdirected_{0},
      dropped_{0};
  std::unique_ptr<fault_injector> faults_; ///< null: no rules
};

} // namespace adafloor
