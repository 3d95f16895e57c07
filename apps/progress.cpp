#include "apps/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

namespace adafloor {

using nlohmann::json;

progress::progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

void progress::take(const json& event) {
  const auto kind = event.value("event", "");
  const auto arm = event.value("arm", "");
  const auto step = event.value("step", 0);
  if (kind == "arm_begin") line(fmt::format("{}: begins", arm));
  if (kind == "step_begin") {
    shown_percent_ = 0;
    std::string exits;
    for (const auto& exit : event.value("exits", json::array()))
      exits += fmt::format("{}{} ranks after {} tokens", exits.empty() ? "; planned: " : ", ",
                           exit.value("to", 0), exit.value("at", 0.0));
    line(fmt::format("{}: step {}: {} prompts, {} responses{}", arm, step,
                     event.value("prompts", 0), event.value("responses", 0), exits));
  }
  if (kind == "progress") bar(event);
  if (kind == "transition")
    line(fmt::format("{}: step {}: {} {} -> {} ranks, pause {:.1f} ms, {:.1f} kB moved", arm, step,
                     event.value("kind", ""), event.value("from", 0), event.value("to", 0),
                     1e3 * event.value("pause_seconds", 0.0), 1e-3 * event.value("bytes", 0.0)));
  if (kind == "step_end")
    line(fmt::format("{}: step {}: {:.2f} s, {} tokens, mean reward {:.3f}", arm, step,
                     event.value("rollout_seconds", 0.0),
                     event.value("generated_tokens", std::uint64_t{0}),
                     event.contains("mean_reward") && event["mean_reward"].is_number()
                         ? event["mean_reward"].get<double>()
                         : 0.0));
  if (kind == "error") line(fmt::format("error: {}", event.value("text", "")));
}

void progress::bar(const json& event) {
  const auto total = std::max<std::uint64_t>(1, event.value("total", std::uint64_t{0}));
  const auto finished = event.value("finished", std::uint64_t{0});
  const auto percent = 100 * finished / total;
  if (!terminal_) {
    constexpr std::uint64_t every = 25;
    if (percent < shown_percent_ + every || percent >= 100) return;
    shown_percent_ = percent / every * every;
    line(fmt::format("{}: step {}: {} of {} responses, {} ranks generate", event.value("arm", ""),
                     event.value("step", 0), finished, total, event.value("group_size", 0)));
    return;
  }
  constexpr std::uint64_t width = 30;
  const auto filled = static_cast<std::size_t>(std::min(width, width * finished / total));
  std::cerr << fmt::format(
      "\r\033[K{} step {} [{}{}] {}/{} responses, {} tokens, group of {}", event.value("arm", ""),
      event.value("step", 0), std::string(filled, '#'), std::string(width - filled, '.'), finished,
      total, event.value("generated_tokens", std::uint64_t{0}), event.value("group_size", 0))
            << std::flush;
  bar_shown_ = true;
}

void progress::line(const std::string& text) {
  finish();
  std::cerr << text << std::endl;
}

void progress::finish() {
  if (bar_shown_) std::cerr << "\r\033[K" << std::flush;
  bar_shown_ = false;
}

} // namespace adafloor
