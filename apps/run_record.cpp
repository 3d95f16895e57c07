#include "apps/run_record.hpp"

#include "apps/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace adafloor {
namespace {

using nlohmann::json;

std::string plain(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string share(const json& arm, const char* part) {
  const auto value = number_at(object_at(arm, "ledger"), part);
  const auto whole = number_at(object_at(arm, "ledger"), "rank_seconds");
  if (!value || !whole || *whole <= 0) return "-";
  return fmt::format("{:.2f}  {:5.1f} %", *value, 100 * *value / *whole);
}

std::string transitions_of(const json& arm, const char* kind) {
  int count = 0;
  double longest = 0;
  for (const auto& t : list_at(arm, "transitions")) {
    if (text_at(t, "kind") != kind) continue;
    ++count;
    longest = std::max(longest, number_or_zero(t, "pause_seconds"));
  }
  return count == 0 ? "0" : fmt::format("{}, pause at most {:.1f} ms", count, 1000 * longest);
}

std::string text_cell(const json& arm, const std::string& row) {
  const auto number = [&](const char* key, int digits) {
    return plain(number_at(arm, key), digits);
  };
  const auto count = [&](const char* group, const char* key) {
    return plain(number_at(object_at(arm, group), key), 0);
  };
  if (row == "rollout, s") return number("rollout_seconds", 2);
  if (row == "responses") return number("responses", 0);
  if (row == "generated tokens") return number("generated_tokens", 0);
  if (row == "cut by guard") return number("truncated_by_guard", 0);
  if (row == "same work, s")
    return plain(number_at(arm.contains("equal_work") ? arm["equal_work"] : arm, "rollout_seconds"),
                 2);
  if (row == "mean reward") return number("mean_reward", 4);
  if (row == "rank-seconds") return plain(number_at(object_at(arm, "ledger"), "rank_seconds"), 2);
  if (row == "contractions") return transitions_of(arm, "contract");
  if (row == "restorations") return transitions_of(arm, "restore");
  if (row == "requests moved") return count("migrations", "count");
  if (row == "leases granted") return count("leases", "granted");
  if (row == "leases forced") return count("leases", "forced");
  if (row == "resumed") return std::to_string(list_at(arm, "resumptions").size());
  if (row == "ranks lost") return std::to_string(list_at(arm, "ranks_lost").size());
  if (row == "ranks left out") return std::to_string(list_at(arm, "quarantined").size());
  if (row == "sidecar completed") return count("sidecar", "completed");
  if (row == "sidecar correct") return count("sidecar", "correct");
  if (row == "units failed") return count("sidecar", "failed");
  if (row == "tokens digest") return text_at(arm, "tokens_digest", "-").substr(0, 16);
  return share(arm, row.substr(2).c_str());
}

} // namespace

void run_record::take(const json& event) {
  const auto kind = text_at(event, "event");
  if (kind == "arm_end" && event.contains("result")) {
    // Told again by a job that was taken up between this and its next line of books.
    const auto number = number_at(event, "number");
    if (!number || *number >= static_cast<double>(arms_.size())) arms_.push_back(event["result"]);
  }
  if (kind == "equal_work")
    for (auto& arm : arms_)
      if (text_at(arm, "arm") == text_at(event, "arm", "?")) {
        const auto ratio = number_or_zero(event, "time_ratio");
        arm["equal_work"] = {{"lengths_of", text_at(event, "lengths_of")},
                             {"generated_tokens", event["generated_tokens"]},
                             {"time_ratio", ratio},
                             {"rollout_seconds", ratio * number_or_zero(arm, "rollout_seconds")}};
      }
  if (kind == "step_end") {
    steps_.push_back(event);
    steps_.back().erase("event");
  }
}

json run_record::result(const job& task, bool interrupted) const {
  json whole = json::object();
  whole["arms"] = arms_;
  whole["steps"] = steps_;
  whole["interrupted"] = interrupted;
  whole["time"] = is_emulated(task) ? "seconds of the cost model" : "seconds";
  whole["job"] = json::parse(to_json_text(task));
  whole["out_dir"] = task.out_dir;
  whole["version"] = ADAFLOOR_VERSION;
  return whole;
}

namespace {

bool guard_cut(const json& arms) {
  return std::any_of(arms.begin(), arms.end(),
                     [](const json& arm) { return number_or_zero(arm, "truncated_by_guard") > 0; });
}

} // namespace

std::string side_by_side(const json& arms) {
  std::vector<std::string> rows{
      "rollout, s",      "responses",    "generated tokens", "mean reward",   "rank-seconds",
      "  busy",          "  dummy",      "  leased",         "  transition",  "  idle",
      "contractions",    "restorations", "leases granted",   "leases forced", "sidecar completed",
      "sidecar correct", "tokens digest"};
  const auto moves = [](const json& arm) { return text_at(arm, "migrate", "off") != "off"; };
  if (std::any_of(arms.begin(), arms.end(), moves))
    rows.insert(std::find(rows.begin(), rows.end(), "leases granted"), "requests moved");
  const auto left_out = [](const json& arm) { return !list_at(arm, "quarantined").empty(); };
  if (std::any_of(arms.begin(), arms.end(), left_out))
    rows.insert(std::find(rows.begin(), rows.end(), "sidecar completed"), "ranks left out");
  const auto failed = [](const json& arm) {
    return number_or_zero(object_at(arm, "sidecar"), "failed") > 0;
  };
  if (std::any_of(arms.begin(), arms.end(), failed))
    rows.insert(std::find(rows.begin(), rows.end(), "tokens digest"), "units failed");
  const auto lost = [](const json& arm) { return !list_at(arm, "ranks_lost").empty(); };
  if (std::any_of(arms.begin(), arms.end(), lost))
    rows.insert(std::find(rows.begin(), rows.end(), "leases granted"), "ranks lost");
  const auto resumed = [](const json& arm) { return !list_at(arm, "resumptions").empty(); };
  if (std::any_of(arms.begin(), arms.end(), resumed))
    rows.insert(std::find(rows.begin(), rows.end(), "leases granted"), "resumed");
  if (guard_cut(arms)) rows.insert(rows.begin() + 3, {"cut by guard", "same work, s"});
  constexpr std::size_t name_width = 20;
  std::vector<std::size_t> widths;
  for (const auto& arm : arms) {
    auto width = text_at(arm, "arm", "?").size();
    for (const auto& row : rows)
      width = std::max(width, text_cell(arm, row).size());
    widths.push_back(width + 3);
  }
  std::string table = fmt::format("{:<{}}", "", name_width);
  for (std::size_t i = 0; i < arms.size(); ++i)
    table += fmt::format("{:>{}}", text_at(arms[i], "arm", "?"), widths[i]);
  table += "\n";
  for (const auto& row : rows) {
    table += fmt::format("{:<{}}", row, name_width);
    for (std::size_t i = 0; i < arms.size(); ++i)
      table += fmt::format("{:>{}}", text_cell(arms[i], row), widths[i]);
    table += "\n";
  }
  return table;
}

std::string digest_verdict(const json& arms) {
  if (arms.size() < 2) return {};
  if (guard_cut(arms))
    return "the guard cut responses, so arms differ in tokens; \"same work\" replays the full "
           "lengths through the simulator";
  for (std::size_t i = 1; i < arms.size(); ++i)
    if (text_at(arms[i], "tokens_digest", "") != text_at(arms[0], "tokens_digest", "-"))
      return fmt::format("tokens DIFFER between {} and {}", text_at(arms[0], "arm", "?"),
                         text_at(arms[i], "arm", "?"));
  return "identical tokens in all arms";
}

std::string time_note(const job& task, const json& arms) {
  if (!is_emulated(task)) return {};
  const auto scale = task.emulation.time_scale;
  auto note = fmt::format("times are seconds of the cost model; the clock ran {:g} times as fast "
                          "(--time-scale {:g})\n",
                          1 / scale, scale);
  double behind = 0;
  for (const auto& arm : arms)
    behind = std::max(behind, number_or_zero(arm, "behind_seconds"));
  constexpr double worth_saying = 0.05;
  if (behind > worth_saying)
    note += fmt::format("this machine fell up to {:.2f} s behind that clock, so times are too "
                        "long; raise --time-scale\n",
                        behind);
  return note;
}

} // namespace adafloor
