// The emulated device: real books and bytes, the tokens of nobody's model, time by a cost model.
#define BOOST_TEST_MODULE emulated
#include "gpu/emulated.hpp"
#include "tests/gpu/engine_world.hpp"

#include <cmath>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

constexpr std::uint64_t request_count = 12;

std::uint32_t length_of(std::uint64_t id) {
  return 5 + static_cast<std::uint32_t>(id * 37 % 90);
}

/// A decode step takes 10 ms and 1 ms per rank that has requests and per 100 resident tokens.
std::shared_ptr<emulation> small_emulation(double time_scale = 1e-3) {
  auto how = std::make_shared<emulation>();
  how->experts = 16;
  how->expert_bytes = 1000;
  how->kv_page_bytes = 100;
  how->time_scale = time_scale;
  how->costs.decode_step = [](const group_load& load) {
    return 0.010 + 0.001 * load.active + 0.00001 * load.max_kv_tokens;
  };
  return how;
}

engine_options small_options(std::shared_ptr<emulation> how = small_emulation()) {
  engine_options options;
  options.emulated = std::move(how);
  return options;
}

template <class F>
void deal(engine_world& world, F place) {
  for (std::uint64_t id = 0; id < request_count; ++id) {
    auto spec = sampled_request(id, length_of(id));
    spec.prompt.insert(spec.prompt.end(), 30, static_cast<token_id>(id % 3)); // shares pages
    must(world.at(place(id)).add_request(spec));
  }
}

const std::map<request_id, request_output>& reference() {
  static const auto outputs = [] {
    auto options = small_options();
    options.max_num_seqs = 1;
    engine_world world("policy", 1, options);
    deal(world, [](auto) { return 0; });
    world.run();
    return world.outputs;
  }();
  return outputs;
}

/// Model seconds on the clock of the first member since `from`.
double passed(engine_world& world, time_point from, double time_scale) {
  auto since = world.at(world.members().front().value).now() - from;
  return std::chrono::duration<double>(since).count() / time_scale;
}

time_point start(engine_world& world) {
  world.together([](engine& e, communicator* g, std::size_t) { must(e.start_rollout(g)); });
  return world.at(0).now();
}

} // namespace

BOOST_AUTO_TEST_CASE(every_request_ends_at_its_length) {
  std::size_t different = 0;
  for (const auto& [id, output] : reference()) {
    BOOST_TEST(output.tokens.size() == length_of(id.value));
    BOOST_TEST(output.logprobs.size() == output.tokens.size());
    BOOST_TEST((output.stop == stop_reason::length));
    different += output.tokens != reference().begin()->second.tokens ? 1 : 0;
  }
  BOOST_TEST(reference().size() == request_count);
  BOOST_TEST(different == request_count - 1);
}

BOOST_AUTO_TEST_CASE(tokens_do_not_depend_on_group_and_batch) {
  for (std::uint32_t ranks : {1U, 2U, 4U, 8U})
    for (std::uint32_t seqs : {2U, 64U}) {
      auto options = small_options();
      options.max_num_seqs = seqs;
      engine_world world("policy", ranks, options);
      deal(world, [&](std::uint64_t id) { return id * 5 % ranks; });
      world.run();
      BOOST_TEST(same_bits(world.outputs, reference()), ranks << " ranks, " << seqs << " seqs");
    }
}

BOOST_AUTO_TEST_CASE(a_step_of_many_equals_many_steps) {
  std::map<bool, double> seconds;
  std::map<bool, std::uint64_t> exchanges;
  for (bool single : {false, true}) {
    const double scale = single ? 100 : 1e-6; // steps of a second of the clock are not joined
    engine_world world("policy", 4, small_options(small_emulation(scale)));
    deal(world, [](std::uint64_t id) { return id % 3; }); // rank 3 has nothing of its own
    const auto from = start(world);
    std::uint64_t decoded = 0;
    while (world.live() > 0) {
      ++exchanges[single];
      const auto outs = world.step();
      for (const auto& out : outs)
        BOOST_TEST(out.decode_steps == outs.front().decode_steps);
      if (single) BOOST_TEST(outs.front().decode_steps == 1U);
      decoded += outs.front().decode_steps;
    }
    BOOST_TEST(decoded >= 84U); // the longest
    BOOST_TEST(same_bits(world.outputs, reference()));
    seconds[single] = passed(world, from, scale);
  }
  BOOST_TEST(exchanges[false] <= 2 * request_count);
  BOOST_TEST(exchanges[true] >= 84U);
  BOOST_TEST(std::abs(seconds[false] - seconds[true]) < 1.5); // microseconds at a millionth
}

BOOST_AUTO_TEST_CASE(time_is_the_cost_models) {
  const double scale = 0.5;
  auto how = small_emulation(scale);
  how->costs.restore_seconds = 1;
  how->costs.exit = [](int from, int to) { return from + 0.1 * to; };
  engine_world world("policy", 2, small_options(how));
  auto spec = sampled_request(1, 20);
  must(world.at(1).add_request(spec));
  const auto from = start(world);
  while (world.live() > 0)
    world.step();
  double expected = 0;
  for (int step = 1; step <= 20; ++step)
    expected += 0.010 + 0.001 + 0.00001 * step;
  BOOST_TEST(std::abs(passed(world, from, scale) - expected) < 1e-4);
  world.together([](engine& e, communicator*, std::size_t i) {
    if (i == 1) e.pass_exit(2, 1);
  });
  std::vector<time_point> restored(2);
  world.together([&](engine& e, communicator* g, std::size_t i) {
    restored[i] = must(e.pass_restore(g)).end;
  });
  expected += 2.1 + 1;
  BOOST_TEST(std::abs(std::chrono::duration<double>(restored[0] - from).count() / scale - expected)
             < 1e-4);
  BOOST_TEST(std::abs(passed(world, from, scale) - expected) < 1e-4);
  // Who was away goes on with the time of those that stayed.
  BOOST_TEST(std::abs(std::chrono::duration<double>(restored[1] - restored[0]).count()) < 1.0);
}

BOOST_AUTO_TEST_CASE(samples_of_one_prompt_need_as_many_steps_as_they_have_tokens) {
  const double scale = 1e-3;
  engine_world world("policy", 1, small_options(small_emulation(scale)));
  for (std::uint64_t id = 0; id < 4; ++id) {
    auto spec = sampled_request(7, 20);
    spec.id = request_id{id};
    spec.prompt.assign(40, 5);
    must(world.at(0).add_request(spec));
  }
  start(world);
  BOOST_TEST(world.step().front().finished.size() == 4U);
  BOOST_TEST(world.at(0).counters().steps == 20U);
  BOOST_TEST(world.at(0).counters().shared_pages == 3U * 2U);
}

BOOST_AUTO_TEST_CASE(a_held_step_passes_no_time) {
  engine_world world("policy", 2, small_options());
  deal(world, [](std::uint64_t id) { return id % 2; });
  start(world);
  const auto before = world.at(0).now();
  for (std::size_t holder : {0U, 1U})
    for (const auto& out : world.step(holder)) {
      BOOST_TEST(out.decode_steps == 0U);
      BOOST_TEST(out.tokens.empty());
    }
  BOOST_TEST((world.at(0).now() == before));
  BOOST_TEST(world.step().front().decode_steps > 0U);
  BOOST_TEST((world.at(0).now() > before));
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(migration_in_pieces_keeps_tokens_and_is_paid_for) {
  const double scale = 1;
  auto how = small_emulation(scale);
  how->costs.copy = [](double tokens) { return 7 + tokens; };
  engine_world world("policy", 2, small_options(how));
  deal(world, [](std::uint64_t) { return 0; });
  start(world);
  for (int i = 0; i < 5; ++i)
    world.step();
  auto &from = world.at(0), &to = world.at(1);
  std::uint32_t most = 0, moved = 0;
  for (const auto& r : from.requests()) {
    if (r.state != request_progress::running || moved == 3) continue;
    const auto pages = must(from.full_pages(r.id));
    must(to.begin_import(r.id, must(from.pages_to_move(r.id))));
    must(to.import_pages(r.id, view(pages_of(from, r.id, 0, pages))));
    must(to.finish_import(view(must(from.export_remainder(r.id, pages)))));
    must(from.release_exported(r.id));
    most += r.computed;
    ++moved;
  }
  BOOST_TEST(moved == 3U);
  const auto before = from.now();
  const auto outs = world.step();
  const auto pause = std::chrono::duration<double>(outs[0].paused_until - before).count();
  BOOST_TEST(std::abs(pause - (7 + most)) < 1e-3);
  BOOST_TEST((world.step().front().paused_until < from.now())); // once
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(preempted_requests_are_computed_again_and_paid_for) {
  const double scale = 1e-3;
  auto how = small_emulation(scale);
  how->costs.recompute_per_second = 10;
  how->costs.decode_step = [](const group_load&) { return 0.0; };
  auto options = small_options(how);
  options.kv_pages = 20;
  options.reserved_response_tokens = 1;
  engine_world world("policy", 1, options);
  deal(world, [](std::uint64_t) { return 0; });
  const auto from = start(world);
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
  const auto& counters = world.at(0).counters();
  BOOST_TEST(counters.preemptions > 0U);
  BOOST_TEST(counters.recomputed_tokens > 0U);
  BOOST_TEST(
      std::abs(passed(world, from, scale) - static_cast<double>(counters.recomputed_tokens) / 10)
      < 0.1);
  BOOST_TEST(world.at(0).kv().used + world.at(0).kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(experts_are_real_bytes_that_move_and_change_with_the_version) {
  engine_world world("policy", 2, small_options());
  BOOST_TEST(world.at(0).facts().expert_bytes == 960U);
  BOOST_TEST(world.at(0).facts().kv_page_bytes == 100U);
  const auto before = must(expert_blob(world.at(0), 3));
  expert_map all_to_one{std::vector<rank_id>(16, rank_id{1})};
  world.contract({rank_id{1}}, all_to_one);
  BOOST_TEST((must(expert_blob(world.at(1), 3)) == before));
  must(world.at(0).update_weights("policy-2", weights_id{1}));
  const auto blob = must(expert_blob(world.at(0), 3));
  BOOST_TEST(contains(text_of(import_blob(world.at(1), blob)), "weights version"));
  auto spec = sampled_request(1, 20);
  spec.keep_logits = true;
  BOOST_TEST(contains(text_of(world.at(0).add_request(spec)), "emulated device has none"));
}
