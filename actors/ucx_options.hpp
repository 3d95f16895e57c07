#pragma once
// What the three users of UCX (control link, bulk transfers, collectives) have in common.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <string>
#include <vector>

namespace adafloor {

/// Transport choice. An empty string leaves the choice to the user's environment (UCX_TLS,
/// UCX_NET_DEVICES) and, where that is unset, to the default named here.
struct ucx_options {
  std::string tls; ///< default "posix,cma,self,tcp"; "tcp,self" between network namespaces
  /// Numeric IPv4 address that peers reach this process at. Default: nothing beyond this host.
  std::string bind_host = "127.0.0.1";
  std::string net_devices; ///< default "lo" for a loopback bind_host, else all
  /// How often UCX looks whether a silent peer's process still lives.
  microseconds keepalive{1'000'000};
};

/// What happened to a peer's connection. A hint: only membership decides that a rank is dead.
enum class peer_event_kind : std::uint8_t {
  endpoint_lost = 1, ///< UCX reports the endpoint as failed (process gone, connection reset)
  silent,            ///< nothing acknowledged for `silent_after` (frozen process, partition)
  heard_again,       ///< a silent or lost peer with the same incarnation answers again
  undecodable,       ///< a frame with a wrong magic, length or checksum, or of no known type
  bad_version,       ///< the peer speaks no version of the protocol that this process knows
};

struct peer_event {
  rank_id peer;
  peer_event_kind kind = peer_event_kind::endpoint_lost;
  std::string text; ///< one line for people: what was seen
};

/// Memory that this machine's UCX can send from and receive into: "host", and "cuda" where it was
/// built with CUDA and finds a driver. Errors: io.
result<std::vector<std::string>> ucx_memory_kinds();

} // namespace adafloor
