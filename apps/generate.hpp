#pragma once
// `adafloor generate`: the engine alone, on given prompts.
#include <CLI/CLI.hpp>

namespace adafloor {

/// Adds the command. Its callback sets `*exit_code`: 0 done, 1 failed, 2 bad input, 3 lost a rank.
void add_generate(CLI::App& root, int* exit_code);

} // namespace adafloor
