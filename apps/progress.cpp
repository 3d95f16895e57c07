#include "apps/progress.hpp"

#include "apps/json_fields.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace adafloor {

using nlohmann::json;

progress::progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

void progress::take(const json& event) {
  const auto kind = text_at(event, "event");
  const auto arm = text_at(event, "arm");
  const auto step = number_or_zero(event, "step");
  if (kind == "arm_begin") line(fmt::format("{}: begins", arm));
  if (kind == "step_begin") {
    shown_percent_ = 0;
    std::string exits;
    for (const auto& exit : list_at(event, "exits"))
      exits +=
          fmt::format("{}{:.0f} ranks after {:.0f} tokens", exits.empty() ? "; planned: " : ", ",
                      number_or_zero(exit, "to"), number_or_zero(exit, "at"));
    line(fmt::format("{}: step {:.0f}: {:.0f} prompts, {:.0f} responses{}", arm, step,
                     number_or_zero(event, "prompts"), number_or_zero(event, "responses"), exits));
  }
  if (kind == "progress") bar(event);
  if (kind == "transition")
    line(fmt::format("{}: step {:.0f}: {} {:.0f} -> {:.0f} ranks, pause {:.1f} ms, {:.1f} kB moved",
                     arm, step, text_at(event, "kind"), number_or_zero(event, "from"),
                     number_or_zero(event, "to"), 1e3 * number_or_zero(event, "pause_seconds"),
                     1e-3 * number_or_zero(event, "bytes")));
  if (kind == "step_end") {
    const auto reward = number_at(event, "mean_reward");
    line(fmt::format("{}: step {:.0f}: {:.2f} s, {:.0f} tokens{}", arm, step,
                     number_or_zero(event, "rollout_seconds"),
                     number_or_zero(event, "generated_tokens"),
                     reward ? fmt::format(", mean reward {:.3f}", *reward) : ""));
  }
  if (kind == "quarantine") line("warning: " + text_at(event, "text"));
  if (kind == "rank_lost")
    line(fmt::format("warning: {}; the job goes on with {:.0f} ranks", text_at(event, "text"),
                     number_or_zero(event, "world_size")));
  if (kind == "recovery")
    line(fmt::format(
        "recovered: {:.0f} ranks decode on after {:.2f} s ({:.2f} s of silence); {:.0f} requests "
        "rebuilt, {:.0f} of their tokens from the log",
        number_or_zero(event, "members"), number_or_zero(event, "stall_seconds"),
        number_or_zero(event, "silence_seconds"), number_or_zero(event, "requests_rebuilt"),
        number_or_zero(event, "tokens_from_log")));
  if (kind == "resumed")
    line(fmt::format("{}: step {:.0f}: goes on; {:.0f} responses are there, and {:.0f} tokens of "
                     "others; {:.1f} s lost",
                     arm, step, number_or_zero(event, "responses_kept"),
                     number_or_zero(event, "tokens_from_log"),
                     number_or_zero(event, "seconds_lost")));
  if (kind == "error") line("error: " + text_at(event, "text"));
}

void progress::bar(const json& event) {
  const auto total = std::max(1.0, number_or_zero(event, "total"));
  const auto finished = std::min(total, number_or_zero(event, "finished"));
  const auto percent = static_cast<std::uint64_t>(100 * finished / total);
  const auto where =
      fmt::format("{}: step {:.0f}:", text_at(event, "arm"), number_or_zero(event, "step"));
  if (!terminal_) {
    constexpr std::uint64_t every = 25;
    if (percent < shown_percent_ + every || percent >= 100) return;
    shown_percent_ = percent / every * every;
    line(fmt::format("{} {:.0f} of {:.0f} responses", where, finished, total));
    return;
  }
  constexpr std::size_t width = 30;
  const auto filled = static_cast<std::size_t>(width * finished / total);
  std::cerr << fmt::format("\r\033[K{} [{}{}] {:.0f}/{:.0f} responses, {:.0f} tokens", where,
                           std::string(filled, '#'), std::string(width - filled, '.'), finished,
                           total, number_or_zero(event, "generated_tokens"))
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
