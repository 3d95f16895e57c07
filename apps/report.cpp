// `adafloor report`: reads what a run left behind and writes its page.
#include "apps/report.hpp"

#include "apps/commands.hpp"
#include "apps/json_fields.hpp"
#include "apps/run_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

namespace adafloor {
namespace {

using nlohmann::json;

class timeline_reader {
public:
  void take(const json& event) {
    const auto kind = text_at(event, "event");
    if (kind == "arm_begin") {
      arms_.push_back({text_at(event, "arm", "?")});
      origin_ = number_or_zero(event, "seconds");
      last_of_rank_.clear();
    }
    if (arms_.empty()) return;
    if (kind == "interval") add_interval(event);
    if (kind == "step_end") arms_.back().step_ends.push_back(event);
    if (kind == "transition") {
      arms_.back().transitions.push_back(event);
      if (const auto at = number_at(event, "seconds"))
        arms_.back().transitions.back()["seconds"] = *at - origin_;
    }
    if (kind == "lease") arms_.back().leases.push_back(event);
  }

  std::vector<arm_timeline> finished() {
    for (auto& arm : arms_)
      for (const auto& interval : arm.intervals)
        arm.seconds = std::max(arm.seconds, interval.end);
    return std::move(arms_);
  }

private:
  void add_interval(const json& event) {
    constexpr double gap_seconds = 1e-4; // shorter gaps are rounding
    auto& list = arms_.back().intervals;
    rank_interval next;
    next.rank = static_cast<std::uint32_t>(number_or_zero(event, "rank"));
    next.state = text_at(event, "state", "idle");
    next.begin = number_or_zero(event, "begin") - origin_;
    next.end = number_or_zero(event, "end") - origin_;
    next.step = static_cast<std::uint64_t>(number_or_zero(event, "step"));
    const auto last = last_of_rank_.find(next.rank);
    if (last != last_of_rank_.end()) {
      auto& before = list[last->second];
      if (before.state == next.state && before.step == next.step
          && next.begin - before.end < gap_seconds) {
        before.end = std::max(before.end, next.end);
        return;
      }
    }
    last_of_rank_[next.rank] = list.size();
    list.push_back(std::move(next));
  }

  std::vector<arm_timeline> arms_;
  std::map<std::uint32_t, std::size_t> last_of_rank_;
  double origin_ = 0;
};

} // namespace

result<std::vector<arm_timeline>> read_timelines(const std::string& events_path) {
  std::ifstream file{events_path, std::ios::binary};
  if (!file)
    return bad_input(fmt::format("{}: cannot be read; is it a run's folder?", events_path));
  timeline_reader reader;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const auto event = json::parse(line, nullptr, false);
    if (event.is_object() && event.contains("event")) {
      reader.take(event);
      continue;
    }
    if (file.eof()) break; // cut off when the run was stopped
    return bad_input(
        fmt::format("{}:{}: not an event line; was the file edited?", events_path, number));
  }
  return reader.finished();
}

result<std::string> write_report(const std::string& out_dir) {
  const auto run_path = out_dir + "/run.json";
  std::ifstream file{run_path, std::ios::binary};
  if (!file)
    return bad_input(fmt::format("{}: cannot be read; give the folder of a run", run_path));
  const auto run = json::parse(file, nullptr, false);
  if (!run.is_object() || !run.contains("arms"))
    return bad_input(fmt::format("{}: not the results of a run; run it again", run_path));
  std::vector<arm_timeline> arms;
  const auto events_path = out_dir + "/events.jsonl";
  if (std::ifstream{events_path}) {
    auto read = read_timelines(events_path);
    if (!read) return tl::make_unexpected(read.error());
    arms = std::move(*read);
  }
  const auto path = out_dir + "/report.html";
  if (auto written = write_whole_file(path, report_page(run, arms)); !written)
    return tl::make_unexpected(written.error());
  return path;
}

void add_report(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("report", "Write the HTML report of a run again");
  command->footer("Example: adafloor report out/first");
  auto folder = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("OUT_DIR", *folder, "folder of the run")->required();
  command->add_flag("--json", *as_json, "print {\"report\": PATH} on stdout");
  command->callback([folder, as_json, exit_code] {
    const auto path = write_report(*folder);
    if (!path) {
      *exit_code = print_error(path.error());
      return;
    }
    std::cout << (*as_json ? json{{"report", *path}}.dump() : *path) << std::endl;
  });
}

} // namespace adafloor
