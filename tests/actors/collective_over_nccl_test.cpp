// Groups over NCCL: the plug-in's own code over an NCCL in host memory (tests/gpu/fake_nccl.cpp),
// with ranks as threads. The conformance suite, and what is NCCL's alone: worlds that are joined
// and left, deadlines of what never comes, aborts.
#define BOOST_TEST_MODULE collective_over_nccl
#include "actors/collective_over_nccl.hpp"
#include "gpu/plugin.hpp"
#include "tests/gpu/communicator_conformance.hpp"

#include <cstdlib>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

struct fake_plugin {
  fake_plugin() { ::setenv("ADAFLOOR_PLUGINS", ADAFLOOR_FAKE_PLUGINS, 1); }
};
BOOST_TEST_GLOBAL_FIXTURE(fake_plugin);

/// A case of this suite is skipped where no NCCL was there to build against.
boost::test_tools::assertion_result has_plugin(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result answer(std::string(ADAFLOOR_FAKE_PLUGINS) != "");
  if (!answer) answer.message() << "no nccl.h and cuda_runtime.h";
  return answer;
}

using std::chrono::milliseconds;
constexpr milliseconds long_enough{60'000}; ///< nothing in a test comes near
constexpr milliseconds soon{700};           ///< for what shall be waited for in vain

struct ranks {
  std::vector<std::unique_ptr<collective_over_nccl>> at;

  explicit ranks(std::uint32_t count, milliseconds setup = long_enough,
                 milliseconds exchange = long_enough) {
    for (std::uint32_t r = 0; r < count; ++r) {
      auto opened = collective_over_nccl::open({rank_id{r}, count, setup, exchange});
      BOOST_REQUIRE_MESSAGE(opened, opened.error().text);
      at.push_back(std::move(*opened));
    }
    tell(first_ranks(count));
  }

  /// As the bootstrap and a transition's messages do.
  void tell(const std::vector<rank_id>& members) {
    std::vector<std::string> addresses;
    for (const auto r : members)
      addresses.push_back(at[r.value]->address());
    for (const auto r : members)
      for (std::size_t i = 0; i < members.size(); ++i)
        BOOST_REQUIRE(at[r.value]->follow(members[i], addresses[i]));
  }

  std::vector<result<void>> join() {
    std::vector<result<void>> ended(at.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < at.size(); ++r)
      threads.emplace_back([&, r] { ended[r] = at[r]->join(); });
    for (auto& t : threads)
      t.join();
    return ended;
  }

  /// A new group of these exchanges a few times; all must be well.
  void exchange(std::uint64_t epoch, const std::vector<rank_id>& members) {
    tell(members);
    std::vector<std::thread> threads;
    complaints wrong;
    for (const auto r : members)
      threads.emplace_back([&, r] {
        auto group = at[r.value]->make_group(epoch_id{epoch}, members);
        if (!group) return wrong.check(false, "make_group: " + group.error().text);
        for (std::uint64_t step = 0; step < 5; ++step)
          checked_exchange(**group, {step, 0, exchange_id::dispatch}, 50, wrong);
      });
    for (auto& t : threads)
      t.join();
    wrong.report();
  }
};

ranks joined(std::uint32_t count, milliseconds setup = long_enough,
             milliseconds exchange = long_enough) {
  ranks all(count, setup, exchange);
  for (const auto& ended : all.join())
    BOOST_REQUIRE_MESSAGE(ended, ended.error().text);
  return all;
}

std::vector<rank_id> of(std::initializer_list<std::uint32_t> numbers) {
  std::vector<rank_id> members;
  for (const auto n : numbers)
    members.emplace_back(n);
  return members;
}

/// One exchange of nothing by a group made for it; members that do not come are waited for.
result<void> lonely_exchange(collective_over_nccl& rank, std::uint64_t epoch,
                             const std::vector<rank_id>& members) {
  auto group = rank.make_group(epoch_id{epoch}, members);
  if (!group) return tl::unexpected(group.error());
  std::vector<bytes_view> outgoing(members.size()), incoming;
  auto first = (*group)->exchange({0, 0, exchange_id::dispatch}, outgoing, &incoming);
  if (!first && (*group)->exchange({1, 0, exchange_id::dispatch}, outgoing, &incoming))
    return fail(error_code::io, "a group that had failed went on");
  return first;
}

void failed(const result<void>& ended, error_code code, const std::string& said) {
  BOOST_REQUIRE(!ended);
  BOOST_TEST((ended.error().code == code), ended.error().text);
  BOOST_TEST(ended.error().text.find(said) != std::string::npos, ended.error().text);
}

} // namespace

BOOST_AUTO_TEST_SUITE(over_nccl, *boost::unit_test::precondition(has_plugin))

BOOST_AUTO_TEST_CASE(conformance) {
  run_communicator_conformance([](std::uint32_t count) {
    auto all = joined(count, long_enough, milliseconds{5000});
    std::vector<std::unique_ptr<collective_fabric>> fabrics;
    for (auto& f : all.at)
      fabrics.push_back(std::move(f));
    return fabrics;
  });
}

BOOST_AUTO_TEST_CASE(the_world_contracts_and_comes_back_many_times) {
  auto all = joined(4);
  std::uint64_t epoch = 1;
  for (int round = 0; round < 3; ++round)
    for (const auto& members : {of({0, 1, 2, 3}), of({1, 3}), of({3}), of({0, 2, 3})})
      all.exchange(epoch++, members);
}

BOOST_AUTO_TEST_CASE(the_others_leave_a_dead_rank_and_go_on) {
  auto all = joined(4);
  const auto everybody = of({0, 1, 2, 3}), left = of({0, 1, 3});
  all.exchange(1, everybody);
  std::vector<std::thread> threads;
  std::vector<result<void>> ended(4);
  for (const auto r : left)
    threads.emplace_back(
        [&, r] { ended[r.value] = lonely_exchange(*all.at[r.value], 2, everybody); });
  std::this_thread::sleep_for(milliseconds{50});
  all.at[2].reset(); // Nobody notices, until somebody says so.
  for (const auto r : left)
    all.at[r.value]->abort_up_to(epoch_id{2});
  for (auto& t : threads)
    t.join();
  for (const auto r : left) {
    failed(ended[r.value], error_code::aborted, "abort");
    BOOST_REQUIRE(all.at[r.value]->renew());
  }
  all.exchange(3, left);
  all.exchange(4, of({1, 3}));
  all.exchange(5, left);
  failed(lonely_exchange(*all.at[0], 2, left), error_code::aborted, "epoch 2 was aborted");
}

BOOST_AUTO_TEST_CASE(ranks_that_were_outside_join_the_world_of_those_that_lost_one) {
  auto all = joined(4);
  all.exchange(1, of({1, 3}));
  all.at[3].reset();
  BOOST_REQUIRE(all.at[1]->renew()); // 0 and 2 are still in the first world
  all.exchange(2, of({1}));
  all.exchange(3, of({0, 1, 2}));
  all.exchange(4, of({0, 2}));
  all.exchange(5, of({0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(a_dead_rank_outside_of_the_group_is_left_out_of_the_next_one) {
  auto all = joined(3);
  all.exchange(1, of({0, 1}));
  all.at[2].reset();
  all.exchange(2, of({0}));
  all.exchange(3, of({0, 1}));
}

BOOST_AUTO_TEST_CASE(groups_that_are_kept_are_made_anew_in_the_next_world) {
  auto all = joined(3);
  const auto pair = of({0, 1});
  std::vector<std::unique_ptr<communicator>> kept;
  for (const auto r : pair)
    kept.push_back(std::move(all.at[r.value]->make_group(epoch_id{1}, pair).value()));
  complaints wrong;
  const auto use = [&](std::uint64_t epoch) {
    std::vector<std::thread> threads;
    for (auto& group : kept)
      threads.emplace_back([&] {
        if (group->epoch() != epoch_id{epoch})
          wrong.check(group->enter(epoch_id{epoch}).has_value(), "enter");
        for (std::uint64_t step = 0; step < 3; ++step)
          checked_exchange(*group, {step, 0, exchange_id::dispatch}, 50, wrong);
      });
    for (auto& t : threads)
      t.join();
  };
  use(1);
  use(2);
  all.at[2].reset();
  for (const auto r : pair) {
    all.at[r.value]->abort_up_to(epoch_id{2});
    BOOST_REQUIRE(all.at[r.value]->renew());
  }
  all.tell(pair);
  use(3);
  use(4);
  wrong.report();
}

BOOST_AUTO_TEST_CASE(who_does_not_join_is_waited_for_so_long_and_named) {
  ranks all(3, soon);
  failed(all.at[0]->join(), error_code::timed_out, "rank 1, rank 2");
}

BOOST_AUTO_TEST_CASE(who_does_not_make_the_group_is_waited_for_so_long_and_named) {
  auto all = joined(3, milliseconds{5000}); // joining the world has it, too
  failed(lonely_exchange(*all.at[0], 1, of({0, 2})), error_code::timed_out, "rank 2");
}

BOOST_AUTO_TEST_CASE(who_does_not_exchange_is_waited_for_so_long_and_named) {
  auto all = joined(3, long_enough, soon);
  failed(lonely_exchange(*all.at[1], 1, of({0, 1, 2})), error_code::timed_out, "rank 0, rank 2");
}

BOOST_AUTO_TEST_CASE(joining_the_next_world_can_be_aborted) {
  auto all = joined(3);
  all.at[2].reset();
  for (const auto r : of({0, 1}))
    BOOST_REQUIRE(all.at[r.value]->renew());
  all.tell(of({0, 1}));
  result<void> ended;
  std::thread waits([&] { ended = lonely_exchange(*all.at[0], 2, of({0, 1})); });
  std::this_thread::sleep_for(milliseconds{50});
  all.at[1].reset(); // This one dies, too.
  all.at[0]->abort_up_to(epoch_id{2});
  waits.join();
  failed(ended, error_code::aborted, "abort");
  BOOST_REQUIRE(all.at[0]->renew());
  all.exchange(3, of({0}));
}

BOOST_AUTO_TEST_CASE(a_death_that_nccl_sees_is_a_lost_peer) {
  ::setenv("FAKE_NCCL_SEES_DEATH", "1", 1);
  {
    auto all = joined(2);
    all.exchange(1, of({0, 1}));
    all.at[1].reset();
    failed(lonely_exchange(*all.at[0], 2, of({0, 1})), error_code::peer_lost, "rank 1");
  }
  ::unsetenv("FAKE_NCCL_SEES_DEATH");
}

BOOST_AUTO_TEST_CASE(members_with_other_weights_are_named) {
  auto all = joined(2, long_enough, milliseconds{5000});
  all.at[0]->set_weights_version(weights_id{3});
  all.at[1]->set_weights_version(weights_id{4});
  std::vector<result<void>> ended(2);
  std::thread other([&] { ended[1] = lonely_exchange(*all.at[1], 1, of({0, 1})); });
  ended[0] = lonely_exchange(*all.at[0], 1, of({0, 1}));
  other.join();
  failed(ended[0], error_code::internal, "rank 1 has weights version 4, this rank 3");
  failed(ended[1], error_code::internal, "rank 0 has weights version 3, this rank 4");
}

BOOST_AUTO_TEST_CASE(two_ranks_on_one_gpu_are_refused) {
  ::setenv("FAKE_CUDA_DEVICES", "1", 1);
  ranks all(2);
  for (const auto& ended : all.join())
    failed(ended, error_code::internal, "joining the world on GPU 0");
  ::unsetenv("FAKE_CUDA_DEVICES");
}

BOOST_AUTO_TEST_CASE(addresses_of_another_kind_are_refused) {
  ranks all(2);
  for (const std::string text : {"\x07", "\x03xyz", "\x20 a UCX address"})
    BOOST_TEST(!all.at[0]->follow(rank_id{1}, text));
  BOOST_TEST(!all.at[0]->follow(rank_id{2}, all.at[1]->address()));
}

BOOST_AUTO_TEST_SUITE_END()
