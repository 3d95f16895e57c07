// Bulk transfers over UCX: sizes, errors, bounds, deadlines, and real processes that are killed,
// frozen and started again.
#define BOOST_TEST_ALTERNATIVE_INIT_API
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_MODULE ucx_bulk
#include "actors/ucx_bulk.hpp"
#include "tests/ucx/child_process.hpp"
#include "tests/ucx/test_main.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

using namespace adafloor;
using adafloor::testing::child_process;
using namespace std::chrono_literals;

namespace {

constexpr microseconds patience{20'000'000};

ucx_bulk::options options_of(std::uint32_t rank, std::uint32_t world, std::uint64_t incarnation) {
  ucx_bulk::options o;
  o.self = rank_id{rank};
  o.world_size = world;
  o.incarnation = incarnation_id{incarnation};
  return o;
}

std::string content(std::size_t size) {
  std::string s(size, '\0');
  for (std::size_t i = 0; i < size; i += 7)
    s[i] = static_cast<char>(i * 2654435761u >> 13);
  return s;
}

/// "SIZE" gives that many bytes, "no" is refused; the rest is counted as held until released.
result<shared_bytes> provide(const std::string& key) {
  if (key == "no") return fail(error_code::refused, "there is no such expert");
  auto text = std::make_shared<std::string>(content(std::stoul(key)));
  const bytes_view view{reinterpret_cast<const std::byte*>(text->data()), text->size()};
  return shared_bytes{text, view};
}

struct pair_of_processes {
  std::unique_ptr<ucx_bulk> a, b;
  explicit pair_of_processes(
      ucx_bulk::options oa = options_of(0, 2, 10), ucx_bulk::options ob = options_of(1, 2, 11),
      ucx_bulk::request_handler serve = [](rank_id, const std::string& key) {
        return provide(key);
      }) {
    a = ucx_bulk::open(oa).value();
    b = ucx_bulk::open(ob).value();
    b->on_request(std::move(serve));
    BOOST_TEST(a->connect(rank_id{1}, b->address(), incarnation_id{11}).has_value());
    BOOST_TEST(b->connect(rank_id{0}, a->address(), incarnation_id{10}).has_value());
  }
};

bool same(const result<pooled_buffer>& got, std::size_t size) {
  if (!got || got->size() != size) return false;
  const std::string want = content(size);
  return size == 0 || std::memcmp(got->data(), want.data(), size) == 0;
}

} // namespace

BOOST_AUTO_TEST_CASE(bytes_of_all_sizes_arrive_whole) {
  pair_of_processes p;
  for (std::size_t size : {0, 1, 100, 8191, 8192, 8193, 70'000, 1 << 20, 5'000'001, 64 << 20}) {
    auto got = p.a->fetch_now(rank_id{1}, std::to_string(size), patience);
    BOOST_TEST(same(got, size), size << ": " << (got ? "" : got.error().text));
  }
  BOOST_TEST(p.a->stats().fetched == 10u);
  BOOST_TEST(p.a->stats().failed == 0u);
}

BOOST_AUTO_TEST_CASE(rendezvous_serves_where_memory_cannot_be_read_directly) {
  auto o = options_of(0, 2, 10);
  o.single_copy = false;
  pair_of_processes p(o);
  for (std::size_t size : {8193, 70'000, 5'000'001, 64 << 20}) {
    auto got = p.a->fetch_now(rank_id{1}, std::to_string(size), patience);
    BOOST_TEST(same(got, size), size << ": " << (got ? "" : got.error().text));
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_lie_in_several_places_arrive_as_one) {
  const auto in_parts = [](std::size_t count) {
    return [count](rank_id, const std::string& key) {
      auto all = *provide(key);
      const auto whole = all.bytes;
      const std::size_t each = whole.size / count;
      all.bytes.size = each;
      for (std::size_t i = 1; i < count; ++i)
        all.rest.push_back({whole.data + i * each, i + 1 < count ? each : whole.size - i * each});
      all.sealed = count % 2 == 1;
      return result<shared_bytes>(all);
    };
  };
  for (const bool single_copy : {true, false})
    for (const std::size_t parts : {2, 3, 250, 1000}) {
      auto o = options_of(0, 2, 10);
      o.single_copy = single_copy;
      pair_of_processes p(o, options_of(1, 2, 11), in_parts(parts));
      for (const std::size_t size : {1000, 8193, 1'000'003, 13'000'000}) {
        auto got = p.a->fetch_now(rank_id{1}, std::to_string(size), patience);
        BOOST_TEST(same(got, size), parts << " parts of " << size);
        BOOST_TEST(same(p.b->fetch_now(rank_id{1}, std::to_string(size), patience), size));
      }
    }
}

BOOST_AUTO_TEST_CASE(buffers_are_used_again) {
  pair_of_processes p;
  for (int i = 0; i < 50; ++i)
    BOOST_TEST(same(p.a->fetch_now(rank_id{1}, "3000000", patience), 3'000'000));
  BOOST_TEST(p.a->stats().buffers_made == 1u);
}

BOOST_AUTO_TEST_CASE(many_fetches_at_once_all_end) {
  auto o = options_of(0, 2, 10);
  o.in_flight_max = 3;
  pair_of_processes p(o);
  std::atomic<int> good{0}, done{0};
  for (int i = 0; i < 200; ++i) {
    const std::size_t size = std::size_t(i) * 997;
    auto accepted = p.a->fetch(rank_id{1}, std::to_string(size), patience,
                               [&, size](result<pooled_buffer> got) {
                                 if (same(got, size)) ++good;
                                 ++done;
                               });
    BOOST_TEST(accepted.has_value());
  }
  for (int i = 0; i < 20'000 && done < 200; ++i)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(good == 200);
}

BOOST_AUTO_TEST_CASE(bounds_answer_busy) {
  auto o = options_of(0, 2, 10);
  o.queued_max = 4;
  o.in_flight_max = 1;
  pair_of_processes p(o);
  std::atomic<bool> hold{true};
  std::atomic<int> called{0};
  p.b->on_request([&](rank_id, const std::string& key) {
    while (hold)
      std::this_thread::sleep_for(1ms); // only a test may block here
    return provide(key);
  });
  int accepted = 0;
  error_code last{};
  for (int i = 0; i < 10; ++i) {
    auto r = p.a->fetch(rank_id{1}, "5", patience, [&](result<pooled_buffer>) { ++called; });
    if (r)
      ++accepted;
    else
      last = r.error().code;
  }
  hold = false;
  BOOST_TEST(accepted == 5);
  BOOST_TEST((last == error_code::busy));
  for (int i = 0; i < 20'000 && called < 5; ++i)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(called == 5);
}

BOOST_AUTO_TEST_CASE(errors_name_the_rank_and_the_key) {
  auto small = options_of(1, 2, 11);
  small.transfer_bytes_max = 1000;
  pair_of_processes p(options_of(0, 2, 10), small);
  const auto refused = p.a->fetch_now(rank_id{1}, "no", patience);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  BOOST_TEST(refused.error().text == "fetch of \"no\" from rank 1: there is no such expert");
  const auto large = p.a->fetch_now(rank_id{1}, "5000", patience);
  BOOST_REQUIRE(!large);
  BOOST_TEST(large.error().text.find("more than the allowed 1000") != std::string::npos);
  BOOST_TEST(!p.a->fetch_now(rank_id{1}, std::string(5000, 'k'), patience).has_value());
  BOOST_TEST(!p.b->fetch_now(rank_id{0}, "5", patience).has_value()); // a serves nothing
  auto own = p.b->fetch_now(rank_id{1}, "300", patience);
  BOOST_TEST(same(own, 300));
}

BOOST_AUTO_TEST_CASE(a_request_before_the_other_side_knows_us_waits) {
  auto a = ucx_bulk::open(options_of(0, 2, 10)).value();
  auto b = ucx_bulk::open(options_of(1, 2, 11)).value();
  b->on_request([](rank_id, const std::string& key) { return provide(key); });
  BOOST_TEST(a->connect(rank_id{1}, b->address(), incarnation_id{11}).has_value());
  std::thread later([&] {
    std::this_thread::sleep_for(200ms);
    (void)b->connect(rank_id{0}, a->address(), incarnation_id{10});
  });
  BOOST_TEST(same(a->fetch_now(rank_id{1}, "100000", patience), 100'000));
  later.join();
}

BOOST_AUTO_TEST_CASE(close_ends_open_fetches_and_the_served_bytes_are_released) {
  auto held = std::make_shared<std::string>(content(2'000'000));
  pair_of_processes p(options_of(0, 2, 10), options_of(1, 2, 11),
                      [held](rank_id, const std::string&) -> result<shared_bytes> {
                        const auto* data = reinterpret_cast<const std::byte*>(held->data());
                        return shared_bytes{held, {data, held->size()}};
                      });
  BOOST_TEST(same(p.a->fetch_now(rank_id{1}, "x", patience), 2'000'000));
  for (int i = 0; i < 5000 && held.use_count() > 2; ++i)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(held.use_count() == 2); // here and in the handler
  p.b->close();
  std::atomic<int> code{0};
  (void)p.a->fetch(rank_id{1}, "x", patience, [&](result<pooled_buffer> r) {
    code = r ? -1 : static_cast<int>(r.error().code);
  });
  p.a->close();
  BOOST_TEST((code == static_cast<int>(error_code::aborted)
              || code == static_cast<int>(error_code::peer_lost)));
  BOOST_TEST((p.a->fetch_now(rank_id{1}, "x", patience).error().code == error_code::aborted));
}

BOOST_AUTO_TEST_CASE(closing_while_bytes_arrive_ends_every_fetch_once) {
  constexpr std::size_t size = 20'000'000;
  for (const bool server : {false, true})
    for (const auto pause : {0ms, 3ms, 15ms, 40ms}) {
      pair_of_processes p;
      std::atomic<int> ended{0}, wrong{0};
      for (int i = 0; i < 8; ++i)
        BOOST_TEST(p.a->fetch(rank_id{1}, std::to_string(size), patience,
                              [&](result<pooled_buffer> r) {
                                if (r && !same(r, size)) ++wrong;
                                ++ended;
                              })
                       .has_value());
      std::this_thread::sleep_for(pause);
      if (server) p.b->close();
      p.a->close();
      BOOST_TEST(ended == 8);
      BOOST_TEST(wrong == 0);
    }
}

// Child: `bulk RANK WORLD INCARNATION`. Serves content(SIZE) and connects as it is told.
int adafloor::testing::run_child(const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t i) { return std::stoull(arguments.at(i)); };
  auto opened =
      ucx_bulk::open(options_of(std::uint32_t(number(1)), std::uint32_t(number(2)), number(3)));
  if (!opened) return 1;
  (*opened)->on_request([](rank_id, const std::string& key) { return provide(key); });
  std::cout << (*opened)->address() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::uint32_t rank;
    std::string address;
    std::uint64_t incarnation;
    words >> rank >> address >> incarnation;
    const auto done = (*opened)->connect(rank_id{rank}, address, incarnation_id{incarnation});
    std::cout << (done ? "ok" : done.error().text) << std::endl;
  }
  return 0;
}

namespace {

child_process start(ucx_bulk& parent, std::uint64_t incarnation) {
  child_process c({"bulk", "1", "2", std::to_string(incarnation)});
  const std::string address = c.hear();
  c.say("0 " + parent.address() + " 10");
  BOOST_TEST(c.hear() == "ok");
  BOOST_TEST(parent.connect(rank_id{1}, address, incarnation_id{incarnation}).has_value());
  return c;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_killed_server_ends_its_fetches_and_its_successor_serves) {
  auto a = ucx_bulk::open(options_of(0, 2, 10)).value();
  {
    auto c = start(*a, 77);
    BOOST_TEST(same(a->fetch_now(rank_id{1}, "30000000", patience), 30'000'000));
    std::atomic<int> ended{0}, lost{0};
    for (int i = 0; i < 50; ++i)
      BOOST_TEST(a->fetch(rank_id{1}, "30000000", patience, [&](result<pooled_buffer> r) {
                    if (!r && r.error().code == error_code::peer_lost) ++lost;
                    ++ended;
                  }).has_value());
    std::this_thread::sleep_for(50ms);
    c.kill();
    for (int i = 0; i < 20'000 && ended < 50; ++i)
      std::this_thread::sleep_for(1ms);
    BOOST_TEST(ended == 50);
    BOOST_TEST(lost > 0);
  }
  BOOST_TEST(testing::shared_memory_segments() == 0u);
  auto again = start(*a, 78);
  BOOST_TEST(same(a->fetch_now(rank_id{1}, "3000000", patience), 3'000'000));
}

BOOST_AUTO_TEST_CASE(a_killed_client_is_forgotten_and_its_bytes_released) {
  auto a = ucx_bulk::open(options_of(0, 3, 10)).value();
  auto held = std::make_shared<std::string>(content(1 << 20));
  a->on_request([held](rank_id, const std::string&) -> result<shared_bytes> {
    return shared_bytes{held, {reinterpret_cast<const std::byte*>(held->data()), held->size()}};
  });
  std::atomic<int> events{0};
  a->on_peer_event([&](const peer_event& e) {
    if (e.kind == peer_event_kind::endpoint_lost) ++events;
  });
  auto c = start(*a, 77);
  BOOST_TEST(same(a->fetch_now(rank_id{1}, "10", patience), 10));
  c.kill();
  for (int i = 0; i < 20'000 && events == 0; ++i)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(events == 1);
  BOOST_TEST(held.use_count() == 2);
}

BOOST_AUTO_TEST_CASE(a_frozen_server_runs_into_the_deadline_and_may_thaw) {
  auto a = ucx_bulk::open(options_of(0, 2, 10)).value();
  auto c = start(*a, 77);
  BOOST_TEST(same(a->fetch_now(rank_id{1}, "10", patience), 10));
  c.freeze();
  const auto late = a->fetch_now(rank_id{1}, "200000", microseconds{300'000});
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.error().code == error_code::timed_out));
  BOOST_TEST(late.error().text.find("fetch of \"200000\" from rank 1") == 0u, late.error().text);
  c.signal(SIGCONT);
  BOOST_TEST(same(a->fetch_now(rank_id{1}, "3000000", patience), 3'000'000));
  BOOST_TEST(a->stats().late >= 1u); // the old answer was dropped
}
