#include "actors/worker_process.hpp"

#include "actors/model_worker.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace adafloor {

worker_process::worker_process(options o, std::function<void(any_message)> tell)
  : options_(std::move(o)), tell_(std::move(tell)), loaded_(options_.models.empty()) {
  if (wanted()) start();
}

worker_process::~worker_process() = default;

void worker_process::start() {
  const auto ends = envelope_stream::open_pair();
  if (!ends) return complain("cannot be started: " + ends.error().text), pause_after_failure();
  envelope_stream ours(ends->first);
  process_group::order order;
  order.program = options_.program.empty() ? "/proc/self/exe" : options_.program;
  order.command = {"adafloor",    options_.command,
                   "--rank",      std::to_string(options_.self.value),
                   "--socket-fd", std::to_string(process_group::passed_fd)};
  order.command.insert(order.command.end(), options_.arguments.begin(), options_.arguments.end());
  for (const auto& folder : options_.models)
    order.command.insert(order.command.end(), {"--model", folder});
  order.socket_fd = ends->second;
  order.niceness = loaded_ ? model_worker_niceness : 0;
  order.cpus = options_.cpus;
  order.memory_bytes = options_.memory_bytes;
  auto started = process_group::start(order);
  close(ends->second);
  if (!started)
    return complain("cannot be started: " + started.error().text), pause_after_failure();
  group_.emplace(std::move(*started));
  talk_.emplace(std::move(ours));
  ready_ = false;
  talk_->send({{}, {}, {}, {}, stop_worker{}}); // Answered when it is ready.
  for (const auto& [unit, order_of] : running_)
    talk_->send({{}, {}, {}, {}, order_of});
}

void worker_process::complain(const std::string& what) const {
  std::fprintf(stderr, "rank %u: its %s %s\n", options_.self.value, options_.command.c_str(),
               what.c_str());
}

void worker_process::pause_after_failure() {
  constexpr std::chrono::milliseconds first{100}, most{10'000};
  constexpr std::uint32_t doublings_max = 7;
  ++failures_;
  loaded_ = true; // Nobody waits for what may never come.
  start_at_ = clock::now();
  if (failures_ > 1)
    start_at_ += std::min(most, first * (1 << std::min(failures_ - 2, doublings_max)));
}

void worker_process::run(const run_unit& m) {
  if (stop_ || (broken_ && *broken_ == m.lease)) return;
  if (!running_.emplace(m.work.unit, m).second) return; // A repeat.
  if (talk_) talk_->send({{}, {}, {}, {}, m});
}

void worker_process::stop(const stop_worker& m) {
  const bool idle = !busy();
  stop_ = m;
  if (idle || !group_) return answer_stop();
  if (m.kill) {
    talk_.reset();
    group_->signal(SIGKILL);
  } else if (talk_) {
    talk_->send({{}, {}, {}, {}, m});
  }
}

/// Nothing of the lease runs any more.
void worker_process::answer_stop(std::vector<partial_answer> partial) {
  running_.clear();
  tell_(worker_stopped{stop_->lease, stop_->kill, true, std::move(partial)});
  stop_.reset();
}

pollfd worker_process::waits_for() const {
  if (!talk_) return {-1, 0, 0};
  return {talk_->fd(), static_cast<short>(POLLIN | (talk_->unsent() ? POLLOUT : 0)), 0};
}

int worker_process::patience_ms() const {
  constexpr int watch_an_end = 2;
  if (talk_) return -1;
  if (group_) return watch_an_end;
  if (!wanted()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(start_at_ - clock::now());
  return std::max(0, static_cast<int>(left.count()));
}

void worker_process::watch() {
  if (talk_) listen();
  if (group_ && !talk_ && group_->gone()) note_end();
  if (!group_ && wanted() && clock::now() >= start_at_) start();
}

void worker_process::listen() {
  talk_->flush();
  for (;;) {
    auto said = talk_->receive();
    if (!said) break;
    if (!*said) return;
    if (auto* done = std::get_if<work_result>(&(*said)->body)) {
      failures_ = 0;
      if (running_.erase(done->unit) > 0) tell_(std::move(*done));
    } else if (auto* gone = std::get_if<worker_stopped>(&(*said)->body)) {
      loaded_ = ready_ = true;
      if (stop_ && gone->lease == stop_->lease) answer_stop(std::move(gone->partial));
    }
  }
  talk_.reset();
  group_->signal(SIGKILL);
}

void worker_process::note_end() {
  complain("ended with exit status " + std::to_string(group_->ended().value_or(0)));
  group_.reset();
  pause_after_failure();
  if (stop_) return answer_stop();
  if (running_.empty() || !ready_) return;
  broken_ = running_.begin()->second.lease;
  running_.clear();
  tell_(worker_stopped{*broken_, true, true});
}

} // namespace adafloor
