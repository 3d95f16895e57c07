#pragma once
// What the program and its plug-ins (libadafloor_cuda.so, libadafloor_nccl.so) have in common.
#include "gpu/communicator.hpp"
#include "gpu/launcher.hpp"

#include <atomic>
#include <chrono>

namespace adafloor {

/// Differs when one of them was built from other headers: sizes stand for layouts; the first number
/// is raised when a meaning changes.
inline std::uint64_t plugin_abi() {
  return 2'000'000'000ULL + std::variant_size_v<any_kernel> * 1'000'000 + sizeof(any_kernel) * 1000
         + sizeof(sampled_row) + sizeof(error);
}

/// As join_nccl_world takes it.
struct nccl_world {
  std::vector<std::byte> id;
  rank_id self;
  std::vector<rank_id> members;
  int ordinal = 0;
  std::chrono::milliseconds setup{0}, exchange{0};
  const std::atomic<bool>* stop = nullptr;
};

} // namespace adafloor

extern "C" {
std::uint64_t adafloor_plugin_abi();

/// Number of devices and, one a line, what they are; 0 and the reason where there is none.
int adafloor_cuda_devices(char* text, std::size_t size);
/// Null and the reason when it cannot be had. The caller owns the launcher.
adafloor::launcher* adafloor_cuda_open(int ordinal, char* text, std::size_t size);

void adafloor_nccl_version(char* text, std::size_t size);
/// Number of devices that NCCL could use; 0 and the reason where there is none.
int adafloor_nccl_devices(char* text, std::size_t size);
/// Bytes of the id, at most `size`; 0 and the reason when NCCL makes none.
std::size_t adafloor_nccl_world_id(std::byte* id, std::size_t size, char* text,
                                   std::size_t text_size);
/// Null and the reason when it fails. The caller owns the fabric.
adafloor::collective_fabric* adafloor_nccl_join(const adafloor::nccl_world& world,
                                                adafloor::error* why);
}
