#pragma once
// Code that needs a GPU's libraries sits in plug-ins that are loaded when they are asked for, so
// the same program runs where there is neither driver nor plug-in. They are looked for in the
// folder $ADAFLOOR_PLUGINS where that is set, else beside the program and in ../lib/adafloor from
// there.
#include "gpu/communicator.hpp"
#include "gpu/device.hpp"
#include "gpu/launcher.hpp"

#include <chrono>
#include <string>

namespace adafloor {

struct cuda_findings {
  std::uint32_t devices = 0;
  std::string text; ///< one device a line, or why there is none
};

/// Asks libadafloor_cuda.so. Errors: io (not found, does not load), bad_input (of another build).
result<cuda_findings> find_cuda();
/// The launcher of one device. Errors: of find_cuda; refused when there is no such device.
result<std::unique_ptr<launcher>> open_cuda(std::uint32_t ordinal);
/// Computes on device `rank` modulo the number of devices. Errors: as above.
result<std::unique_ptr<device>> make_cuda_device(rank_id rank);

struct nccl_findings {
  std::string version;       ///< "2.28.3"
  std::uint32_t devices = 0; ///< GPUs; each rank of a host needs one of its own
  std::string text;          ///< why there is none
};

/// Asks libadafloor_nccl.so. Errors: as find_cuda.
result<nccl_findings> find_nccl();

struct nccl_world; // gpu/plugin_abi.hpp

/// What the ranks of a world must share to meet; made by one of them. Errors: of find_nccl;
/// internal when NCCL refuses.
result<std::vector<std::byte>> make_nccl_world_id();
/// Joins a world, whose members all call it with the same id and list, each with a device of its
/// own (`ordinal`). Groups are made by shrinking the world, which is kept. Returns within `setup`
/// and soon after `*stop` becomes true, which may be null; an exchange has `exchange` each time it
/// waits. Errors: of find_nccl; timed_out; aborted; internal.
result<std::unique_ptr<collective_fabric>> join_nccl_world(const nccl_world& world);

} // namespace adafloor
