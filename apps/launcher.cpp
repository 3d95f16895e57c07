#include "apps/launcher.hpp"

#include "apps/rank_processes.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iostream>
#include <set>

namespace adafloor {
namespace {

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// From SIGTERM to SIGKILL.
constexpr milliseconds stop_grace{3000};
/// Between the first rank's end and stopping the others: the others may name the cause.
constexpr milliseconds settle_time{1500};
/// Between the last result and the end of all processes.
constexpr milliseconds teardown_time{10'000};
/// Beyond the failure time, for rank 0 to say that it goes on without a rank that ended.
constexpr milliseconds verdict_time{3000};

/// Stop signals and ends of children become readable here instead of interrupting.
class signal_reader {
public:
  signal_reader() {
    sigset_t mask;
    sigemptyset(&mask);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
      sigaddset(&mask, s);
    sigprocmask(SIG_BLOCK, &mask, &before_);
    signal(SIGPIPE, SIG_IGN);
    fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  signal_reader(const signal_reader&) = delete;
  signal_reader& operator=(const signal_reader&) = delete;
  ~signal_reader() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_; }
  /// Number of stop signals that have come.
  int stops() const {
    int count = 0;
    signalfd_siginfo info{};
    while (read(fd_, &info, sizeof info) == sizeof info)
      count += info.ssi_signo != SIGCHLD;
    return count;
  }

private:
  sigset_t before_{};
  int fd_ = -1;
};

class watcher {
public:
  watcher(const job& task, rank_processes& ranks,
          const std::function<void(const nlohmann::json&)>& on_event)
    : task_(task), ranks_(ranks), on_event_(on_event) {}

  launch_outcome watch(const signal_reader& signals) {
    bool events_open = true;
    while (ranks_.running() > 0 || events_open) {
      pollfd fds[2] = {{signals.fd(), POLLIN, 0},
                       {events_open ? ranks_.events_fd() : -1, POLLIN, 0}};
      poll(fds, 2, wait_ms());
      if (fds[1].revents != 0) events_open = read_events();
      if (const int stops = signals.stops(); stops > 0) interrupt();
      while (const auto end = ranks_.reap())
        note_exit(*end);
      keep_deadlines();
      if (ranks_.running() == 0 && events_open) { // a stray holder must not keep us here
        while (read_events() && poll(&fds[1], 1, 0) > 0) {
        }
        events_open = false;
      }
    }
    return outcome();
  }

private:
  int wait_ms() const {
    const auto next = std::min(deadline_, verdict_by_);
    if (next == clock::time_point::max()) return -1;
    const auto left = std::chrono::duration_cast<milliseconds>(next - clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left + 1, 0, 60'000));
  }

  bool read_events() {
    char bytes[65536];
    pollfd ready{ranks_.events_fd(), POLLIN, 0};
    if (poll(&ready, 1, 0) <= 0) return true;
    const auto size = read(ranks_.events_fd(), bytes, sizeof bytes);
    if (size < 0) return errno == EINTR || errno == EAGAIN;
    if (size == 0) return false;
    pending_.append(bytes, static_cast<std::size_t>(size));
    std::size_t begin = 0;
    for (auto end = pending_.find('\n'); end != std::string::npos;
         end = pending_.find('\n', begin)) {
      take_line(pending_.substr(begin, end - begin));
      begin = end + 1;
    }
    pending_.erase(0, begin);
    return true;
  }

  void take_line(const std::string& line) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event") || !event["event"].is_string()) {
      std::cerr << fmt::format("adafloor: rank 0 sent a line that is no event: {:.200}\n", line);
      return;
    }
    if (event["event"] == "arm_begin" || event["event"] == "step_begin") running_ = true;
    if (event["event"] == "rank_lost") lost_.insert(event.value("rank", 0U));
    if (event["event"] == "rank_lost" || event["event"] == "quarantine")
      expect_verdict_no_more(event.value("rank", 0U));
    if (event["event"] == "done") {
      done_ = true;
      for (const auto rank : lost_) // A frozen one never ends by itself.
        ranks_.signal(rank, SIGKILL);
      stop_after(teardown_time);
    }
    if (event["event"] == "error" && error_text_.empty()) error_text_ = event.value("text", line);
    on_event_(event);
  }

  void interrupt() {
    if (interrupted_) {
      ranks_.signal_all(SIGKILL);
      return;
    }
    interrupted_ = true;
    stop_ranks();
  }

  /// Whether the others may go on without it is for rank 0 to say: once they work together, a rank
  /// that is killed is a rank that is lost, and so is one that lost the others.
  bool may_be_outlived(const rank_exit& end) const {
    return running_ && end.rank != 0 && (end.by_signal || end.status == 3);
  }

  void note_exit(const rank_exit& end) {
    exits_.push_back(end);
    if (!end.clean() && !stopping_) {
      if (may_be_outlived(end)) {
        std::cerr << fmt::format("adafloor: {}; the other ranks decide what becomes of the run\n",
                                 describe(end));
        expect_verdict(end.rank);
      } else {
        stop_after(settle_time);
      }
    }
    if (end.rank != 0 || done_) return;
    if (end.by_signal && !stopping_)
      kill_ranks(); // Nobody is left who would end the others, and the cause is known.
    else
      stop_after(settle_time);
  }

  /// Rank 0 declares a rank lost soon after it ended, or is frozen itself: then nothing that the
  /// others do ends it. Where all of them have given it up there is nothing to wait for.
  void expect_verdict(std::uint32_t rank) {
    if (lost_.count(rank) || judged_.count(rank) || done_) return;
    awaited_.insert(rank);
    const auto patience = milliseconds(task_.runtime.failure_ms) + verdict_time;
    const bool all_gone = all_local(task_) && awaited_.size() + 1 == task_.world_size;
    verdict_by_ = std::min(verdict_by_, clock::now() + (all_gone ? settle_time : patience));
  }
  void expect_verdict_no_more(std::uint32_t rank) {
    judged_.insert(rank);
    awaited_.erase(rank);
    if (awaited_.empty()) verdict_by_ = clock::time_point::max();
  }

  /// The nearer of two stops wins.
  void stop_after(milliseconds time) {
    if (!stopping_) deadline_ = std::min(deadline_, clock::now() + time);
  }

  void stop_ranks() {
    stopping_ = true;
    stopped_after_ = exits_.size();
    ranks_.signal_all(SIGTERM);
    deadline_ = clock::now() + stop_grace;
  }

  /// Where nobody is left who would hear anything else.
  void kill_ranks() {
    stop_ranks();
    ranks_.signal_all(SIGKILL);
  }

  void keep_deadlines() {
    if (clock::now() >= verdict_by_) {
      verdict_by_ = clock::time_point::max();
      if (!stopping_ && !done_) kill_ranks();
    }
    if (clock::now() < deadline_) return;
    if (!stopping_) return stop_ranks();
    ranks_.signal_all(SIGKILL);
    deadline_ = clock::time_point::max();
  }

  /// The exit that explains the others: a kill before a status of its own before "lost a peer".
  const rank_exit* cause() const {
    const rank_exit* best = nullptr;
    const auto weight = [](const rank_exit& e) { return e.by_signal ? 2 : e.status != 3 ? 1 : 0; };
    for (std::size_t i = 0; i < exits_.size(); ++i) {
      if (exits_[i].clean() || (stopping_ && i >= stopped_after_)) continue; // we ended that one
      if (done_ && lost_.count(exits_[i].rank)) continue;                    // the others finished
      if (best == nullptr || weight(exits_[i]) > weight(*best)) best = &exits_[i];
    }
    return best;
  }

  launch_outcome outcome() const {
    if (interrupted_)
      return {
          1, true, false,
          fmt::format("interrupted; what was finished is kept, and adafloor run --resume {} goes "
                      "on from there",
                      task_.out_dir)};
    const auto* first = cause();
    if (first == nullptr && done_) return {};
    if (first == nullptr) {
      const auto why = error_text_.empty() ? "the ranks ended without a result" : error_text_;
      return {1, false, false, fmt::format("{}\n{}", why, log_tail(task_.out_dir, 0))};
    }
    auto text = describe(*first);
    if (!error_text_.empty()) text += ": " + error_text_;
    text += "\n" + log_tail(task_.out_dir, first->rank);
    if (done_) return {1, false, false, text + "\n  (all results were written before)"};
    const bool own_status = !first->by_signal && (first->status == 1 || first->status == 2);
    if (own_status) return {first->status, false, false, text};
    // Ranks that others started find the new rank 0 only at a port that they know.
    const bool all_return = all_local(task_) || task_.transport.port != 0;
    const bool had_begun = running_ || task_.term > 1;
    return {3, false, had_begun && all_return, text};
  }

  const job& task_;
  rank_processes& ranks_;
  const std::function<void(const nlohmann::json&)>& on_event_;
  std::string pending_, error_text_;
  std::vector<rank_exit> exits_;
  std::size_t stopped_after_ = 0;
  std::set<std::uint32_t> lost_; ///< ranks that the others go on without
  std::set<std::uint32_t> awaited_,
      judged_; ///< that ended; rank 0 has not told of them yet, or has
  bool running_ = false, done_ = false, interrupted_ = false, stopping_ = false;
  clock::time_point deadline_ = clock::time_point::max();
  clock::time_point verdict_by_ = clock::time_point::max();
};

} // namespace

launch_outcome launch(const job& task, const std::function<void(const nlohmann::json&)>& on_event) {
  const signal_reader signals;
  auto ranks = rank_processes::start(task);
  if (!ranks) return {1, false, false, ranks.error().text};
  if (!all_local(task))
    std::cerr << fmt::format(
        "ranks {} to {}: start each on its host, within {} s, with\n  "
        "adafloor node --job {}/job.json "
        "--rank RANK --master {} --bind ITS_ADDRESS --token-file {}\n{}",
        task.transport.local_ranks, task.world_size - 1, task.runtime.start_ms / 1000, task.out_dir,
        ranks->master(), task.transport.token_file,
        task.term > 1 ? "  (those that still run join again by themselves)\n" : "");
  return watcher{task, *ranks, on_event}.watch(signals);
}

} // namespace adafloor
