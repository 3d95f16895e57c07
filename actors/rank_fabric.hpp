#pragma once
// A fabric whose ranks are processes of their own, which learn each other's addresses from the
// bootstrap and, when the group changes, from the transition's messages.
#include "gpu/communicator.hpp"

#include <memory>
#include <string>

namespace adafloor {

class rank_fabric : public collective_fabric {
public:
  /// Opaque to all but its peers' fabrics. Engine's thread once the loop runs.
  virtual std::string address() = 0;
  virtual result<void> connect(rank_id peer, const std::string& address,
                               incarnation_id incarnation) = 0;
  /// After `connect` to all peers; they all do it at about the same time.
  virtual result<void> join() { return {}; }

  /// Ranks died, perhaps in the middle of an exchange: gives up all that was shared with them. The
  /// address is another one afterwards. Engine's thread.
  virtual result<void> renew() = 0;
  /// From now on `peer`, which may be this rank, is reached there. Engine's thread.
  virtual result<void> follow(rank_id peer, const std::string& address) = 0;
  /// A running or later `exchange` of an epoch up to this one fails with `aborted`. Any thread.
  virtual void abort_up_to(epoch_id epoch) noexcept = 0;
};

} // namespace adafloor
