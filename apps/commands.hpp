#pragma once
// The commands of the `adafloor` program, one file each: apps/<name>.cpp.
#include "messages/result.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace adafloor {

/// Each adds one command to `root`. When the command line selects it, it runs and sets
/// `*exit_code`: 0 done, 1 failed, 2 bad input, 3 lost a rank. Both must outlive the parsing.
void add_run(CLI::App& root, int* exit_code);
void add_node(CLI::App& root, int* exit_code);
void add_model_worker(CLI::App& root, int* exit_code);    ///< not in --help: a rank starts it
void add_callback_worker(CLI::App& root, int* exit_code); ///< likewise
void add_plan(CLI::App& root, int* exit_code);
void add_simulate(CLI::App& root, int* exit_code);
void add_history(CLI::App& root, int* exit_code);
void add_calibrate(CLI::App& root, int* exit_code);
void add_faults(CLI::App& root, int* exit_code);
void add_report(CLI::App& root, int* exit_code);
void add_doctor(CLI::App& root, int* exit_code);

/// Adds --kv-dtype for an engine of the command's own.
enum class kv_dtype : std::uint8_t;
void add_kv_dtype(CLI::App& command, kv_dtype& target);

/// Prints `adafloor: error: TEXT` on stderr and returns the exit status that belongs to the code.
int print_error(const error& what);

/// The member of `known` that takes the fewest edits to get from `word`; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

} // namespace adafloor
