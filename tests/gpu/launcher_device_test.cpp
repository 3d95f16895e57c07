// Engines whose device is a launcher's kernels: tokens and log-probabilities have the bits of the
// CPU's engine, in any group, through contraction, migration, memory pressure and new weights.
#define BOOST_TEST_MODULE launcher_device
#include "gpu/device.hpp"
#include "gpu/launcher.hpp"
#include "tests/gpu/engine_world.hpp"
#include "tests/gpu/launchers.hpp"

#include <atomic>
#include <cstring>
#include <map>
#include <optional>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

/// Counts what is allocated, captured and replayed, and whatever is released while a graph holds
/// its address; on a GPU where there is one.
class counting_launcher final : public launcher {
public:
  std::string name() const override { return inner_->name(); }
  result<void*> allocate(std::size_t bytes) override {
    ++held;
    auto memory = inner_->allocate(bytes);
    if (memory) sizes_[*memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    --held;
    for (const auto& [key, kernels] : graphs_)
      for (const auto& kernel : kernels)
        if (holds(kernel, memory, sizes_[memory])) ++outlived;
    sizes_.erase(memory);
    inner_->release(memory);
  }
  result<void> launch(const any_kernel& k) override {
    if (capturing_) graphs_[*capturing_].push_back(k);
    return inner_->launch(k);
  }
  result<void> upload(void* to, const void* from, std::size_t bytes) override {
    return inner_->upload(to, from, bytes);
  }
  result<void> download(void* to, const void* from, std::size_t bytes) override {
    return inner_->download(to, from, bytes);
  }
  bool replay(std::uint64_t key) override {
    const bool done = inner_->replay(key);
    replays += done ? 1 : 0;
    return done;
  }
  result<void> begin_graph(std::uint64_t key) override {
    capturing_ = key;
    return inner_->begin_graph(key);
  }
  result<void> end_graph() override {
    capturing_.reset();
    ++captures;
    return inner_->end_graph();
  }
  void forget_graphs() override {
    graphs_.clear();
    inner_->forget_graphs();
  }
  void trim() override { inner_->trim(); }

  static inline std::atomic<long> held{0}, replays{0}, captures{0}, outlived{0};

private:
  /// Whether one of the kernel's words is an address within these bytes.
  static bool holds(const any_kernel& any, const void* memory, std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(memory);
    return std::visit(
        [&](const auto& kernel) {
          for (std::size_t at = 0; at + sizeof(void*) <= sizeof kernel; at += sizeof(void*)) {
            std::uintptr_t word = 0;
            std::memcpy(&word, reinterpret_cast<const std::byte*>(&kernel) + at, sizeof word);
            if (word >= first && word < first + bytes) return true;
          }
          return false;
        },
        any);
  }

  std::map<const void*, std::size_t> sizes_;
  std::map<std::uint64_t, std::vector<any_kernel>> graphs_;
  std::optional<std::uint64_t> capturing_;
  std::unique_ptr<launcher> inner_ = fastest_launcher();
};

engine_options with_kernels(engine_options options = {}) {
  options.make_device = [] { return make_launcher_device(std::make_unique<counting_launcher>()); };
  return options;
}

template <class F>
void deal(engine_world& world, std::uint64_t count, F place, std::uint32_t max_tokens = 40) {
  for (std::uint64_t id = 0; id < count; ++id)
    must(world.at(place(id)).add_request(sampled_request(id, max_tokens)));
}

std::map<request_id, request_output> on_the_cpu(const std::string& model, std::uint64_t count,
                                                std::uint32_t max_tokens = 40) {
  engine_world world(model, 1);
  deal(
      world, count, [](auto) { return 0; }, max_tokens);
  world.run();
  return world.outputs;
}

expert_map dealt(const std::vector<rank_id>& owners) {
  expert_map map;
  for (std::uint32_t e = 0; e < 16; ++e)
    map.owner_of.push_back(owners[e * 7 % owners.size()]);
  return map;
}

} // namespace

BOOST_AUTO_TEST_CASE(one_rank_has_the_bits_of_the_cpu) {
  for (const char* model : {"models/collatz-moe-v3", "models/collatz-moe-v3-bf16"}) {
    engine_options small;
    small.prefill_budget = 5;
    engine_world world(golden + model, 1, with_kernels(small));
    deal(world, 8, [](auto) { return 0; });
    world.run();
    BOOST_TEST(same_bits(world.outputs, on_the_cpu(golden + model, 8)));
    BOOST_TEST(world.at(0).counters().expert_rows == world.at(0).counters().rows * 2 * 4);
  }
  BOOST_TEST(counting_launcher::replays > 20); // graphs of decode steps were in use
  BOOST_TEST(counting_launcher::held == 0);
}

BOOST_AUTO_TEST_CASE(groups_contract_and_restore) {
  engine_world world(collatz, 4, with_kernels());
  const auto all = world.members();
  const std::vector<rank_id> pair = {rank_id{1}, rank_id{3}};
  deal(world, 6, [](std::uint64_t id) { return id % 2 ? 1 : 3; });
  for (int i = 0; i < 12; ++i)
    world.step();
  world.contract(pair, dealt(pair));
  for (auto rank : pair)
    world.at(rank.value).drop_unowned();
  for (int i = 0; i < 12; ++i)
    world.step();
  world.contract(all, world.at(0).home_map());
  world.run();
  BOOST_TEST(same_bits(world.outputs, on_the_cpu(collatz, 6)));
}

/// As after a transition that leaves a rank alone again, with the experts that it had.
BOOST_AUTO_TEST_CASE(a_graph_ends_with_its_group_and_before_the_memory_that_it_uses) {
  counting_launcher::outlived = 0;
  engine_world world(collatz, 2, with_kernels());
  const auto alone = dealt({rank_id{0}});
  deal(
      world, 3, [](auto) { return 0; }, 60);
  world.contract({rank_id{0}}, alone);
  const auto steps = [&world](int count) {
    for (int i = 0; i < count; ++i)
      world.step();
    return counting_launcher::captures.load();
  };
  const auto first = steps(12), again = steps(4);
  BOOST_TEST(first > 0);
  BOOST_TEST(again == first); // replayed meanwhile
  world.contract({rank_id{0}}, alone);
  BOOST_TEST(steps(4) > again);
  world.contract({rank_id{0}, rank_id{1}}, world.at(0).home_map());
  const auto in_group = counting_launcher::replays.load();
  steps(4);
  BOOST_TEST(counting_launcher::replays.load() == in_group); // what goes to peers is in no graph
  must(world.at(0).add_request(sampled_request(7, 60)));     // buffers grow
  world.contract({rank_id{0}}, alone);
  must(world.at(0).add_request(sampled_request(8, 60)));
  world.run();
  BOOST_TEST(counting_launcher::outlived == 0);
  BOOST_TEST(world.outputs.size() == 5U);
}

BOOST_AUTO_TEST_CASE(requests_move_between_a_gpu_like_rank_and_a_cpu_rank) {
  engine_world kernels(collatz, 1, with_kernels()), cpu(collatz, 1);
  deal(kernels, 5, [](auto) { return 0; });
  for (int i = 0; i < 25; ++i)
    kernels.step();
  for (const auto& request : kernels.at(0).requests()) {
    auto blob = must(kernels.at(0).export_request(request.id));
    must(cpu.at(0).import_request(view(blob)));
    must(kernels.at(0).release_exported(request.id));
  }
  BOOST_TEST(kernels.at(0).kv().used == 0U);
  for (int i = 0; i < 5; ++i)
    cpu.step();
  for (const auto& request : cpu.at(0).requests()) {
    auto blob = must(cpu.at(0).export_request(request.id));
    must(kernels.at(0).import_request(view(blob)));
    must(cpu.at(0).release_exported(request.id));
  }
  kernels.run();
  auto outputs = kernels.outputs;
  outputs.insert(cpu.outputs.begin(), cpu.outputs.end());
  BOOST_TEST(same_bits(outputs, on_the_cpu(collatz, 5)));
}

BOOST_AUTO_TEST_CASE(truncated_greedy_scored_and_preempted_requests_agree) {
  std::map<request_id, request_output> outputs[2];
  for (int which = 0; which < 2; ++which) {
    engine_options options;
    options.kv_pages = 12;
    options.reserved_response_tokens = 4;
    engine_world world(collatz, 1, which == 0 ? options : with_kernels(options));
    for (std::uint64_t id = 0; id < 6; ++id) {
      auto spec = sampled_request(id, 40);
      if (id == 1) spec.sampling.temperature = 0;
      if (id == 2) spec.sampling.top_p = 0.8F;
      if (id == 3) spec.sampling.top_k = 3;
      if (id == 4) spec.forced = {1, 2, 3, 4, 5};
      if (id == 5) spec.sampling.temperature = 1.7F;
      must(world.at(0).add_request(spec));
    }
    world.run();
    BOOST_TEST(world.at(0).counters().preemptions > 0U);
    outputs[which] = world.outputs;
  }
  BOOST_TEST(same_bits(outputs[0], outputs[1]));
}

BOOST_AUTO_TEST_CASE(new_weights_and_a_smaller_pool) {
  const auto other = golden + "models/collatz-moe-v1";
  engine_world world(other, 1, with_kernels());
  deal(
      world, 4, [](auto) { return 0; }, 20);
  world.run();
  const auto before = counting_launcher::held.load();
  must(world.at(0).set_kv_capacity(8));
  must(world.at(0).update_weights(collatz, weights_id{2}));
  world.outputs.clear();
  deal(
      world, 4, [](auto) { return 0; }, 20);
  world.run();
  BOOST_TEST(same_bits(world.outputs, on_the_cpu(collatz, 4, 20)));
  BOOST_TEST(counting_launcher::held.load() <= before);
}

BOOST_AUTO_TEST_CASE(bfloat16_pages_have_the_bits_of_the_cpu_through_groups_and_moves) {
  for (const char* model : {"models/collatz-moe-v3", "models/collatz-moe-v1"}) {
    engine_options half;
    half.kv_type = kv_dtype::bfloat16;
    half.prefill_budget = 5;
    engine_world cpu(golden + model, 1, half), kernels(golden + model, 1, with_kernels(half));
    deal(cpu, 6, [](auto) { return 0; });
    deal(kernels, 6, [](auto) { return 0; });
    cpu.run();
    BOOST_TEST(!same_bits(cpu.outputs, on_the_cpu(golden + model, 6)));
    const auto replays = counting_launcher::replays.load();
    for (int i = 0; i < 25; ++i)
      kernels.step();
    BOOST_TEST(counting_launcher::replays.load() > replays);
    engine_world group(golden + model, 2, half);
    for (const auto& request : kernels.at(0).requests()) {
      auto blob = must(kernels.at(0).export_request(request.id));
      must(group.at(request.id.value % 2).import_request(view(blob)));
      must(kernels.at(0).release_exported(request.id));
    }
    group.run();
    auto outputs = kernels.outputs;
    outputs.insert(group.outputs.begin(), group.outputs.end());
    BOOST_TEST(same_bits(outputs, cpu.outputs));
  }
}

BOOST_AUTO_TEST_CASE(weights_of_mixed_types_are_refused_by_name) {
  auto options = with_kernels();
  auto device = must(options.make_device());
  const auto config = must(device->read_config(golden + "models/collatz-moe-v3-bf16"));
  std::map<std::string, std::uint64_t> digests;
  auto dense = must(device->read_dense(golden + "models/collatz-moe-v3-bf16", config, &digests));
  dense.layers[0].qkv[5] = 0.1F; // not a bfloat16, unlike all else
  device->use(config, dense);
  const auto owners = *home_expert_map(config.num_experts, 1);
  std::vector<expert_ptr> none(config.num_experts);
  kv_pool pool(device->pages(config, kv_dtype::float32), 4);
  must(device->begin({nullptr, {}, &owners, rank_id{0}, &none}, {}));
  BOOST_TEST(contains(text_of(device->run({}, pool)), "bfloat16"));
}
