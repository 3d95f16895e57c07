// Experts and KV pages share one budget, and what is given back leaves the process.
#define BOOST_TEST_MODULE memory
#include "gpu/kv_pool.hpp"
#include "tests/gpu/engine_world.hpp"

#include <unistd.h>

#include <fstream>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Everything on ranks 0 and 1 of 4, or at home.
expert_map halves(std::uint32_t experts) {
  expert_map map;
  for (std::uint32_t e = 0; e < experts; ++e)
    map.owner_of.emplace_back(e * 4 / experts % 2);
  return map;
}
const std::vector<rank_id> all{rank_id(0), rank_id(1), rank_id(2), rank_id(3)};
const std::vector<rank_id> half{rank_id(0), rank_id(1)};

struct sizes {
  std::uint64_t dense, expert, page;
};
sizes sizes_of_collatz() {
  engine_world plain(collatz, 4);
  const auto memory = plain.at(0).memory();
  must(plain.at(0).add_request(sampled_request(0)));
  plain.step();
  return {memory.dense, memory.experts / 4,
          plain.at(0).memory().kv / plain.at(0).kv().used}; // 16 experts on 4 ranks
}

/// Room for the dense weights, `experts` experts and `pages` pages.
engine_options budget_for(const sizes& s, std::uint32_t experts, std::uint32_t pages) {
  engine_options o;
  o.memory_bytes = s.dense + experts * s.expert + pages * s.page;
  return o;
}

} // namespace

BOOST_AUTO_TEST_CASE(experts_that_come_take_pages_and_experts_that_go_give_them_back) {
  const auto s = sizes_of_collatz();
  engine_world world(collatz, 4, budget_for(s, 8, 20));
  const auto at_home = static_cast<std::uint32_t>(20 + 4 * s.expert / s.page);
  auto& engine = world.at(0);
  BOOST_TEST(engine.kv().capacity == at_home);
  BOOST_TEST(must(engine.prepare_experts(halves(16))).size() == 4U);
  BOOST_TEST(engine.kv().capacity == 20U); // before a single expert has come
  engine.cancel_prepare();
  BOOST_TEST(engine.kv().capacity == at_home);
  world.contract(half, halves(16));
  BOOST_TEST(engine.kv().capacity == 20U);
  BOOST_TEST(engine.memory().total() <= engine.memory().budget);
  must(world.at(2).switch_map(world.epoch(), halves(16), half));
  BOOST_TEST(world.at(2).drop_unowned() == 4U); // a leaver has room for nothing but pages
  BOOST_TEST(world.at(2).kv().capacity
             == std::min<std::uint64_t>(1024, 20 + 8 * s.expert / s.page));
}

BOOST_AUTO_TEST_CASE(experts_are_refused_while_requests_need_the_pages) {
  const auto s = sizes_of_collatz();
  engine_world world(collatz, 4, budget_for(s, 8, 10));
  for (std::uint64_t id = 0; id < 2; ++id) // 7 + 90 positions: 7 pages each
    must(world.at(0).add_request(sampled_request(id)));
  world.step();
  const auto before = world.at(0).kv();
  const auto refused = world.at(0).prepare_experts(halves(16));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  BOOST_TEST(contains(refused.error().text, "8 experts"), refused.error().text);
  BOOST_TEST(contains(refused.error().text, "leave 10 KV pages"), refused.error().text);
  BOOST_TEST(world.at(0).kv().capacity == before.capacity);
  BOOST_TEST(world.at(0).resident_experts().size() == 4U);
  world.run();
  BOOST_TEST(must(world.at(0).prepare_experts(halves(16))).size() == 4U);
}

/// A request that waits must still fit the smaller pool, or it would wait for ever.
BOOST_AUTO_TEST_CASE(experts_are_refused_when_a_waiting_request_would_never_fit) {
  const auto s = sizes_of_collatz();
  auto options = budget_for(s, 8, 10);
  engine_world world(collatz, 4, options);
  must(world.at(0).add_request(sampled_request(0, 200))); // 13 pages, no step has admitted it
  BOOST_TEST(world.at(0).kv().promised == 0U);
  BOOST_TEST(
      contains(text_of(world.at(0).prepare_experts(halves(16))), "the largest request needs 13"));
}

BOOST_AUTO_TEST_CASE(a_budget_without_room_for_one_page_is_refused_with_the_least_that_is_needed) {
  const auto s = sizes_of_collatz();
  auto options = budget_for(s, 16, 1);
  BOOST_TEST(must(engine::load(collatz, options))->kv().capacity == 1U);
  --options.memory_bytes;
  BOOST_TEST(contains(text_of(engine::load(collatz, options)),
                      "at least " + std::to_string(options.memory_bytes + 1)));
}

BOOST_AUTO_TEST_CASE(a_smaller_pool_gives_its_memory_back_to_the_system) {
  constexpr std::uint32_t pages = 2000;
  kv_pool pool(kv_layout{4, 2, 32}, pages); // 32 KiB per page
  std::vector<page_index> taken;
  BOOST_TEST(pool.promise(pages));
  for (std::uint32_t i = 0; i < pages; ++i) {
    taken.push_back(pool.take_promised());
    std::fill_n(pool.data(taken.back()), pool.layout().page_bytes() / sizeof(float), 1.0F);
  }
  for (auto page : taken)
    pool.release(page);
  const auto full = resident_bytes(), given = (pages - 8) * pool.page_bytes();
  BOOST_TEST(pool.resident_pages() == pages);
  must(pool.set_capacity(8));
  BOOST_TEST(pool.resident_pages() == 8U);
  BOOST_TEST(resident_bytes() < full - given / 10 * 9);
  must(pool.set_capacity(9));
  BOOST_TEST(pool.promise(9));
  for (int i = 0; i < 8; ++i)
    pool.take_promised();
  BOOST_TEST(pool.data(pool.take_promised())[0] == 0.0F);
}

/// 50 times 4 -> 2 -> 4 with requests in between: the same bytes every time, and no growth.
BOOST_AUTO_TEST_CASE(nothing_leaks_over_fifty_transitions) {
  const auto s = sizes_of_collatz();
  engine_world world(collatz, 4, budget_for(s, 8, 40));
  std::vector<memory_usage> first;
  std::uint64_t resident_early = 0;
  for (int round = 0; round < 25; ++round) {
    for (std::uint64_t rank = 0; rank < 2; ++rank)
      must(world.at(rank).add_request(sampled_request(rank, 12)));
    world.step();
    world.contract(half, halves(16));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      if (rank > 1) must(world.at(rank).switch_map(world.epoch(), halves(16), half));
      BOOST_TEST(world.at(rank).drop_unowned() == (rank > 1 ? 4U : 0U));
    }
    world.run();
    world.contract(all, world.at(0).home_map());
    for (std::size_t rank = 0; rank < 4; ++rank) {
      world.at(rank).drop_unowned();
      const auto memory = world.at(rank).memory();
      BOOST_TEST(memory.total() <= memory.budget);
      BOOST_TEST(world.at(rank).kv().used + world.at(rank).kv().promised == 0U);
      if (round == 0) first.push_back(memory);
      BOOST_TEST(memory.experts == first[rank].experts);
      BOOST_TEST(memory.kv <= first[rank].kv);
    }
    if (round == 4) resident_early = resident_bytes();
  }
#ifdef __SANITIZE_ADDRESS__
  BOOST_TEST_MESSAGE("resident memory is not compared: the sanitizer keeps freed memory, "
                     << resident_bytes() - resident_early << " bytes, and finds leaks itself");
#else
  BOOST_TEST(resident_bytes() < resident_early + resident_early / 20);
#endif
}
