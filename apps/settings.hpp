#pragma once
// What a user can set for a run: one table of keys, each both a key of a TOML file and a
// command-line option. Reads both, fills in what ships, and yields a job with nothing left open.
#include "actors/job.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <set>

namespace adafloor {

/// One key. `set` takes the value as text, one string per list element, or says what is allowed.
struct setting {
  std::string key;    ///< in the file: group.name
  std::string option; ///< on the command line: --name, or --name,!--no-name for a switch
  std::string help;
  bool is_list = false;
  bool is_switch = false;
  bool is_path = false; ///< relative to the working directory, or to the file that names it
  std::function<result<void>(const std::vector<std::string>&)> set;
};

/// All settings of a run. Not copyable: the table points into `task`.
class run_settings {
public:
  run_settings();
  run_settings(const run_settings&) = delete;
  run_settings& operator=(const run_settings&) = delete;

  /// Adds --config and every option of the table to `command`.
  void add_options(CLI::App& command);

  /// Applies the file of --config, then the command line over it, then the defaults: the models,
  /// prompts, history and sidecar that ship. Paths in the result are absolute. Errors: bad_input
  /// with FILE:LINE or the option, the value, what is allowed, and for an unknown key the nearest
  /// known one.
  result<job> resolve();

  /// As the part of `resolve` that reads a file; for tests and tools.
  result<void> apply_toml(const std::string& text, const std::string& path);

  const std::vector<setting>& table() const { return table_; }

  /// The command line set something.
  bool any_given() const { return !given_.empty() || !config_.empty(); }

private:
  void add_rollout_keys();
  void add_ep_keys();
  void add_queue_keys();
  void add_runtime_keys();
  result<void> apply_command_line();
  result<void> fill_defaults();
  result<void> fill_shipped();
  result<void> fill_recorded();
  result<void> fill_sidecar();
  result<void> fill_replay();
  result<void> fill_cost_model();

  job task_;
  std::string floor_ = "2";
  std::string cost_model_;
  std::set<std::string> said_; ///< keys that file or command line set
  std::string config_;
  std::vector<setting> table_;
  std::vector<std::pair<std::size_t, std::vector<std::string>>> given_; ///< row, values
};

/// The folder that holds models/: ADAFLOOR_HOME, else the source tree's config/, else
/// share/adafloor beside the program's bin/. Empty when none is there.
std::string shipped_folder();

} // namespace adafloor
