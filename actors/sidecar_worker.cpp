#include "actors/sidecar_worker.hpp"

#include "actors/unit_number.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace adafloor {
namespace {

constexpr int watch_every_ms = 10; ///< a command that runs
constexpr int of_signal = 128;     ///< in exit codes

/// The end of a file, at most 16 KiB; msgpack carries any bytes, JSON does not: others become '?'.
std::string end_of(const std::string& path) {
  constexpr std::streamoff shown_max = 16384;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - shown_max));
  std::string text(static_cast<std::size_t>(std::min(size, shown_max)), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  constexpr unsigned char last_ascii = 126;
  for (auto& c : text)
    if (static_cast<unsigned char>(c) > last_ascii) c = '?';
  return text;
}

} // namespace

sidecar_worker::sidecar_worker(options o, std::function<void(envelope)> post)
  : options_(std::move(o)), post_(std::move(post)), wake_fd_(eventfd(0, EFD_CLOEXEC)) {
  if (wake_fd_ < 0) throw std::runtime_error("no eventfd; allow more open files (ulimit -n)");
  thread_ = std::thread([this] { run(); });
}

sidecar_worker::~sidecar_worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  close(wake_fd_);
}

void sidecar_worker::push(const envelope& command) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(command);
  }
  wake();
}

void sidecar_worker::wait_loaded(microseconds most) {
  std::unique_lock lock(mutex_);
  loaded_now_.wait_for(lock, most, [this] { return loaded_; });
}

void sidecar_worker::note_loaded() {
  std::lock_guard lock(mutex_);
  if (!loaded_) loaded_now_.notify_all();
  loaded_ = true;
}

void sidecar_worker::wake() const {
  eventfd_write(wake_fd_, 1);
}

void sidecar_worker::tell(any_message message) {
  envelope e;
  e.from = {options_.self, role_kind::worker};
  e.to = {options_.self, role_kind::sidecar};
  e.body = std::move(message);
  post_(std::move(e));
}

/// On this thread processes start and end: the kernel kills them when it ends.
void sidecar_worker::run() {
  const auto pass_on = [this](any_message said) { tell(std::move(said)); };
  model_.emplace(options_.model, pass_on);
  callback_.emplace(options_.callback, pass_on);
  while (take_commands()) {
    model_->watch();
    callback_->watch();
    if (model_->loaded()) note_loaded();
    if (command_) watch_command();
    wait();
  }
  command_.reset();
  callback_.reset();
  model_.reset();
}

void sidecar_worker::wait() const {
  int patience = -1;
  for (const int ms :
       {model_->patience_ms(), callback_->patience_ms(), command_ ? watch_every_ms : -1})
    if (ms >= 0 && (patience < 0 || ms < patience)) patience = ms;
  pollfd waits[] = {{wake_fd_, POLLIN, 0}, model_->waits_for(), callback_->waits_for()};
  poll(waits, std::size(waits), patience);
  eventfd_t woken = 0;
  if (waits[0].revents != 0) eventfd_read(wake_fd_, &woken);
}

bool sidecar_worker::take_commands() {
  std::deque<envelope> taken;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    taken.swap(queue_);
  }
  for (const auto& e : taken)
    if (const auto* unit = std::get_if<run_unit>(&e.body))
      handle(*unit);
    else if (const auto* end = std::get_if<stop_worker>(&e.body))
      handle(*end);
  return true;
}

void sidecar_worker::handle(const run_unit& m) {
  if (command_) return; // A repeat: commands run alone.
  if (m.work.kind == work_kind::callback) return callback_->run(m);
  if (m.work.kind != work_kind::exec) return model_->run(m);
  const auto name = std::to_string(m.work.unit) + "-" + std::to_string(options_.self.value);
  command_.emplace(running_command{
      m, options_.scratch + "/" + name, std::chrono::steady_clock::now() + m.window, {}, 0, {}});
  start_command();
}

void sidecar_worker::start_command() {
  auto& c = *command_;
  std::error_code failed;
  std::filesystem::remove_all(c.folder, failed);
  std::filesystem::create_directories(c.folder, failed);
  const auto& lease = c.order.lease;
  process_group::order order;
  order.command = c.order.work.command;
  order.output = c.folder + ".log";
  order.cpus = options_.cpus;
  order.memory_bytes = options_.memory_bytes;
  const std::chrono::duration<double> left = c.needed - std::chrono::steady_clock::now();
  order.environment = {
      "ADAFLOOR_UNIT=" + std::to_string(index_of_unit(c.order.work.unit)),
      "ADAFLOOR_LEASE_ID=" + std::to_string(lease.epoch.value) + "."
          + std::to_string(lease.counter),
      "ADAFLOOR_LEASE_RANK=" + std::to_string(options_.self.value),
      "ADAFLOOR_LEASE_DEVICE=" + options_.device,
      "ADAFLOOR_LEASE_DEADLINE_SECONDS=" + std::to_string(std::max(left.count(), 0.0)),
      "ADAFLOOR_LEASE_GRACE_SECONDS=" + std::to_string(options_.grace_seconds),
      "ADAFLOOR_SCRATCH=" + c.folder,
  };
  auto started = failed ? fail(error_code::io, c.folder + ": " + failed.message())
                        : process_group::start(order);
  if (!started) { // Not the unit's fault: unanswered, it goes back to the queue with the lease.
    std::fprintf(stderr, "rank %u: no auxiliary work: %s\n", options_.self.value,
                 started.error().text.c_str());
    return command_.reset();
  }
  c.group.emplace(std::move(*started));
}

void sidecar_worker::watch_command() {
  auto& c = *command_;
  if (!c.group) return;
  const auto code = c.group->ended();
  if (!code && c.stop && c.stop->kill) c.group->signal(SIGKILL);
  if (!code || !c.group->gone()) return;
  c.group.reset();
  const bool again = ++c.kills < options_.attempts_max || options_.attempts_max == 0;
  if (!c.stop && *code == of_signal + SIGKILL && again) return start_command();
  end_command(*code);
}

/// Nothing of the command runs any more.
void sidecar_worker::end_command(int code) {
  const auto c = std::move(*command_);
  command_.reset();
  const auto& order = c.order;
  if (code == 0 || !c.stop)
    tell(work_result{order.lease, order.work.unit, {}, {}, code, end_of(c.folder + ".log")});
  std::error_code ignored;
  std::filesystem::remove_all(c.folder, ignored);
  std::filesystem::remove(c.folder + ".log", ignored);
  if (c.stop) tell(worker_stopped{c.stop->lease, c.stop->kill, true});
}

/// A command's group is waited for: only its end is the answer.
void sidecar_worker::handle(const stop_worker& m) {
  if (!command_) return (callback_->busy() ? *callback_ : *model_).stop(m);
  command_->stop = m;
  command_->group->signal(m.kill ? SIGKILL : SIGTERM);
}

} // namespace adafloor
