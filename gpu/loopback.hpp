#pragma once
// In-process communicators: the ranks are threads of one process. For tests and `generate`.
#include "gpu/communicator.hpp"

#include <chrono>
#include <memory>
#include <vector>

namespace adafloor {

/// One fabric per rank of a world of `world_size` ranks that live in this process. Element r
/// belongs to rank r's thread. Destroying a fabric is that rank's death: members that wait for it
/// get peer_lost. An exchange that waits longer than `timeout` fails with timed_out.
std::vector<std::unique_ptr<collective_fabric>>
make_loopback_fabrics(std::uint32_t world_size,
                      std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000));

} // namespace adafloor
