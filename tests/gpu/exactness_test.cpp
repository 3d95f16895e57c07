// The same bits whatever happens around a request.
#define BOOST_TEST_MODULE exactness
#include "gpu/sampler.hpp"
#include "tests/gpu/engine_world.hpp"

#include <boost/test/data/test_case.hpp>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

constexpr std::uint64_t request_count = 12;

/// Requests dealt to ranks by `place(id)`.
template <class F>
void deal(engine_world& world, F place, std::uint32_t max_tokens = 90) {
  for (std::uint64_t id = 0; id < request_count; ++id)
    must(world.at(place(id)).add_request(sampled_request(id, max_tokens)));
}

/// Outputs of one rank that runs one request after the other.
const std::map<request_id, request_output>& reference() {
  static const auto outputs = [] {
    engine_options options;
    options.max_num_seqs = 1;
    engine_world world(collatz, 1, options);
    deal(world, [](auto) { return 0; });
    world.run();
    return world.outputs;
  }();
  return outputs;
}

/// All experts spread over `owners` in a scattered order.
expert_map scattered(const std::vector<rank_id>& owners, std::uint32_t shift = 0) {
  expert_map map;
  for (std::uint32_t e = 0; e < 16; ++e)
    map.owner_of.push_back(owners[(e * 7 + shift) % owners.size()]);
  return map;
}

} // namespace

BOOST_AUTO_TEST_CASE(reference_is_not_trivial) {
  std::size_t tokens = 0, stops = 0;
  for (const auto& [id, output] : reference()) {
    tokens += output.tokens.size();
    stops += output.stop == stop_reason::eos ? 1 : 0;
    BOOST_TEST(output.tokens.size() == output.logprobs.size());
  }
  BOOST_TEST(reference().size() == request_count);
  BOOST_TEST(tokens > 500);
  BOOST_TEST(stops >= 1);
  BOOST_TEST(stops < request_count);
}

BOOST_DATA_TEST_CASE(group_sizes, boost::unit_test::data::make({1, 2, 4, 8}), ranks) {
  engine_world world(collatz, static_cast<std::uint32_t>(ranks));
  deal(world, [&](std::uint64_t id) { return id * 5 % world.size(); });
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(batch_and_chunk_sizes) {
  for (std::uint32_t seqs : {2U, 5U, 64U})
    for (std::uint32_t budget : {1U, 3U, 1000U}) {
      engine_options options;
      options.max_num_seqs = seqs;
      options.prefill_budget = budget;
      engine_world world(collatz, 1, options);
      deal(world, [](auto) { return 0; });
      world.run();
      BOOST_TEST(same_bits(world.outputs, reference()), seqs << " requests, budget " << budget);
    }
}

BOOST_AUTO_TEST_CASE(owner_maps_and_idle_ranks) {
  engine_options options;
  options.owners = scattered({rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}}, 3);
  engine_world world(collatz, 4, options);
  deal(world, [](std::uint64_t id) { return id % 2; }); // ranks 2 and 3 only serve experts
  auto outs = world.step();
  for (const auto& out : outs) {
    BOOST_REQUIRE_EQUAL(out.headers.size(), 4U);
    for (std::size_t m = 0; m < 4; ++m)
      BOOST_TEST(out.headers[m].live_requests == (m < 2 ? request_count / 2 : 0));
  }
  BOOST_TEST(outs[3].rows == 0U);
  BOOST_TEST(outs[3].expert_rows > 0U);
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(contraction_and_restoration_in_the_middle) {
  engine_world world(collatz, 4);
  std::vector<rank_id> all = world.members(), pair = {rank_id{1}, rank_id{3}};
  deal(world, [](std::uint64_t id) { return id % 2 ? 1 : 3; });
  for (int i = 0; i < 20; ++i)
    world.step();
  world.contract(pair, scattered(pair));
  for (auto rank : pair)
    BOOST_TEST(world.at(rank.value).drop_unowned() > 0U);
  for (int i = 0; i < 20; ++i)
    world.step();
  world.contract({rank_id{3}}, scattered({rank_id{3}}, 1)); // a lone rank, requests of rank 1 wait
  for (int i = 0; i < 5; ++i)
    world.step();
  for (auto rank : all)
    must(world.at(rank.value).prepare_experts(world.at(0).home_map()));
  for (auto rank : all) {
    auto missing = must(world.at(rank.value).prepare_experts(world.at(0).home_map()));
    must(world.at(rank.value).reload_experts(missing));
  }
  world.contract(all, world.at(0).home_map());
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(whole_export_in_the_middle) {
  engine_world world(collatz, 2);
  deal(world, [](auto) { return 0; });
  for (int i = 0; i < 30; ++i)
    world.step();
  for (const auto& request : world.at(0).requests()) {
    if (request.id.value % 2 == 0) continue;
    auto blob = must(world.at(0).export_request(request.id));
    must(world.at(1).import_request(view(blob)));
    must(world.at(0).release_exported(request.id));
  }
  BOOST_TEST(world.at(1).live_requests() > 2U);
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
  for (std::size_t r = 0; r < 2; ++r) {
    BOOST_TEST(world.at(r).kv().used == 0U);
    BOOST_TEST(world.at(r).kv().promised == 0U);
  }
}

BOOST_AUTO_TEST_CASE(paged_export_while_decoding) {
  engine_world world(collatz, 2);
  deal(world, [](auto) { return 0; });
  for (int i = 0; i < 25; ++i)
    world.step();
  std::map<request_id, std::uint32_t> sent;
  for (const auto& request : world.at(0).requests())
    if (request.id.value >= 3) sent[request.id] = 0;
  for (auto& [id, pages] : sent)
    must(world.at(1).begin_import(id, must(world.at(0).pages_to_move(id))));
  for (int round = 0; round < 3; ++round) {
    for (auto& [id, pages] : sent) {
      auto full = world.at(0).full_pages(id);
      if (!full) continue; // it has ended
      auto blob = pages_of(world.at(0), id, pages, *full - pages);
      must(world.at(1).import_pages(id, view(blob)));
      must(world.at(1).import_pages(id, view(blob))); // doubled chunks change nothing
      pages = *full;
    }
    for (int i = 0; i < 9; ++i)
      world.step();
  }
  std::size_t moved = 0;
  for (auto& [id, pages] : sent) {
    if (!world.at(0).full_pages(id)) {
      world.at(1).cancel_import(id);
      continue;
    }
    auto blob = must(world.at(0).export_remainder(id, pages));
    if (id.value == 4) { // unknown outcome: the source goes on
      must(world.at(0).resume_exported(id));
      world.at(1).cancel_import(id);
      continue;
    }
    must(world.at(1).finish_import(view(blob)));
    must(world.at(0).release_exported(id));
    ++moved;
  }
  BOOST_TEST(moved > 2U);
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
  BOOST_TEST(world.at(1).kv().used + world.at(1).kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(preemption_is_recomputed) {
  engine_options options;
  options.kv_pages = 16;
  options.reserved_response_tokens = 10;
  engine_world world(collatz, 1, options);
  deal(world, [](auto) { return 0; });
  world.run();
  BOOST_TEST(world.at(0).counters().preemptions > 0U);
  BOOST_TEST(same_bits(world.outputs, reference()));
  BOOST_TEST(world.at(0).kv().used + world.at(0).kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(rebuild_from_the_token_log) {
  engine_world world(collatz, 1);
  for (const auto& [id, output] : reference()) {
    auto spec = sampled_request(id.value);
    auto known = static_cast<std::ptrdiff_t>(output.tokens.size() * id.value / 11);
    spec.resumed.assign(output.tokens.begin(), output.tokens.begin() + known);
    spec.resumed_logprobs.assign(output.logprobs.begin(), output.logprobs.begin() + known);
    must(world.at(0).add_request(spec));
  }
  world.run();
  BOOST_TEST(same_bits(world.outputs, reference()));
}

BOOST_AUTO_TEST_CASE(scores_are_the_generated_logprobs) {
  engine_world world(collatz, 2);
  for (const auto& [id, output] : reference()) {
    auto spec = sampled_request(id.value);
    spec.forced = output.tokens;
    must(world.at(id.value % 2).add_request(spec));
  }
  world.run();
  for (const auto& [id, output] : reference()) {
    BOOST_TEST((world.outputs[id].stop == stop_reason::scored));
    BOOST_TEST(world.outputs[id].tokens == output.tokens);
    BOOST_TEST((world.outputs[id].logprobs == output.logprobs));
  }
}

BOOST_AUTO_TEST_CASE(samples_share_prompt_pages) {
  auto spec_of = [](std::uint64_t id) {
    auto spec = sampled_request(id, 20);
    spec.prompt.clear();
    for (token_id t = 0; t < 70; ++t)
      spec.prompt.push_back(t * t % 10);
    spec.sampling.temperature = 6;
    return spec;
  };
  engine_options alone;
  alone.max_num_seqs = 1;
  engine_world apart(collatz, 1, alone), together(collatz, 1);
  for (std::uint64_t id = 0; id < 6; ++id) {
    must(apart.at(0).add_request(spec_of(id)));
    must(together.at(0).add_request(spec_of(id)));
  }
  // The pages of the first are those of all in the very step that fills them.
  BOOST_TEST(together.step().front().tokens.size() == 6U);
  BOOST_TEST(together.at(0).kv().used == 4U + 6U); // four shared pages and one own page each
  apart.run();
  together.run();
  BOOST_TEST(together.at(0).counters().shared_pages == 5U * 4U);
  BOOST_TEST(apart.at(0).counters().shared_pages == 0U);
  BOOST_TEST(same_bits(apart.outputs, together.outputs));
  BOOST_TEST((apart.outputs[request_id{0}].tokens != apart.outputs[request_id{1}].tokens));
  BOOST_TEST(together.at(0).kv().used + together.at(0).kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(dense_model) {
  auto dense = golden + "models/arith-dense";
  auto request = [](std::uint64_t id) {
    request_spec spec;
    spec.id = request_id{id};
    spec.random_key = id;
    spec.prompt = {11, 4, 4, 9, 13 + static_cast<token_id>(id % 2), 9, 2, 7, 15};
    spec.max_tokens = 30;
    spec.ignore_eos = true;
    spec.sampling.temperature = 2;
    return spec;
  };
  engine_options options;
  auto alone = must(engine::load(dense, options));
  std::map<request_id, request_output> outputs;
  for (std::uint64_t id = 0; id < 8; ++id)
    must(alone->add_request(request(id)));
  while (alone->live_requests() > 0)
    for (auto& out : must(alone->step(nullptr, {})).finished)
      outputs[out.id] = out;
  engine_world world(dense, 2);
  for (std::uint64_t id = 0; id < 8; ++id)
    must(world.at(id % 2).add_request(request(id)));
  world.run();
  BOOST_TEST(outputs.size() == 8U);
  BOOST_TEST(same_bits(world.outputs, outputs));
}

BOOST_AUTO_TEST_CASE(pages_of_bfloat16_are_as_exact) {
  engine_options half;
  half.kv_type = kv_dtype::bfloat16;
  auto alone = half;
  alone.max_num_seqs = 1;
  engine_world one(collatz, 1, alone);
  deal(one, [](auto) { return 0; });
  one.run();
  BOOST_TEST(!same_bits(one.outputs, reference())); // pages are rounded
  auto chunks = half;
  chunks.prefill_budget = 3;
  chunks.kv_pages = 16;
  chunks.reserved_response_tokens = 10;
  engine_world preempted(collatz, 1, chunks);
  deal(preempted, [](auto) { return 0; });
  preempted.run();
  BOOST_TEST(preempted.at(0).counters().preemptions > 0U);
  BOOST_TEST(same_bits(preempted.outputs, one.outputs));

  engine_world world(collatz, 4, half);
  const auto all = world.members();
  const std::vector<rank_id> pair = {rank_id{1}, rank_id{3}};
  deal(world, [](std::uint64_t id) { return id % 4; });
  for (int i = 0; i < 20; ++i)
    world.step();
  std::size_t moved = 0;
  for (const std::size_t from : {0, 2})
    for (const auto& request : world.at(from).requests()) {
      auto& to = world.at(from + 1);
      must(to.begin_import(request.id, must(world.at(from).pages_to_move(request.id))));
      const auto full = must(world.at(from).full_pages(request.id));
      must(to.import_pages(request.id, view(pages_of(world.at(from), request.id, 0, full))));
      must(to.finish_import(view(must(world.at(from).export_remainder(request.id, full)))));
      must(world.at(from).release_exported(request.id));
      ++moved;
    }
  BOOST_TEST(moved > 2U);
  world.contract(pair, scattered(pair));
  for (int i = 0; i < 10; ++i)
    world.step();
  world.contract(all, world.at(0).home_map());
  world.run();
  BOOST_TEST(same_bits(world.outputs, one.outputs));

  engine_world rebuilt(collatz, 2, half);
  for (const auto& [id, output] : one.outputs) {
    auto spec = sampled_request(id.value);
    const auto known = static_cast<std::ptrdiff_t>(output.tokens.size() * id.value / 11);
    spec.resumed.assign(output.tokens.begin(), output.tokens.begin() + known);
    spec.resumed_logprobs.assign(output.logprobs.begin(), output.logprobs.begin() + known);
    must(rebuilt.at(id.value % 2).add_request(spec));
  }
  rebuilt.run();
  BOOST_TEST(same_bits(rebuilt.outputs, one.outputs));
}
