#include "actors/model_worker.hpp"

#include "actors/rank_line.hpp"
#include "gpu/engine.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <list>
#include <map>
#include <memory>
#include <new>

namespace adafloor {
namespace {

constexpr std::size_t models_kept = 2; ///< one that answers and one that scores

class model_worker {
public:
  explicit model_worker(const model_worker_options& o) : options_(o), rank_(o.rank, o.socket_fd) {}
  /// Until the rank is gone. Errors: what makes this process of no more use.
  result<void> run();

private:
  struct order {
    lease_id lease;
    work_kind kind = work_kind::generate;
  };
  struct loaded_model {
    std::unique_ptr<engine> runs;
    std::map<std::uint64_t, order> units;
  };
  void wait();
  void do_step(loaded_model& model);
  loaded_model* need(const std::string& folder);
  void handle(const run_unit& m);
  void handle(const stop_worker& m);
  void fail_unit(const lease_id& lease, std::uint64_t unit, const error& why);
  bool has_work() const;
  void complain(const std::string& what, const std::string& why) const {
    std::fprintf(stderr, "rank %u: %s: %s\n", options_.rank, what.c_str(), why.c_str());
  }

  const model_worker_options& options_;
  rank_line rank_;
  std::list<loaded_model> models_; ///< the one that was used last comes first
};

bool model_worker::has_work() const {
  return std::any_of(models_.begin(), models_.end(),
                     [](const loaded_model& m) { return !m.units.empty(); });
}

result<void> model_worker::run() {
  for (const auto& folder : options_.models)
    need(folder);
  setpriority(PRIO_PROCESS, 0, model_worker_niceness);
  for (;;) {
    if (!has_work() || rank_.unsent()) wait();
    const auto goes_on = rank_.take_orders([this](const auto& order) { handle(order); });
    if (!goes_on) return tl::unexpected(goes_on.error());
    if (!*goes_on) return {};
    for (auto& model : models_)
      if (!model.units.empty()) do_step(model);
    models_.remove_if([](const loaded_model& m) { return !m.runs; });
  }
}

/// For orders, or with results on their way for room in the socket.
void model_worker::wait() {
  pollfd p{rank_.fd(), static_cast<short>(POLLIN | (rank_.unsent() ? POLLOUT : 0)), 0};
  poll(&p, 1, -1);
  rank_.flush();
}

/// Null when it cannot be had.
model_worker::loaded_model* model_worker::need(const std::string& folder) {
  const auto known = std::find_if(models_.begin(), models_.end(), [&](const loaded_model& m) {
    return m.runs->model_dir() == folder;
  });
  if (known != models_.end()) {
    models_.splice(models_.begin(), models_, known);
    return &models_.front();
  }
  const auto drop_idle = [&](std::size_t down_to) {
    for (auto m = models_.end(); m != models_.begin() && models_.size() > down_to;)
      if ((--m)->units.empty()) m = models_.erase(m);
  };
  const auto load = [&]() -> result<std::unique_ptr<engine>> {
    engine_options o; // A world of its own: it owns all experts.
    o.kv_pages = options_.kv_pages;
    o.kv_type = options_.kv_type;
    o.max_num_seqs = options_.max_num_seqs;
    try {
      return engine::load(folder, o);
    } catch (const std::bad_alloc&) {
      return fail(error_code::busy, folder + " does not fit into lease.memory_bytes; raise it");
    }
  };
  drop_idle(models_kept - 1);
  auto engine = load();
  if (!engine && engine.error().code == error_code::busy && !models_.empty()) {
    drop_idle(0);
    engine = load();
  }
  if (!engine) return complain("no auxiliary work", engine.error().text), nullptr;
  models_.push_front({std::move(*engine), {}});
  return &models_.front();
}

void model_worker::handle(const run_unit& m) {
  const auto unit = m.work.unit;
  auto* model = need(m.work.model);
  if (!model || model->units.count(unit) != 0) return; // Or a repeat.
  request_spec request;
  request.id = request_id(unit);
  request.prompt = m.work.prompt;
  request.max_tokens = m.work.max_tokens;
  request.sampling.temperature = 0;
  if (m.work.kind == work_kind::generate) {
    request.resumed = m.work.response;
    request.resumed_logprobs = m.work.logprobs;
  } else {
    request.forced = m.work.response;
  }
  if (auto added = model->runs->add_request(std::move(request)); !added)
    return fail_unit(m.lease, unit, added.error());
  model->units[unit] = {m.lease, m.work.kind};
}

/// The unit is done, wrongly, and its place in the results says so.
void model_worker::fail_unit(const lease_id& lease, std::uint64_t unit, const error& why) {
  complain("auxiliary unit " + std::to_string(unit) + " failed", why.text);
  rank_.tell(work_result{lease, unit, {}, {}, 0, {}, why.text});
}

/// Units under way are dropped; the broker gives them out again, with what there is of an answer.
void model_worker::handle(const stop_worker& m) {
  worker_stopped answer{m.lease, m.kill, true};
  for (auto& model : models_) {
    for (const auto& [unit, order] : model.units) {
      auto dropped = model.runs->abort_request(request_id(unit));
      if (dropped && order.kind == work_kind::generate && !dropped->tokens.empty())
        answer.partial.push_back({unit, std::move(dropped->tokens), std::move(dropped->logprobs)});
    }
    model.units.clear();
  }
  rank_.tell(std::move(answer));
}

/// A model that gives no finite numbers is given up, with the units that it was at.
void model_worker::do_step(loaded_model& model) {
  auto out = model.runs->step(nullptr, {});
  if (!out) {
    for (const auto& [unit, order] : model.units)
      fail_unit(order.lease, unit, out.error());
    model = {};
    return;
  }
  for (auto& f : out->finished) {
    const auto it = model.units.find(f.id.value);
    rank_.tell(
        work_result{it->second.lease, f.id.value, std::move(f.tokens), std::move(f.logprobs)});
    model.units.erase(it);
  }
}

} // namespace

int run_model_worker(const model_worker_options& options) {
  prctl(PR_SET_NAME, ("adafloor-w" + std::to_string(options.rank)).c_str());
  std::string why;
  try {
    const auto done = model_worker(options).run();
    if (done) return 0;
    why = done.error().text;
  } catch (const std::bad_alloc&) {
    why = "out of memory; raise lease.memory_bytes";
  }
  std::fprintf(stderr, "rank %u: its model worker ends: %s\n", options.rank, why.c_str());
  return 1;
}

} // namespace adafloor
