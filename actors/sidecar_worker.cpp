#include "actors/sidecar_worker.hpp"

#include "actors/unit_number.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace adafloor {
namespace {

constexpr std::chrono::milliseconds watch_every{10}; ///< a command that runs
constexpr int of_signal = 128;                       ///< in exit codes

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
  : options_(std::move(o)), post_(std::move(post)) {
  thread_ = std::thread([this] { run(); });
}

sidecar_worker::~sidecar_worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void sidecar_worker::push(const envelope& command) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(command);
  }
  wake_.notify_one();
}

template <class M>
void sidecar_worker::tell(M message) {
  envelope e;
  e.from = {options_.self, role_kind::worker};
  e.to = {options_.self, role_kind::sidecar};
  e.body = std::move(message);
  post_(std::move(e));
}

void sidecar_worker::run() {
  constexpr int lowest_priority = 19;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), lowest_priority);
  while (take_commands()) {
    if (!running_.empty()) do_step();
    if (command_) watch_command();
  }
  command_.reset(); // On this thread: the kernel kills the command when it ends.
}

bool sidecar_worker::take_commands() {
  std::deque<envelope> taken;
  {
    std::unique_lock lock(mutex_);
    const auto called = [&] { return stopping_ || !queue_.empty(); };
    if (command_)
      wake_.wait_for(lock, watch_every, called);
    else if (running_.empty())
      wake_.wait(lock, called);
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

result<void> sidecar_worker::need_model(const std::string& dir) {
  if (engine_ && engine_->model_dir() == dir) return {};
  engine_.reset();
  engine_options o; // A world of its own: it owns all experts.
  o.kv_pages = options_.kv_pages;
  o.max_num_seqs = options_.max_num_seqs;
  auto loaded = engine::load(dir, o);
  if (!loaded) return tl::unexpected(loaded.error());
  engine_ = std::move(*loaded);
  return {};
}

void sidecar_worker::handle(const run_unit& m) {
  const auto unit = m.work.unit;
  if (running_.count(unit) != 0 || command_) return; // A repeat.
  if (m.work.kind == work_kind::exec) {
    const auto name = std::to_string(unit) + "-" + std::to_string(options_.self.value);
    command_.emplace(running_command{m, options_.scratch + "/" + name, {}, 0, {}});
    return start_command();
  }
  if (auto ready = need_model(m.work.model); !ready) {
    // Not the unit's fault: unanswered, it goes back to the queue with the lease.
    std::fprintf(stderr, "rank %u: no auxiliary work: %s\n", options_.self.value,
                 ready.error().text.c_str());
    return;
  }
  request_spec request;
  request.id = request_id(unit);
  request.prompt = m.work.prompt;
  request.max_tokens = m.work.max_tokens;
  request.sampling.temperature = 0;
  request.forced = m.work.response;
  if (auto added = engine_->add_request(std::move(request)); !added)
    return fail_unit(m.lease, unit, added.error());
  running_[unit] = m.lease;
}

/// An empty answer: the unit is done, wrongly, and its place in the results says so.
void sidecar_worker::fail_unit(const lease_id& lease, std::uint64_t unit, const error& why) {
  std::fprintf(stderr, "rank %u: auxiliary unit %llu failed: %s\n", options_.self.value,
               static_cast<unsigned long long>(unit), why.text.c_str());
  tell(work_result{lease, unit, {}, {}, 0, why.text});
}

void sidecar_worker::do_step() {
  auto out = engine_->step(nullptr, {});
  if (!out) {
    for (const auto& [unit, lease] : running_)
      fail_unit(lease, unit, out.error());
    running_.clear();
    engine_.reset();
    return;
  }
  for (auto& f : out->finished) {
    const auto it = running_.find(f.id.value);
    tell(work_result{it->second, f.id.value, std::move(f.tokens), std::move(f.logprobs)});
    running_.erase(it);
  }
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
  order.environment = {
      "ADAFLOOR_UNIT=" + std::to_string(index_of_unit(c.order.work.unit)),
      "ADAFLOOR_LEASE_ID=" + std::to_string(lease.epoch.value) + "."
          + std::to_string(lease.counter),
      "ADAFLOOR_LEASE_RANK=" + std::to_string(options_.self.value),
      "ADAFLOOR_LEASE_DEVICE=" + options_.device,
      "ADAFLOOR_LEASE_DEADLINE_SECONDS=" + std::to_string(options_.lease_seconds),
      "ADAFLOOR_LEASE_GRACE_SECONDS=" + std::to_string(options_.grace_seconds),
      "ADAFLOOR_SCRATCH=" + c.folder,
  };
  auto started = failed ? fail(error_code::io, c.folder + ": " + failed.message())
                        : process_group::start(order);
  if (!started) { // As above.
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
  if (!c.stop && *code == of_signal + SIGKILL && ++c.kills < options_.kills_max)
    return start_command();
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

/// Units under way are dropped here; the broker gives them out again. A command's group is waited
/// for: only its end is the answer.
void sidecar_worker::handle(const stop_worker& m) {
  running_.clear();
  engine_.reset();
  if (!command_) return tell(worker_stopped{m.lease, m.kill, true});
  command_->stop = m;
  command_->group->signal(m.kill ? SIGKILL : SIGTERM);
}

} // namespace adafloor
