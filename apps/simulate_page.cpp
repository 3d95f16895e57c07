#include "apps/simulate_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace adafloor {
namespace {

constexpr const char* head = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>AdaFloor simulation</title><style>
body{margin:0;background:#f5f7f9;color:#1c2430;font:15px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1320px;margin:0 auto;padding:28px 32px 56px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:34px 0 8px}p{margin:4px 0;color:#5d6876}
.panel{background:#fff;border:1px solid #dfe4ea;border-radius:10px;padding:14px 18px}
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:#5d6876}
.busy{fill:#2f6fc4}.dummy{fill:#eba937}.leased{fill:#2a9d72}.transition{fill:#c62f66}
.idle{fill:#d5dae1}.legend svg{display:inline;width:14px;height:14px;vertical-align:-2px}
.legend span{margin-right:20px}table{border-collapse:collapse}
td,th{padding:3px 14px 3px 0;text-align:right}
</style></head><body><main>
)";

constexpr std::array<const char*, 5> kinds{"busy", "dummy", "leased", "transition", "idle"};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

std::string timeline(const arm_result& arm) {
  constexpr double width = 1240, row = 13;
  double scale = arm.seconds > 0 ? width / arm.seconds : 0, begin = 0;
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"ranks "
                  "of {} over time\">\n",
                  width + 40, arm.world * row + 22, arm.arm);
  for (int r = 0; r < arm.world; ++r)
    svg += fmt::format("<text x=\"0\" y=\"{:.1f}\">{}</text>\n", r * row + 10, r);
  for (const auto& step : arm.steps) {
    for (const auto& span : step.spans) {
      const char* kind = kinds[static_cast<std::size_t>(span.kind)];
      svg += fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
                         "height=\"{:.1f}\"><title>rank {} {} {:.1f} s</title></rect>\n",
                         kind, 24 + (begin + span.from_seconds) * scale, span.rank * row,
                         std::max(0.1, (span.to_seconds - span.from_seconds) * scale), row - 1.5,
                         span.rank, kind, span.to_seconds - span.from_seconds);
    }
    begin += step.seconds;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.0f} s</text>\n",
                       24 + begin * scale, arm.world * row + 14, begin);
  }
  return svg + "</svg>\n";
}

std::string tails(const arm_result& arm) {
  std::string rows = "<table><tr><th>step</th><th>predicted tail</th><th>real tail</th>"
                     "<th>floor</th><th>seconds</th><th>exits</th></tr>\n";
  for (std::size_t s = 0; s < arm.steps.size(); ++s) {
    std::string exits;
    for (const auto& t : arm.steps[s].transitions)
      exits += fmt::format("{} to {} at {:.0f}; ", t.from, t.to, t.at_step);
    rows += fmt::format("<tr><td>{}</td><td>{:.0f}</td><td>{:.0f}</td><td>{}</td><td>{:.0f}</td>"
                        "<td>{}</td></tr>\n",
                        s + 1, arm.plan.steps[s].tail, arm.steps[s].steps, arm.plan.steps[s].floor,
                        arm.steps[s].seconds, exits);
  }
  return rows + "</table>\n";
}

} // namespace

std::string simulation_page(const std::string& heading, const std::vector<arm_result>& results) {
  std::string page = head;
  page += "<h1>AdaFloor simulation</h1><p>" + escaped(heading) + "</p>\n<p class=\"legend\">";
  for (const char* kind : kinds)
    page += fmt::format("<svg viewBox=\"0 0 14 14\"><rect class=\"{}\" width=\"14\" height=\"14\"/>"
                        "</svg> <span>{}</span>",
                        kind, kind);
  page += "</p>\n";
  for (const auto& arm : results)
    page += fmt::format("<h2>{}: {:.0f} s, {:.0f} rank-s bound, {:.0f} rank-s dummy</h2>"
                        "<div class=\"panel\">\n{}{}</div>\n",
                        escaped(arm.arm), arm.seconds, arm.ledger.bound(), arm.ledger.dummy,
                        timeline(arm), tails(arm));
  return page + "</main></body></html>\n";
}

} // namespace adafloor
