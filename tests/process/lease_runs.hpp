#pragma once
// Runs whose ranks are lent to auxiliary work, and what must hold of their results.
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace adafloor::testing {

/// Complete lines while somebody writes.
inline std::size_t count_lines(const std::string& path) {
  const auto text = read_file(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A step with one long response on emulated ranks: the others are free for seconds.
inline std::vector<std::string> long_tail(const scratch_dir& place,
                                          const std::vector<std::string>& more) {
  const auto path = place.path() + "/lengths.csv";
  std::ofstream file{path};
  file << "epoch,position,prompt_id,sample,prompt_tokens,response_tokens,truncated\n";
  for (const char* epoch : {"a", "b"})
    for (int prompt = 0; prompt < 8; ++prompt)
      file << epoch << ',' << prompt << ",p" << prompt << ",0,10," << (prompt == 0 ? 3000 : 20)
           << ",0\n";
  std::vector<std::string> all{"run", "--workload", path, "--out", place.path() + "/out"};
  for (const char* word :
       {"--device", "emulated", "--cost-model", "ascend-eager", "--workload-epoch", "b",
        "--history-epochs", "a", "--ranks", "4", "--floor", "2", "--arms", "natural",
        "--time-scale", "0.05", "--lease-max-slowdown", "0"})
    all.push_back(word);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline std::string arith_model() {
  return shipped_models() + "/arith-dense-bf16";
}

/// The first `count` of the queries that ship.
inline void write_queries(const std::string& path, std::size_t count) {
  std::ifstream all{arith_model() + "/queries_heldout.jsonl"};
  std::ofstream some{path};
  std::string line;
  for (std::size_t i = 0; i < count && std::getline(all, line); ++i)
    some << line << '\n';
}

inline nlohmann::json arm_of(const std::string& out) {
  return nlohmann::json::parse(read_file(out + "/run.json"))["arms"][0];
}

/// All units 0 .. count - 1 have one line each.
inline void check_once(const std::vector<nlohmann::json>& lines, std::size_t count) {
  std::set<std::uint64_t> seen;
  for (const auto& line : lines)
    BOOST_TEST(seen.insert(line.at("unit").get<std::uint64_t>()).second, line.dump());
  BOOST_TEST(seen.size() == count);
  if (!seen.empty()) BOOST_TEST(*seen.rbegin() < count);
}

/// Windows that were predicted when leases were granted, in seconds of the clock, by the id that
/// their work is told.
inline std::map<std::string, double> windows_of(const std::string& out) {
  const auto job = nlohmann::json::parse(read_file(out + "/job.json"));
  const double time_scale = job["emulation"]["time_scale"];
  std::map<std::string, double> windows;
  for (const auto& event : events_of(out))
    if (event["event"] == "lease")
      windows[event["lease"][0].dump() + "." + event["lease"][1].dump()] =
          event["window_seconds"].get<double>() * time_scale;
  return windows;
}

/// What the work of each lease was told one after the other, in seconds: near the predicted window
/// at first, then less and less.
inline void check_left(const std::map<std::string, std::vector<double>>& left,
                       const std::map<std::string, double>& windows) {
  BOOST_TEST(!left.empty());
  for (const auto& [lease, seconds] : left) {
    BOOST_REQUIRE_MESSAGE(windows.count(lease) == 1, lease);
    const auto window = windows.at(lease);
    BOOST_TEST((seconds.front() > window / 2 && seconds.front() < window),
               lease << ": " << seconds.front() << " of " << window);
    BOOST_TEST(seconds.back() >= 0);
    if (seconds.size() > 1) BOOST_TEST(seconds.back() < seconds.front(), lease);
  }
}

inline void check_restored(const std::string& out) {
  std::map<int, nlohmann::json> last;
  for (const auto& event : events_of(out))
    if (event["event"] == "transition") last[event["step"].get<int>()] = event;
  BOOST_TEST(!last.empty());
  for (const auto& [step, transition] : last)
    BOOST_TEST(transition["to"] == 4, transition.dump());
}

} // namespace adafloor::testing
