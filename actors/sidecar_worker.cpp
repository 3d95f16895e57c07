#include "actors/sidecar_worker.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace adafloor {

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
  while (take_commands())
    if (!running_.empty()) do_step();
}

bool sidecar_worker::take_commands() {
  std::deque<envelope> taken;
  {
    std::unique_lock lock(mutex_);
    if (running_.empty()) wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
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
  if (running_.count(m.work.unit) != 0) return; // A repeat.
  if (!engine_) {
    engine_options o; // A world of its own: the model is dense.
    o.kv_pages = options_.kv_pages;
    o.max_num_seqs = options_.max_num_seqs;
    auto loaded = engine::load(options_.model_dir, o);
    if (!loaded) { // Not the unit's fault: unanswered, it goes back to the queue with the lease.
      std::fprintf(stderr, "rank %u: no auxiliary work: %s\n", options_.self.value,
                   loaded.error().text.c_str());
      return;
    }
    engine_ = std::move(*loaded);
  }
  request_spec request;
  request.id = request_id(m.work.unit);
  request.prompt = m.work.prompt;
  request.max_tokens = m.work.max_tokens;
  request.sampling.temperature = 0;
  if (auto added = engine_->add_request(std::move(request)); !added)
    return fail_unit(m.lease, m.work.unit, added.error());
  running_[m.work.unit] = m.lease;
}

/// An empty answer: the unit is done, wrongly, and its place in the results says so.
void sidecar_worker::fail_unit(const lease_id& lease, std::uint64_t unit, const error& why) {
  std::fprintf(stderr, "rank %u: auxiliary unit %llu failed: %s\n", options_.self.value,
               static_cast<unsigned long long>(unit), why.text.c_str());
  tell(work_result{lease, unit, {}});
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
    tell(work_result{it->second, f.id.value, std::move(f.tokens)});
    running_.erase(it);
  }
}

/// Units under way are dropped here; the broker gives them out again.
void sidecar_worker::handle(const stop_worker& m) {
  running_.clear();
  engine_.reset();
  tell(worker_stopped{m.lease, m.kill, true});
}

} // namespace adafloor
