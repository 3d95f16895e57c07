#pragma once
// `adafloor generate`: the engine alone, on given prompts.
#include "gpu/communicator.hpp"

#include <CLI/CLI.hpp>

#include <memory>
#include <vector>

namespace adafloor {

/// Adds the command. Its callback sets `*exit_code`: 0 done, 1 failed, 2 bad input, 3 lost a rank.
void add_generate(CLI::App& root, int* exit_code);

/// What the ranks of one `generate` talk through; element r belongs to rank r.
std::vector<std::unique_ptr<collective_fabric>> make_local_fabrics(std::uint32_t ranks);

} // namespace adafloor
