// Groups over the real NCCL (tests/actors/collective_over_nccl_test.cpp has one without GPUs): the
// suite where there are GPUs for its ranks, one rank's exchange with itself where there is one, and
// clear errors where there is none.
#define BOOST_TEST_MODULE nccl_fabric
#include "gpu/plugin.hpp"
#include "gpu/plugin_abi.hpp"
#include "tests/gpu/communicator_conformance.hpp"

using namespace adafloor;

namespace {

nccl_world member(std::vector<std::byte> id, std::uint32_t rank, std::uint32_t world_size) {
  constexpr std::chrono::milliseconds bound{30'000};
  return {
      std::move(id), rank_id{rank}, tests::first_ranks(world_size), static_cast<int>(rank), bound,
      bound,         nullptr};
}

/// Ranks join at the same time, each with a GPU of its own.
std::vector<std::unique_ptr<collective_fabric>> join(std::uint32_t world_size) {
  const auto id = make_nccl_world_id();
  if (!id) return {};
  std::vector<std::unique_ptr<collective_fabric>> fabrics(world_size);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world_size; ++r)
    threads.emplace_back([&, r] {
      if (auto joined = join_nccl_world(member(*id, r, world_size)))
        fabrics[r] = std::move(*joined);
    });
  for (auto& thread : threads)
    thread.join();
  return fabrics;
}

std::uint32_t devices() {
  const auto found = find_nccl();
  return found ? found->devices : 0;
}

} // namespace

BOOST_AUTO_TEST_CASE(without_a_gpu_the_reason_is_given) {
  if (devices() > 0) return;
  const auto joined = join_nccl_world(member(std::vector<std::byte>(128), 0, 1));
  BOOST_REQUIRE(!joined);
  BOOST_TEST_MESSAGE("skipped: " << joined.error().text);
  BOOST_TEST(!joined.error().text.empty());
}

BOOST_AUTO_TEST_CASE(one_rank_exchanges_with_itself) {
  if (devices() == 0) return;
  const auto fabrics = join(1);
  BOOST_REQUIRE(fabrics.size() == 1 && fabrics[0]);
  auto group = fabrics[0]->make_group(epoch_id{1}, {rank_id{0}});
  BOOST_REQUIRE(group);
  tests::complaints wrong;
  for (std::uint64_t step = 0; step < 20; ++step)
    tests::checked_exchange(**group, {step, 0, exchange_id::dispatch}, 1U << (step % 20), wrong);
  wrong.report();
}

BOOST_AUTO_TEST_CASE(conformance) {
  constexpr std::uint32_t ranks_max = 4;
  if (devices() < ranks_max) {
    BOOST_TEST_MESSAGE("skipped: " << devices() << " GPUs, the suite has " << ranks_max
                                   << " ranks");
    return;
  }
  tests::run_communicator_conformance(join);
}
