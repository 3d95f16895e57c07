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

/// The version of NCCL, as libadafloor_nccl.so finds it. Errors: as find_cuda.
result<std::string> find_nccl();

/// How long NCCL may take before a group is given up.
struct nccl_deadlines {
  std::chrono::milliseconds setup{30'000};
  std::chrono::milliseconds exchange{30'000};
};

/// What the ranks of a full world must share to meet; made by one of them. Errors: of find_nccl;
/// internal when NCCL refuses.
result<std::vector<std::byte>> make_nccl_world_id();
/// Joins the full world, whose ranks all call it, each with a device of its own (`ordinal`). Groups
/// are made by shrinking the full world, which is kept. Errors: of find_nccl; timed_out; internal.
result<std::unique_ptr<collective_fabric>> join_nccl_world(const std::vector<std::byte>& world_id,
                                                           rank_id self, std::uint32_t world_size,
                                                           std::uint32_t ordinal,
                                                           nccl_deadlines deadlines);

} // namespace adafloor
