// Exchanges over UCX: threads of one process, and real processes that are killed, frozen and
// started again.
#define BOOST_TEST_ALTERNATIVE_INIT_API
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_MODULE ucx_collective
#include "actors/ucx_collective.hpp"
#include "tests/gpu/communicator_conformance.hpp"
#include "tests/ucx/child_process.hpp"
#include "tests/ucx/test_main.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstring>
#include <functional>
#include <iostream>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>

using namespace adafloor;
using adafloor::testing::child_process;

namespace {

using fabrics = std::vector<std::unique_ptr<ucx_collective>>;

fabrics make_fabrics(std::uint32_t n, microseconds deadline = microseconds{20'000'000},
                     bool single_copy = true) {
  fabrics made;
  for (std::uint32_t r = 0; r < n; ++r) {
    ucx_collective::options o;
    o.self = rank_id{r};
    o.incarnation = incarnation_id{r + 1};
    o.world_size = n;
    o.deadline = deadline;
    o.checksum = true;
    o.single_copy = single_copy;
    made.push_back(std::move(ucx_collective::open(std::move(o)).value()));
  }
  for (auto& f : made)
    for (std::uint32_t p = 0; p < n; ++p)
      if (!f->connect(rank_id{p}, made[p]->address(), incarnation_id{p + 1})) std::abort();
  return made;
}

void on_threads(std::uint32_t n, const std::function<void(std::uint32_t)>& work) {
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < n; ++r)
    threads.emplace_back(work, r);
  for (auto& t : threads)
    t.join();
}

std::vector<rank_id> everyone(std::uint32_t n) {
  std::vector<rank_id> all;
  for (std::uint32_t r = 0; r < n; ++r)
    all.push_back(rank_id{r});
  return all;
}

/// What rank `from` sends to `to` in exchange `step`: size and bytes follow from the three.
std::string message(std::uint64_t step, std::uint64_t from, std::uint64_t to, std::size_t most) {
  const std::uint64_t mix = (step * 1'000'003 + from * 101 + to) * 0x9E3779B97F4A7C15ull;
  const std::size_t size = mix % 5 == 0 ? 0 : (mix >> 20) % most;
  std::string s(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    s[i] = static_cast<char>(mix >> (i % 56));
  return s;
}

/// One exchange of such messages; the first difference, or the error's text, or "".
std::string trade(communicator& group, std::uint64_t step, std::size_t most) {
  std::vector<std::string> texts;
  std::vector<bytes_view> out, in;
  const auto self = group.members()[group.self_index()].value;
  for (auto m : group.members())
    texts.push_back(message(step, self, m.value, most));
  for (auto& t : texts)
    out.push_back({reinterpret_cast<const std::byte*>(t.data()), t.size()});
  if (auto done = group.exchange({step, 0, exchange_id::dispatch}, out, &in); !done)
    return done.error().text;
  for (auto& t : texts)
    std::fill(t.begin(), t.end(), '!'); // outgoing may be reused
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string want = message(step, group.members()[i].value, self, most);
    if (in[i].size != want.size()
        || (in[i].size > 0 && std::memcmp(in[i].data, want.data(), want.size()) != 0))
      return "step " + std::to_string(step) + ": wrong bytes from "
             + std::to_string(group.members()[i].value);
  }
  return "";
}

struct troubles { // Boost.Test's macros are for one thread
  std::mutex mutex;
  std::string text;
  void note(const std::string& t) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (text.empty()) text = t;
  }
};

const std::vector<bytes_view> nothing(std::size_t n) {
  return std::vector<bytes_view>(n);
}

} // namespace

BOOST_AUTO_TEST_CASE(the_conformance_suite_of_all_communicators_passes) {
  tests::run_communicator_conformance(
      [](std::uint32_t ranks) { return make_local_ucx_fabrics(static_cast<int>(ranks)).value(); });
}

BOOST_AUTO_TEST_CASE(leavers_may_exit_while_the_others_regroup) {
  tests::conformance_leavers_exit(
      [](std::uint32_t ranks) { return make_local_ucx_fabrics(static_cast<int>(ranks)).value(); });
}

BOOST_AUTO_TEST_CASE(everybody_gets_what_everybody_sent) {
  for (bool single_copy : {true, false})
    for (std::uint32_t n : {1u, 2u, 3u, 4u, 8u}) {
      auto f = make_fabrics(n, microseconds{20'000'000}, single_copy);
      troubles t;
      on_threads(n, [&](std::uint32_t r) {
        auto group = f[r]->make_group(epoch_id{1}, everyone(n)).value();
        for (std::uint64_t step = 1; step <= 30; ++step)
          t.note(trade(*group, step, step % 3 == 0 ? 300'000 : 3'000));
      });
      BOOST_TEST(t.text == "");
      for (auto& one : f) {
        BOOST_TEST(one->stats().overflow == 0u);
        BOOST_TEST((one->stats().single_copies > 0) == (single_copy && n > 1));
      }
    }
}

BOOST_AUTO_TEST_CASE(sixty_four_megabytes_each_way) {
  auto f = make_fabrics(2);
  troubles t;
  on_threads(2, [&](std::uint32_t r) {
    auto group = f[r]->make_group(epoch_id{1}, everyone(2)).value();
    std::vector<std::uint32_t> words(16 << 20);
    for (int round = 0; round < 3; ++round) {
      std::iota(words.begin(), words.end(), r * 1000 + std::uint32_t(round));
      const bytes_view all{reinterpret_cast<const std::byte*>(words.data()), words.size() * 4};
      std::vector<bytes_view> in;
      auto done = group->exchange({std::uint64_t(round), 0, exchange_id::combine}, {all, all}, &in);
      if (!done) return t.note(done.error().text);
      std::iota(words.begin(), words.end(), (1 - r) * 1000 + std::uint32_t(round));
      if (in[1 - r].size != all.size || std::memcmp(in[1 - r].data, words.data(), all.size) != 0)
        t.note("wrong bytes");
    }
  });
  BOOST_TEST(t.text == "");
}

BOOST_AUTO_TEST_CASE(two_hundred_groups_cost_no_descriptor_and_no_memory) {
  constexpr std::uint32_t n = 4;
  auto f = make_fabrics(n);
  troubles t;
  std::atomic<std::size_t> fds_early{0}, fds_late{0}, kb_early{0}, kb_late{0};
  on_threads(n, [&](std::uint32_t r) {
    for (std::uint64_t epoch = 1; epoch <= 210; ++epoch) {
      // 0 and 1 are always in; 2 and 3 come and go, so that their next epoch lies ahead of them.
      std::vector<rank_id> members{rank_id{0}, rank_id{1}};
      if (epoch % 3 == 0) members.push_back(rank_id{2});
      if (epoch % 5 == 0) members.push_back(rank_id{3});
      if (std::find(members.begin(), members.end(), rank_id{r}) == members.end()) continue;
      auto group = f[r]->make_group(epoch_id{epoch}, members).value();
      for (std::uint64_t step = 0; step < 3; ++step)
        t.note(trade(*group, step, 50'000));
      if (r == 0 && epoch == 30)
        fds_early = testing::open_descriptors(), kb_early = testing::resident_kb();
      if (r == 0 && epoch == 210)
        fds_late = testing::open_descriptors(), kb_late = testing::resident_kb();
    }
  });
  BOOST_TEST(t.text == "");
  BOOST_TEST(fds_late.load() == fds_early.load());
  BOOST_TEST(kb_late.load() < kb_early.load() + 16'000);
}

BOOST_AUTO_TEST_CASE(a_frame_of_the_next_epoch_waits_and_one_of_the_last_is_dropped) {
  auto f = make_fabrics(3, microseconds{5'000'000});
  troubles t;
  std::atomic<bool> ahead{false};
  on_threads(3, [&](std::uint32_t r) {
    std::vector<rank_id> pair{rank_id{0}, rank_id{1}};
    if (r < 2) {
      auto first = f[r]->make_group(epoch_id{1}, pair).value();
      t.note(trade(*first, 1, 3000));
      if (r == 0) ahead = true;
    } else {
      while (!ahead)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50)); // the others are in epoch 2 now
    }
    auto second = f[r]->make_group(epoch_id{2}, everyone(3)).value();
    for (std::uint64_t step = 1; step < 5; ++step)
      t.note(trade(*second, step, 3000));
  });
  BOOST_TEST(t.text == "");
  // Rank 0 leaves epoch 3 unfinished; its frame reaches rank 1 when that is in epoch 4 already.
  auto old0 = f[0]->make_group(epoch_id{3}, {rank_id{0}, rank_id{1}}).value();
  std::vector<bytes_view> in;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    old0->abort();
  });
  const auto stopped = old0->exchange({1, 0, exchange_id::dispatch}, nothing(2), &in);
  stopper.join();
  BOOST_REQUIRE(!stopped);
  BOOST_TEST((stopped.error().code == error_code::aborted));
  on_threads(2, [&](std::uint32_t r) {
    auto next = f[r]->make_group(epoch_id{4}, {rank_id{0}, rank_id{1}}).value();
    t.note(trade(*next, 9, 3000));
  });
  BOOST_TEST(t.text == "");
  BOOST_TEST(f[1]->stats().stale > 0u);
  BOOST_TEST(!f[0]->make_group(epoch_id{3}, {rank_id{0}, rank_id{1}}).has_value());
}

BOOST_AUTO_TEST_CASE(members_with_new_addresses_find_each_other_and_those_who_stayed_out) {
  constexpr std::uint32_t n = 4;
  auto f = make_fabrics(n);
  troubles t;
  std::vector<std::string> addresses(n), before(n);
  const auto trade_in = [&](std::uint32_t r, std::uint64_t epoch, std::vector<rank_id> members) {
    for (auto m : members)
      if (auto ok = f[r]->follow(m, addresses[m.value]); !ok) t.note(ok.error().text);
    auto group = f[r]->make_group(epoch_id{epoch}, std::move(members)).value();
    for (std::uint64_t step = 1; step <= 20; ++step)
      t.note(trade(*group, step, step % 3 == 0 ? 300'000 : 3'000));
  };
  for (std::uint32_t r = 0; r < n; ++r)
    before[r] = addresses[r] = f[r]->address();
  on_threads(n, [&](std::uint32_t r) { trade_in(r, 1, everyone(n)); });
  BOOST_TEST(t.text == "");
  for (std::uint64_t epoch = 2; epoch < 8; epoch += 2) { // rank 2 is gone, rank 3 outside
    on_threads(2, [&](std::uint32_t r) {
      if (auto ok = f[r]->renew(); !ok) t.note(ok.error().text);
      addresses[r] = f[r]->address();
    });
    BOOST_TEST(addresses[0] != before[0]);
    on_threads(2, [&](std::uint32_t r) { trade_in(r, epoch, {rank_id{0}, rank_id{1}}); });
    BOOST_TEST(t.text == "");
    on_threads(3, [&](std::uint32_t i) {
      trade_in(i == 2 ? 3 : i, epoch + 1, {rank_id{0}, rank_id{1}, rank_id{3}});
    });
    BOOST_TEST(t.text == "");
    before = addresses;
  }
}

BOOST_AUTO_TEST_CASE(exchanges_that_differ_name_the_rank) {
  auto f = make_fabrics(2, microseconds{3'000'000});
  std::string texts[2];
  on_threads(2, [&](std::uint32_t r) {
    auto group = f[r]->make_group(epoch_id{1}, everyone(2)).value();
    std::vector<bytes_view> in;
    const auto phase = r == 0 ? exchange_id::dispatch : exchange_id::combine;
    auto done = group->exchange({7, 2, phase}, nothing(2), &in);
    texts[r] = done ? "no error" : done.error().text;
    if (group->exchange({8, 0, phase}, nothing(2), &in)) texts[r] = "went on";
  });
  BOOST_TEST(
      texts[0]
      == "epoch 1 step 7 layer 2 dispatch: rank 1 is at step 7 layer 2 combine; the members' "
         "exchanges differ");
  BOOST_TEST(texts[1].find("rank 0 is at step 7 layer 2 dispatch") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(weights_versions_that_differ_are_an_error) {
  auto f = make_fabrics(2, microseconds{3'000'000});
  f[1]->set_weights_version(weights_id{2});
  std::string texts[2];
  on_threads(2, [&](std::uint32_t r) {
    auto group = f[r]->make_group(epoch_id{1}, everyone(2)).value();
    texts[r] = trade(*group, 1, 100);
  });
  BOOST_TEST(texts[0].find("rank 1 has weights version 2, this rank 0") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_member_that_does_not_come_is_named) {
  auto f = make_fabrics(3, microseconds{300'000});
  std::string texts[2];
  on_threads(2, [&](std::uint32_t r) {
    auto group = f[r]->make_group(epoch_id{1}, everyone(3)).value();
    std::vector<bytes_view> in;
    auto done = group->exchange({4, 1, exchange_id::header}, nothing(3), &in);
    texts[r] = done ? "no error" : done.error().text;
    if (!done && done.error().code != error_code::timed_out) texts[r] = "wrong code";
  });
  for (const auto& t : texts)
    BOOST_TEST(t.find("epoch 1 step 4 layer 1 header: nothing from rank 2 within 300 ms") == 0u, t);
}

BOOST_AUTO_TEST_CASE(abort_ends_a_wait_from_another_thread) {
  auto f = make_fabrics(2);
  auto group = f[0]->make_group(epoch_id{1}, everyone(2)).value();
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    f[0]->abort_up_to(epoch_id{1});
  });
  std::vector<bytes_view> in;
  const auto done = group->exchange({1, 0, exchange_id::dispatch}, nothing(2), &in);
  stopper.join();
  BOOST_REQUIRE(!done);
  BOOST_TEST((done.error().code == error_code::aborted));
  BOOST_TEST(done.error().text.find("waited for rank 1") != std::string::npos);
  const auto again = group->exchange({2, 0, exchange_id::dispatch}, nothing(2), &in);
  BOOST_REQUIRE(!again);
  BOOST_TEST((again.error().code == error_code::aborted));
  BOOST_TEST(f[0]->make_group(epoch_id{2}, {rank_id{0}})
                 .value()
                 ->exchange({1, 0, exchange_id::dispatch}, nothing(1), &in)
                 .has_value());
}

BOOST_AUTO_TEST_CASE(groups_that_make_no_sense_are_refused) {
  auto f = make_fabrics(2);
  BOOST_TEST(!f[0]->make_group(epoch_id{1}, {rank_id{1}, rank_id{0}}).has_value());
  BOOST_TEST(!f[0]->make_group(epoch_id{1}, {rank_id{1}}).has_value());
  BOOST_TEST(!f[0]->make_group(epoch_id{1}, {rank_id{0}, rank_id{2}}).has_value());
  auto group = f[0]->make_group(epoch_id{1}, {rank_id{0}}).value();
  std::vector<bytes_view> in;
  BOOST_TEST(!group->exchange({1, 0, exchange_id::dispatch}, nothing(2), &in).has_value());
  BOOST_TEST(group->exchange({1, 0, exchange_id::dispatch}, nothing(1), &in).has_value());
}

BOOST_AUTO_TEST_CASE(the_local_fabrics_of_one_process_work_together) {
  auto f = make_local_ucx_fabrics(4).value();
  troubles t;
  on_threads(4, [&](std::uint32_t r) {
    auto group = f[r]->make_group(epoch_id{1}, everyone(4)).value();
    for (std::uint64_t step = 0; step < 10; ++step)
      t.note(trade(*group, step, 20'000));
  });
  BOOST_TEST(t.text == "");
}

// Child: `collective RANK WORLD INCARNATION`. Reads "connect R ADDRESS INCARNATION" and
// "trade EPOCH STEPS MEMBERS...", answers each with a line.
int adafloor::testing::run_child(const std::vector<std::string>& arguments) {
  ucx_collective::options o;
  o.self = rank_id{std::uint32_t(std::stoul(arguments.at(1)))};
  o.world_size = std::uint32_t(std::stoul(arguments.at(2)));
  o.incarnation = incarnation_id{std::stoull(arguments.at(3))};
  o.deadline = microseconds{3'000'000};
  auto fabric = ucx_collective::open(o);
  if (!fabric) return 1;
  std::cout << (*fabric)->address() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "connect") {
      std::uint32_t rank;
      std::string address;
      std::uint64_t incarnation;
      words >> rank >> address >> incarnation;
      auto done = (*fabric)->connect(rank_id{rank}, address, incarnation_id{incarnation});
      std::cout << (done ? "ok" : done.error().text) << std::endl;
    } else if (word == "trade") {
      std::uint64_t epoch, steps;
      std::uint32_t member;
      std::vector<rank_id> members;
      words >> epoch >> steps;
      while (words >> member)
        members.push_back(rank_id{member});
      auto group = (*fabric)->make_group(epoch_id{epoch}, members);
      std::string trouble = group ? "" : group.error().text;
      for (std::uint64_t s = 1; s <= steps && trouble.empty(); ++s)
        trouble = trade(**group, s, 100'000);
      std::cout << (trouble.empty() ? "ok" : trouble) << std::endl;
    }
  }
  return 0;
}

namespace {

struct process_world {
  std::vector<child_process> children;
  std::vector<std::string> addresses;
  std::vector<std::uint64_t> incarnations;

  explicit process_world(std::size_t n) {
    for (std::size_t r = 0; r < n; ++r) {
      incarnations.push_back(100 + r);
      children.emplace_back(arguments(r, n));
    }
    for (auto& c : children)
      addresses.push_back(c.hear());
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t p = 0; p < n; ++p)
        introduce(r, p);
  }
  std::vector<std::string> arguments(std::size_t r, std::size_t n) const {
    return {"collective", std::to_string(r), std::to_string(n), std::to_string(incarnations[r])};
  }
  void introduce(std::size_t to, std::size_t peer) {
    children[to].say("connect " + std::to_string(peer) + " " + addresses[peer] + " "
                     + std::to_string(incarnations[peer]));
    BOOST_TEST(children[to].hear() == "ok");
  }
  static std::string order(int epoch, int steps, const std::vector<int>& members) {
    std::string text = "trade " + std::to_string(epoch) + " " + std::to_string(steps);
    for (int m : members)
      text += " " + std::to_string(m);
    return text;
  }
  void succeed(int epoch, const std::vector<int>& members) {
    for (int m : members)
      children[std::size_t(m)].say(order(epoch, 20, members));
    for (int m : members)
      BOOST_TEST(children[std::size_t(m)].hear() == "ok");
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(processes_go_on_after_one_is_killed_and_started_again) {
  process_world w(4);
  w.succeed(1, {0, 1, 2, 3});
  for (int m : {0, 1, 2, 3})
    w.children[std::size_t(m)].say(w.order(2, 1'000'000, {0, 1, 2, 3}));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  w.children[2].kill();
  for (int m : {0, 1, 3}) {
    const std::string text = w.children[std::size_t(m)].hear();
    // Whoever waits for rank 2 says so; one that waits for another waiting one names that.
    const bool names = text.find("connection lost to rank 2") != std::string::npos;
    BOOST_TEST(names, text);
  }
  w.succeed(3, {0, 1, 3}); // the survivors, over the endpoints that they have
  w.incarnations[2] = 999;
  {
    child_process again(w.arguments(2, 4));
    w.children[2].~child_process();
    new (&w.children[2]) child_process(std::move(again));
  }
  w.addresses[2] = w.children[2].hear();
  for (std::size_t p : {0, 1, 3}) {
    w.introduce(2, p);
    w.introduce(p, 2);
  }
  w.succeed(4, {0, 1, 2, 3}); // the full world again
  for (auto& c : w.children)
    c.kill();
  BOOST_TEST(testing::shared_memory_segments() == 0u); // nothing is left behind in /dev/shm
}

BOOST_AUTO_TEST_CASE(a_frozen_process_is_named_by_the_watchdog) {
  process_world w(3);
  w.succeed(1, {0, 1, 2});
  w.children[1].freeze();
  for (int m : {0, 2})
    w.children[std::size_t(m)].say(w.order(2, 5, {0, 1, 2}));
  for (int m : {0, 2}) {
    const std::string text = w.children[std::size_t(m)].hear();
    BOOST_TEST(text.find("epoch 2 step 1 layer 0 dispatch: nothing from rank 1 within 3000 ms")
                   == 0u,
               text);
  }
  w.succeed(3, {0, 2}); // without the frozen one
  w.children[1].signal(SIGCONT);
  w.succeed(4, {0, 1, 2}); // it thaws; what it was sent for epoch 2 does no harm
}
