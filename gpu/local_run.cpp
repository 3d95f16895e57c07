#include "gpu/local_run.hpp"

#include <mutex>
#include <optional>
#include <thread>

namespace adafloor {

namespace {

/// What the ranks' threads share.
struct shared_state {
  std::mutex mutex; // guards all below
  std::vector<communicator*> groups;
  std::vector<request_output> outputs;
  std::optional<error> first_error;

  /// Keeps the first error and wakes everybody.
  void give_up(error e) {
    std::lock_guard lock(mutex);
    if (first_error) return;
    first_error = std::move(e);
    for (auto group : groups)
      group->abort();
  }
};

/// Steps until no rank has live requests; every rank sees that in the same step.
void run_rank(engine& self, communicator& group, shared_state& shared) {
  step_header mine;
  mine.epoch = mine.ready_epoch = group.epoch();
  for (bool live = true; live; ++mine.step) {
    mine.live_requests = self.live_requests();
    auto out = self.step(&group, mine);
    if (!out) return shared.give_up(out.error());
    mine.finished_requests += static_cast<std::uint32_t>(out->finished.size());
    live = false;
    for (const auto& header : out->headers)
      live = live || header.live_requests > 0;
    std::lock_guard lock(shared.mutex);
    for (auto& finished : out->finished)
      shared.outputs.push_back(std::move(finished));
  }
}

} // namespace

result<std::vector<request_output>>
run_locally(const std::string& model_dir, engine_options options,
            std::vector<std::unique_ptr<collective_fabric>>& fabrics,
            std::vector<request_spec> requests) {
  auto ranks = static_cast<std::uint32_t>(fabrics.size());
  std::vector<std::unique_ptr<engine>> engines;
  std::vector<rank_id> members;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    options.self = rank_id{r};
    options.world_size = ranks;
    auto loaded = engine::load(model_dir, options);
    if (!loaded) return tl::unexpected(loaded.error());
    engines.push_back(std::move(*loaded));
    members.emplace_back(r);
  }
  std::vector<request_id> order;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    order.push_back(requests[i].id);
    auto& engine = engines[i % ranks];
    if (auto ok = engine->add_request(std::move(requests[i])); !ok)
      return tl::unexpected(ok.error());
  }
  shared_state shared;
  std::vector<std::unique_ptr<communicator>> groups;
  for (auto& fabric : fabrics) {
    auto group = fabric->make_group(epoch_id{1}, members);
    if (!group) return tl::unexpected(group.error());
    shared.groups.push_back(group->get());
    groups.push_back(std::move(*group));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] { run_rank(*engines[r], *groups[r], shared); });
  for (auto& thread : threads)
    thread.join();
  if (shared.first_error) return tl::unexpected(*shared.first_error);
  std::vector<request_output> ordered;
  for (auto id : order)
    for (auto& output : shared.outputs)
      if (output.id == id) ordered.push_back(std::move(output));
  return ordered;
}

} // namespace adafloor
