#pragma once
// The HTML report of a run: one file that needs no network.
#include "messages/result.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace adafloor {

/// A stretch of time of one rank in one state. Seconds from the beginning of the arm.
struct rank_interval {
  std::uint32_t rank = 0;
  std::string state; ///< busy | dummy | leased | transition | idle
  double begin = 0, end = 0;
  std::uint64_t step = 0;
};

/// One arm as the report shows it.
struct arm_timeline {
  std::string name;
  double seconds = 0; ///< where the last interval ends
  std::vector<rank_interval> intervals;
  std::vector<nlohmann::json> step_ends, transitions, leases; ///< the events; seconds as above
};

/// Reads event lines; adjacent intervals of the same state are joined. A last line that was cut off
/// is dropped. Errors: bad_input with FILE:LINE for any other line that is no event.
result<std::vector<arm_timeline>> read_timelines(const std::string& events_path);

/// The page. `run` is the content of run.json.
std::string report_page(const nlohmann::json& run, const std::vector<arm_timeline>& arms);

/// Writes OUT_DIR/report.html from run.json and events.jsonl there; returns its path. Errors:
/// bad_input when OUT_DIR holds no run, io.
result<std::string> write_report(const std::string& out_dir);

} // namespace adafloor
