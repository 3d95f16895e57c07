#include "actors/callback_worker.hpp"

#include "actors/aux_work.hpp"
#include "actors/rank_line.hpp"
#include "actors/unit_number.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace adafloor {
namespace {

/// Runs units, one after the other, on a thread of its own.
class unit_runner {
public:
  struct outcome {
    run_unit order;
    result<std::string> gave;
  };
  explicit unit_runner(const callback_worker_options& o)
    : options_(o), done_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (done_fd_ < 0) throw std::runtime_error("no eventfd; allow more open files (ulimit -n)");
    std::thread([this] { run(); }).detach(); // A unit that does not end keeps nobody waiting.
  }

  /// Readable when a unit has ended.
  int done_fd() const { return done_fd_; }
  void push(const run_unit& order) {
    {
      std::lock_guard lock(mutex_);
      stop_ = false;
      orders_.push_back(order);
    }
    wake_.notify_one();
  }
  void request_stop() { stop_ = true; }
  std::optional<outcome> take() {
    eventfd_t count = 0;
    eventfd_read(done_fd_, &count);
    std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }

private:
  [[noreturn]] void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !orders_.empty(); });
      const auto order = std::move(orders_.front());
      orders_.pop_front();
      lock.unlock();
      auto gave = do_unit(order);
      lock.lock();
      done_.emplace(outcome{order, std::move(gave)});
      eventfd_write(done_fd_, 1);
    }
  }
  result<std::string> do_unit(const run_unit& order);

  const callback_worker_options& options_;
  int done_fd_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<run_unit> orders_;
  std::optional<outcome> done_;
  std::map<std::string, std::unique_ptr<aux_work>> works_; ///< the runner's thread only
};

result<std::string> unit_runner::do_unit(const run_unit& m) {
  if (m.work.command.size() != 2) return bad_input("a callback needs a name and an input");
  const auto& name = m.work.command.front();
  const auto* make = find_aux_work(name);
  if (!make) return bad_input("no auxiliary work \"" + name + "\" is linked into this program");
  aux_lease lease(stop_);
  lease.id = std::to_string(m.lease.epoch.value) + "." + std::to_string(m.lease.counter);
  lease.rank = rank_id(options_.rank);
  lease.device = options_.device;
  lease.needed_at =
      std::chrono::time_point_cast<microseconds>(std::chrono::steady_clock::now()) + m.window;
  try {
    auto& work = works_[name];
    if (!work) work = (*make)();
    auto gave = work->run(index_of_unit(m.work.unit), m.work.command.back(), lease);
    if (gave && gave->size() > aux_work::text_bytes_max)
      return fail(error_code::internal, "its result has " + std::to_string(gave->size())
                                            + " bytes, at most "
                                            + std::to_string(aux_work::text_bytes_max));
    return gave;
  } catch (const std::exception& e) {
    return fail(error_code::internal, e.what());
  }
}

class callback_worker {
public:
  explicit callback_worker(const callback_worker_options& o)
    : options_(o), rank_(o.rank, o.socket_fd), runner_(o) {}
  /// Until the rank is gone. Errors: internal.
  result<void> run();

private:
  void handle(const run_unit& m);
  void handle(const stop_worker& m);
  void note_outcome();
  void answer_stop();

  const callback_worker_options& options_;
  rank_line rank_;
  unit_runner runner_;
  bool running_ = false;
  std::optional<stop_worker> stop_; ///< not answered yet
};

result<void> callback_worker::run() {
  for (;;) {
    pollfd waits[] = {{rank_.fd(), static_cast<short>(POLLIN | (rank_.unsent() ? POLLOUT : 0)), 0},
                      {runner_.done_fd(), POLLIN, 0}};
    poll(waits, std::size(waits), -1);
    rank_.flush();
    note_outcome();
    const auto goes_on = rank_.take_orders([this](const auto& order) { handle(order); });
    if (!goes_on) return tl::unexpected(goes_on.error());
    if (!*goes_on) return {};
  }
}

/// The machine gives one unit at a time.
void callback_worker::handle(const run_unit& m) {
  if (std::exchange(running_, true)) return;
  runner_.push(m);
}

void callback_worker::handle(const stop_worker& m) {
  stop_ = m;
  if (!running_) return answer_stop();
  runner_.request_stop();
}

void callback_worker::answer_stop() {
  rank_.tell(worker_stopped{stop_->lease, stop_->kill, true});
  stop_.reset();
}

void callback_worker::note_outcome() {
  auto done = runner_.take();
  if (!done) return;
  running_ = false;
  const bool handed_back = stop_ && !done->gave && done->gave.error().code == error_code::aborted;
  if (!handed_back) {
    work_result answer;
    answer.lease = done->order.lease;
    answer.unit = done->order.work.unit;
    if (done->gave)
      answer.text = std::move(*done->gave);
    else
      answer.error = done->gave.error().text;
    rank_.tell(std::move(answer));
  }
  if (stop_) answer_stop();
}

} // namespace

int run_callback_worker(const callback_worker_options& options) {
  prctl(PR_SET_NAME, ("adafloor-c" + std::to_string(options.rank)).c_str());
  callback_worker worker(options);
  const auto done = worker.run();
  if (!done)
    std::fprintf(stderr, "rank %u: its callback worker ends: %s\n", options.rank,
                 done.error().text.c_str());
  std::_Exit(done ? 0 : 1); // While `worker` is there: its unit may still run.
}

} // namespace adafloor
