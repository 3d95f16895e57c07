#pragma once
// What the event lines of a run add up to: the results that are printed and written.
#include "actors/job.hpp"
#include "actors/recorder.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace adafloor {

/// Takes event lines in order. Keys beyond the ones used here are kept as they are.
class run_record {
public:
  void take(const nlohmann::json& event);

  /// Results of the finished arms, in order; each as the arm object of `run --json`.
  const nlohmann::json& arms() const { return arms_; }
  /// step_end events of all arms, the unfinished one's included.
  const nlohmann::json& steps() const { return steps_; }

  /// The whole of run.json.
  nlohmann::json result(const job& task, bool interrupted) const;

private:
  nlohmann::json arms_ = nlohmann::json::array();
  nlohmann::json steps_ = nlohmann::json::array();
};

/// A table with one column per arm: time, tokens, reward, ledger, transitions, leases, sidecar.
/// Numbers that are missing show as "-".
std::string side_by_side(const nlohmann::json& arms);

/// Whether all arms made the same tokens: "identical tokens in all arms", what differs, or empty
/// for fewer than two arms.
std::string digest_verdict(const nlohmann::json& arms);

/// What a second is in the results, and whether the machine kept up; empty for plain seconds.
std::string time_note(const job& task, const nlohmann::json& arms);

} // namespace adafloor
