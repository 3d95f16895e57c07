// The look of the report. Everything is drawn here as static SVG and tables, so that the page reads
// without scripts; the script only adds the tooltip.
#include "apps/json_fields.hpp"
#include "apps/report.hpp"
#include "apps/run_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace adafloor {
namespace {

using nlohmann::json;

constexpr const char* head = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>AdaFloor run</title><style>
:root{--ink:#1c2430;--soft:#5d6876;--line:#dfe4ea;--paper:#fff;--ground:#f5f7f9;
--busy:#2f6fc4;--dummy:#eba937;--leased:#2a9d72;--transition:#c62f66;--idle:#d5dae1}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",
Roboto,"DejaVu Sans",sans-serif}
main{max-width:1320px;margin:0 auto;padding:28px 32px 56px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:34px 0 10px}
p{margin:4px 0;color:var(--soft)}
.panel{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:16px 20px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));gap:12px;
margin-top:18px}
.card b{display:block;font-size:25px;line-height:1.25}.card>span{color:var(--soft)}
.legend{display:flex;gap:22px;flex-wrap:wrap;margin-bottom:10px;color:var(--soft)}
.legend i{display:inline-block;width:14px;height:14px;border-radius:3px;margin-right:7px;
vertical-align:-2px}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--soft)}
svg .arm{font-size:15px;font-weight:600;fill:var(--ink)}
.busy{fill:var(--busy)}.dummy{fill:var(--dummy)}.leased{fill:var(--leased)}
.transition{fill:var(--transition)}.idle{fill:var(--idle)}
rect[data-t]:hover{opacity:.75}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
td.l,th.l{text-align:left}tr:last-child td{border-bottom:0}.scroll{overflow-x:auto}
.stack{display:flex;height:14px;border-radius:4px;overflow:hidden;min-width:260px}
.stack i{display:block}
.bad{color:#b3261e;font-weight:600}.good{color:#1d7a55;font-weight:600}
#tip{position:fixed;pointer-events:none;background:#1c2430;color:#fff;padding:6px 10px;
border-radius:6px;font-size:13px;display:none;white-space:pre}
details summary{cursor:pointer;color:var(--soft)}pre{overflow-x:auto;font-size:13px}
</style></head><body><main>
)";

constexpr const char* tail = R"(</main><div id="tip"></div><script>
const tip=document.getElementById('tip');
document.addEventListener('mousemove',e=>{const t=e.target.dataset&&e.target.dataset.t;
tip.style.display=t?'block':'none';if(!t)return;tip.textContent=t;
tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';
tip.style.top=Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8)+'px'});
</script></body></html>
)";

const std::vector<std::string> states{"busy", "dummy", "leased", "transition", "idle"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// With that many digits; "-" where there is no number.
std::string number(const json& from, const char* key, int digits = 0, double factor = 1) {
  const auto value = number_at(from, key);
  return value ? fmt::format("{:.{}f}", factor * *value, digits) : "-";
}

json ledger_of(const json& arm) {
  return object_at(arm, "ledger");
}

double share(const json& arm, const std::string& state) {
  const auto ledger = ledger_of(arm);
  const auto whole = number_or_zero(ledger, "rank_seconds");
  return whole > 0 ? number_or_zero(ledger, state.c_str()) / whole : 0;
}

/// 1, 2 or 5 times a power of ten, for about ten ticks.
double tick_seconds(double span) {
  const double rough = std::max(span, 1e-3) / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

/// All arms above each other on one time scale.
class timeline_drawing {
public:
  timeline_drawing(const std::vector<arm_timeline>& arms, std::uint32_t ranks)
    : arms_(arms), ranks_(ranks) {
    for (const auto& arm : arms)
      seconds_ = std::max(seconds_, arm.seconds);
  }

  std::string svg() {
    std::string body;
    double y = 6;
    for (const auto& arm : arms_) {
      body += draw_arm(arm, y);
      y += arm_height();
    }
    body += draw_axis(y);
    return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"Timeline of the "
                       "ranks\">{}</svg>",
                       width, y + 40, body);
  }

private:
  static constexpr double width = 1256, left = 74, right = 14;
  static constexpr double row = 19, bar = 15, above_rows = 46;

  double arm_height() const { return above_rows + row * ranks_ + 14; }
  double x(double seconds) const {
    return left + (width - left - right) * seconds / std::max(seconds_, 1e-9);
  }

  std::string draw_arm(const arm_timeline& arm, double y) {
    auto out = fmt::format("<text class=\"arm\" x=\"0\" y=\"{:.1f}\">{}</text>", y + 15,
                           escaped(arm.name));
    const double top = y + above_rows;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">rank {}</text>",
                         left - 10, top + row * rank + 12, rank);
    for (const auto& interval : arm.intervals)
      if (interval.state != "transition") out += draw_interval(interval, top, 0.0);
    for (const auto& interval : arm.intervals) // short, so drawn over the rest and never too thin
      if (interval.state == "transition") out += draw_interval(interval, top, 1.6);
    return out + draw_steps(arm, y, top) + draw_transitions(arm, y);
  }

  std::string draw_interval(const rank_interval& of, double top, double least) const {
    const auto text = fmt::format("rank {}  {}\nstep {}\n{:.3f} s to {:.3f} s ({:.1f} ms)", of.rank,
                                  of.state, of.step, of.begin, of.end, 1e3 * (of.end - of.begin));
    return fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" "
        "data-t=\"{}\"/>",
        escaped(of.state), x(of.begin), top + row * of.rank,
        std::max(x(of.end) - x(of.begin), least), bar, escaped(text));
  }

  /// A line where a step's last interval ends, the step's number over its middle.
  std::string draw_steps(const arm_timeline& arm, double y, double top) const {
    std::string out;
    std::map<std::uint64_t, std::pair<double, double>> span;
    for (const auto& interval : arm.intervals) {
      const auto [at, is_new] = span.try_emplace(interval.step, interval.begin, interval.end);
      if (!is_new)
        at->second = {std::min(at->second.first, interval.begin),
                      std::max(at->second.second, interval.end)};
    }
    for (const auto& [step, range] : span) {
      out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
                         "stroke=\"#8a94a1\" stroke-dasharray=\"3 3\"/>",
                         x(range.second), y + 24, top + row * ranks_);
      if (x(range.second) - x(range.first) > 46)
        out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">step {}</text>",
                           x((range.first + range.second) / 2), y + 15, step);
    }
    return out;
  }

  /// "8→4" over the rows; transitions too near for labels of their own share one: "8→4→2".
  std::string draw_transitions(const arm_timeline& arm, double y) const {
    std::vector<std::pair<double, const json*>> marks;
    for (const auto& event : arm.transitions)
      if (const double seconds = mark_time(arm, event); seconds >= 0)
        marks.emplace_back(x(seconds), &event);
    std::stable_sort(marks.begin(), marks.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    constexpr double label_width = 34, number_width = 14;
    std::string out;
    for (std::size_t i = 0; i < marks.size();) {
      auto label = number(*marks[i].second, "from");
      const double begin = marks[i].first;
      double end = begin, free_from = begin + label_width;
      for (; i < marks.size() && (end == begin || marks[i].first < free_from); ++i) {
        end = marks[i].first;
        label += "→" + number(*marks[i].second, "to");
        free_from += label.size() > 5 ? number_width : 0;
        out +=
            fmt::format("<path class=\"transition\" d=\"M{:.1f} {:.1f}l-4 -6h8z\"/>", end, y + 44);
        if (end == begin) end += 1e-6; // the first of its label
      }
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                         (begin + end) / 2, y + 34, label);
    }
    return out;
  }

  /// Where the transition's own intervals begin: the one after as many others of its step.
  static double mark_time(const arm_timeline& arm, const json& event) {
    if (const auto seconds = number_at(event, "seconds")) return *seconds;
    std::size_t before = 0;
    for (const auto& other : arm.transitions) {
      if (&other == &event) break;
      before += number_at(other, "step") == number_at(event, "step");
    }
    std::vector<double> begins;
    for (const auto& i : arm.intervals)
      if (i.state == "transition" && double(i.step) == number_or_zero(event, "step"))
        begins.push_back(i.begin);
    std::sort(begins.begin(), begins.end());
    constexpr double apart_seconds = 0.02; // members begin one transition together
    std::vector<double> groups;
    for (const double begin : begins)
      if (groups.empty() || begin - groups.back() > apart_seconds) groups.push_back(begin);
    return before < groups.size() ? groups[before] : -1;
  }

  std::string draw_axis(double y) const {
    auto out =
        fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#8a94a1\"/>",
                    left, width - right, y, y);
    const double every = tick_seconds(seconds_);
    for (int i = 0; i * every <= seconds_ * 1.0001; ++i)
      out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
                         "stroke=\"#8a94a1\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" "
                         "text-anchor=\"middle\">{4:g}</text>",
                         x(i * every), y, y + 5, y + 19, i * every);
    return out
           + fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"middle\">seconds from the "
                         "beginning of the arm</text>",
                         (left + width) / 2, y + 35);
  }

  const std::vector<arm_timeline>& arms_;
  std::uint32_t ranks_;
  double seconds_ = 0;
};

std::string card(const std::string& figure, const std::string& text) {
  return fmt::format("<div class=\"panel card\"><b>{}</b><span>{}</span></div>", figure, text);
}

/// The last arm against the first.
std::string cards(const json& arms) {
  std::string out = "<div class=\"cards\">";
  const auto& first = arms.front();
  const auto& last = arms.back();
  const auto verdict = digest_verdict(arms);
  if (!verdict.empty())
    out +=
        card(fmt::format("<span class=\"{}\">{}</span>",
                         verdict.find("DIFFER") == std::string::npos ? "good" : "bad",
                         verdict.find("DIFFER") == std::string::npos ? "identical" : "different"),
             "tokens in all arms");
  const auto dummy_before = number_or_zero(ledger_of(first), "dummy");
  const auto dummy_after = number_or_zero(ledger_of(last), "dummy");
  if (arms.size() > 1 && dummy_before > 0)
    out += card(fmt::format("{:+.1f} %", 100 * (dummy_after / dummy_before - 1)),
                fmt::format("dummy rank-seconds, {} against {}", escaped(text_at(last, "arm", "?")),
                            escaped(text_at(first, "arm", "?"))));
  out += card(fmt::format("{:.1f} %", 100 * share(last, "leased")),
              fmt::format("of all rank-seconds leased ({})", escaped(text_at(last, "arm", "?"))));
  const auto sidecar = object_at(last, "sidecar");
  out += card(number(sidecar, "completed"),
              fmt::format("sidecar answers, {} correct, {} duplicates", number(sidecar, "correct"),
                          number(sidecar, "duplicates")));
  out +=
      card(number(last, "rollout_seconds", 2) + " s",
           fmt::format("rollout ({}); {} s {}", escaped(text_at(last, "arm", "?")),
                       number(first, "rollout_seconds", 2), escaped(text_at(first, "arm", "?"))));
  return out + "</div>";
}

std::string ledger_table(const json& arms) {
  std::string out =
      "<h2>Ledger, rank-seconds</h2><div class=\"panel scroll\"><table><tr><th>arm</th>"
      "<th class=\"l\">share</th>";
  for (const auto& state : states)
    out += fmt::format("<th>{}</th>", state);
  out += "<th>all</th></tr>";
  for (const auto& arm : arms) {
    const auto ledger = ledger_of(arm);
    out +=
        fmt::format("<tr><td>{}</td><td><div class=\"stack\">", escaped(text_at(arm, "arm", "?")));
    for (const auto& state : states)
      out += fmt::format("<i style=\"width:{:.3f}%;background:var(--{})\"></i>",
                         100 * share(arm, state), state);
    out += "</div></td>";
    for (const auto& state : states)
      out += fmt::format("<td>{} ({:.1f} %)</td>", number(ledger, state.c_str(), 2),
                         100 * share(arm, state));
    out += fmt::format("<td>{}</td></tr>", number(ledger, "rank_seconds", 2));
  }
  return out + "</table></div>";
}

std::string results_table(const json& arms) {
  std::string out =
      "<h2>Results</h2><div class=\"panel scroll\"><table><tr><th>arm</th><th>rollout, s"
      "</th><th>responses</th><th>tokens</th><th>mean reward</th><th>contractions</th>"
      "<th>restorations</th><th>leases</th><th>forced</th><th class=\"l\">tokens digest"
      "</th></tr>";
  for (const auto& arm : arms) {
    int contractions = 0, restorations = 0;
    for (const auto& t : list_at(arm, "transitions"))
      ++(text_at(t, "kind") == "contract" ? contractions : restorations);
    const auto leases = object_at(arm, "leases");
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
                       "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"l\">{}</td></tr>",
                       escaped(text_at(arm, "arm", "?")), number(arm, "rollout_seconds", 2),
                       number(arm, "responses"), number(arm, "generated_tokens"),
                       number(arm, "mean_reward", 4), contractions, restorations,
                       number(leases, "granted"), number(leases, "forced"),
                       escaped(text_at(arm, "tokens_digest").substr(0, 24)));
  }
  return out + "</table></div>";
}

/// Ranks that died or did not come back, by the sentence that the run gave; nothing where all did.
std::string quarantine_list(const json& arms) {
  if (arms.empty()) return {};
  std::string out;
  for (const auto& away : list_at(arms.back(), "quarantined"))
    out += fmt::format("<p class=\"bad\">{}</p>", escaped(text_at(away, "text")));
  for (const auto& dead : list_at(arms.back(), "ranks_lost"))
    out += fmt::format("<p class=\"bad\">{}</p>", escaped(text_at(dead, "text")));
  return out;
}

std::string lease_table(const json& arms) {
  std::string out =
      "<h2>Leases</h2><div class=\"panel scroll\"><table><tr><th>arm</th><th>leases</th>"
      "<th>forced</th><th>unclean</th><th>rank-seconds</th><th>window p50, s</th>"
      "<th>start-up, %</th><th>units</th><th>tokens</th><th>units per s</th>"
      "<th>revoke p50, s</th><th>p99, s</th><th>slow-down, %</th><th>cuts</th></tr>";
  for (const auto& arm : arms) {
    const auto leases = object_at(arm, "leases");
    out += fmt::format("<tr><td>{}</td>", escaped(text_at(arm, "arm", "?")));
    const auto cell = [&](const std::string& text) { out += "<td>" + text + "</td>"; };
    for (const auto* key : {"granted", "forced", "unclean"})
      cell(number(leases, key));
    for (const auto* key : {"seconds", "window_seconds_p50"})
      cell(number(leases, key, 2));
    cell(fmt::format("{:.1f}", 100 * number_or_zero(leases, "start_up_share")));
    for (const auto* key : {"units", "tokens"})
      cell(number(leases, key));
    cell(number(leases, "units_per_leased_second", 2));
    for (const auto* key : {"revoke_seconds_p50", "revoke_seconds_p99"})
      cell(number(leases, key, 3));
    cell(fmt::format("{:.1f}", 100 * number_or_zero(leases, "slowdown")));
    cell(number(leases, "cuts"));
    out += "</tr>";
  }
  return out + "</table></div>" + quarantine_list(arms);
}

std::string steps_table(const json& steps) {
  std::string out = "<h2>Steps</h2><div class=\"panel scroll\"><table><tr><th>arm</th><th>step</th>"
                    "<th>rollout, s</th><th>responses</th><th>tokens</th><th>mean reward</th>";
  for (const auto& state : states)
    out += fmt::format("<th>{}</th>", state);
  out += "</tr>";
  for (const auto& step : steps) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
                       "<td>{}</td>",
                       escaped(text_at(step, "arm", "?")), number(step, "step"),
                       number(step, "rollout_seconds", 2), number(step, "responses"),
                       number(step, "generated_tokens"), number(step, "mean_reward", 4));
    for (const auto& state : states)
      out += fmt::format("<td>{:.1f} %</td>", 100 * share(step, state));
    out += "</tr>";
  }
  return out + "</table></div>";
}

std::string transitions_table(const std::vector<arm_timeline>& arms) {
  std::string rows;
  for (const auto& arm : arms)
    for (const auto& t : arm.transitions) {
      std::string members;
      for (const auto& member : list_at(t, "members"))
        members += (members.empty() ? "" : " ") + member.dump();
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"l\">{}</td>"
                          "<td>{} → {}</td><td>{}</td><td>{}</td><td>{}</td>"
                          "<td class=\"l\">{}</td></tr>",
                          escaped(arm.name), number(t, "step"), number(t, "epoch"),
                          escaped(text_at(t, "kind")), number(t, "from"), number(t, "to"),
                          number(t, "at_step"), number(t, "pause_seconds", 1, 1e3),
                          number(t, "bytes", 1, 1e-3), escaped(members));
    }
  if (rows.empty()) return {};
  return "<h2>Transitions</h2><div class=\"panel scroll\"><table><tr><th>arm</th><th>step</th>"
         "<th>epoch</th><th class=\"l\">kind</th><th>ranks</th><th>at decode step</th>"
         "<th>pause, ms</th><th>moved, kB</th><th class=\"l\">members</th></tr>"
         + rows + "</table></div>";
}

std::string heading(const json& run) {
  const auto task = object_at(run, "job");
  std::string models;
  for (const auto& model : list_at(task, "models")) {
    const std::filesystem::path path{model.is_string() ? model.get<std::string>() : ""};
    models += (models.empty() ? "" : ", ") + path.parent_path().filename().string() + "/"
              + path.filename().string();
  }
  auto out = fmt::format("<h1>AdaFloor run</h1><p>{} · {} ranks, floor {} · {} steps of "
                         "{} prompts × {} samples</p>",
                         escaped(models), number(task, "world_size"),
                         number(object_at(task, "ep"), "floor"), number(task, "steps"),
                         number(task, "prompts_per_step"), number(task, "n"));
  if (run.value("interrupted", false))
    out += "<p class=\"bad\">Interrupted: only what was finished is shown.</p>";
  else if (const auto message = text_at(run, "message"); !message.empty())
    out += fmt::format("<pre class=\"bad\">{}</pre>", escaped(message));
  return out;
}

std::string legend() {
  static const std::vector<std::string> meanings{"generates", "keeps the group whole without work",
                                                 "lent to the sidecar", "changes group", "idle"};
  std::string out = "<div class=\"legend\">";
  for (std::size_t i = 0; i < states.size(); ++i)
    out += fmt::format("<span><i style=\"background:var(--{0})\"></i>{0}{1}</span>", states[i],
                       states[i] == meanings[i] ? "" : ": " + meanings[i]);
  return out + "</div>";
}

} // namespace

std::string report_page(const json& run, const std::vector<arm_timeline>& arms) {
  const auto results = list_at(run, "arms");
  const auto task = object_at(run, "job");
  auto page = std::string{head} + heading(run);
  if (!results.empty()) page += cards(results);
  if (!arms.empty())
    page += "<h2>Timeline</h2><div class=\"panel\">" + legend()
            + timeline_drawing{arms, static_cast<std::uint32_t>(number_or_zero(task, "world_size"))}
                  .svg()
            + "</div>";
  if (!results.empty())
    page += ledger_table(results) + results_table(results) + lease_table(results);
  const auto steps = list_at(run, "steps");
  if (!steps.empty()) page += steps_table(steps);
  page += transitions_table(arms);
  page += "<h2>Job</h2><div class=\"panel\"><details><summary>every setting</summary><pre>"
          + escaped(task.dump(2)) + "</pre></details></div>";
  return page + tail;
}

} // namespace adafloor
