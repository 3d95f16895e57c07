#pragma once
// Which rank am I, of how many, and where is rank 0? From flags or from what the launcher set.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace adafloor {

struct launch_place {
  rank_id rank;
  std::uint32_t world_size = 1;
  std::string master_host;
  std::uint16_t master_port = 0;
  std::string source; ///< "flags", "adafloor", "torchrun", "openmpi", "slurm"
};

/// What was given on the command line; each one wins over the environment.
struct launch_flags {
  std::optional<std::uint32_t> rank, world_size;
  std::optional<std::string> master_host;
  std::optional<std::uint16_t> master_port;
};

/// Value of an environment variable, or nothing.
using environment = std::function<std::optional<std::string>(const std::string& name)>;
environment process_environment();

/// Looks, in this order, at the flags, ADAFLOOR_RANK / _WORLD_SIZE / _MASTER_HOST / _MASTER_PORT,
/// torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_RANK, _SIZE)
/// and Slurm (SLURM_PROCID, SLURM_NTASKS, first host of the node list). torchrun's own store may
/// sit on MASTER_PORT, so the port taken is MASTER_PORT + 1; without one it is 29431.
/// Errors: bad_input naming the variable, its value and what is allowed.
result<launch_place> read_launch_place(const launch_flags& flags, const environment& env);

/// First host of a Slurm node list such as "node[03-05,9],login1".
result<std::string> first_slurm_host(const std::string& node_list);

} // namespace adafloor
