#pragma once
// One process reads another's memory on the same host, with one copy and without its help
// (process_vm_readv). UCX 1.13 has this too (CMA), but not on connections that report failed peers.
#include <cstddef>
#include <cstdint>

namespace adafloor {

/// Equal in processes that may name each other by process id: same boot, same pid namespace, same
/// user. 0 where that cannot be told.
std::uint64_t address_space_neighbourhood();

/// False: the process is gone, the memory is not there, or the system forbids it (Yama, another
/// user). `into` is then undefined.
bool read_neighbour(std::uint32_t pid, std::uint64_t address, void* into, std::size_t size);

} // namespace adafloor
