// The control link over UCX: order, back-pressure, damaged and stale frames, and real processes
// that are killed, frozen, started again, and idle.
#define BOOST_TEST_ALTERNATIVE_INIT_API
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_MODULE ucx_link
#include "actors/ucx_link.hpp"
#include "actors/ucx_worker.hpp"
#include "messages/frame.hpp"
#include "tests/ucx/child_process.hpp"
#include "tests/ucx/test_main.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

using namespace adafloor;
using adafloor::testing::child_process;
using namespace std::chrono_literals;

namespace {

/// One link, and what it heard.
struct party {
  std::unique_ptr<ucx_link> link;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint32_t, std::string>> heard;
  std::vector<peer_event> events;
  std::atomic<bool> refuse{false};
  std::atomic<int> spaces{0};

  explicit party(ucx_link::options o) {
    link = ucx_link::open(std::move(o)).value();
    link->on_frame([this](rank_id from, std::string_view f) {
      if (refuse) return false;
      const std::lock_guard<std::mutex> lock(mutex);
      heard.emplace_back(from.value, std::string(f));
      changed.notify_all();
      return true;
    });
    link->on_peer_event([this](const peer_event& e) {
      const std::lock_guard<std::mutex> lock(mutex);
      events.push_back(e);
      changed.notify_all();
    });
    link->on_space([this](rank_id) { ++spaces; });
  }
  ~party() { link->close(); }

  template <class F>
  bool until(F condition, std::chrono::milliseconds limit = 20s) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, limit, condition);
  }
  bool hears(std::size_t n) {
    return until([&] { return heard.size() >= n; });
  }
  bool sees(peer_event_kind kind, std::uint32_t rank) {
    return until([&] {
      for (const auto& e : events)
        if (e.kind == kind && e.peer.value == rank) return true;
      return false;
    });
  }
  void send(std::uint32_t to, const std::string& f) { // waits where the window is full
    while (link->post(rank_id{to}, f) == post_status::busy)
      std::this_thread::sleep_for(1ms);
  }
};

ucx_link::options options_of(std::uint32_t rank, std::uint32_t world, std::uint64_t incarnation) {
  ucx_link::options o;
  o.self = rank_id{rank};
  o.world_size = world;
  o.incarnation = incarnation_id{incarnation};
  return o;
}

void join(party& a, std::uint32_t ra, std::uint64_t ia, party& b, std::uint32_t rb,
          std::uint64_t ib) {
  BOOST_TEST(a.link->connect(rank_id{rb}, b.link->address(), incarnation_id{ib}).has_value());
  BOOST_TEST(b.link->connect(rank_id{ra}, a.link->address(), incarnation_id{ia}).has_value());
}

std::string text(std::uint64_t n) {
  return std::to_string(n) + std::string(n * 7919 % 5000, 'x');
}

/// Sends any bytes as a frame, as a broken or hostile process would.
class raw_sender {
public:
  explicit raw_sender(const std::string& address)
    : worker_(ucx_worker::open({}, "raw").value()), endpoint_(worker_->connect(address).value()) {}
  ~raw_sender() { worker_->close(std::move(endpoint_)); }
  void send(std::string bytes) {
    struct sending final : ucx_sending {
      std::string bytes;
      bool* gone;
      void done(ucs_status_t) override { *gone = true; }
    };
    bool gone = false;
    auto s = std::make_unique<sending>();
    s->bytes = std::move(bytes);
    s->gone = &gone;
    const ucx_message m{nullptr, 0, s->bytes.data(), s->bytes.size()};
    worker_->send(*endpoint_, 1, m, UCP_AM_SEND_FLAG_EAGER, std::move(s));
    for (int i = 0; i < 5000 && !gone; ++i)
      if (worker_->progress() == 0) std::this_thread::sleep_for(1ms);
  }

private:
  std::unique_ptr<ucx_worker> worker_;
  std::unique_ptr<ucx_endpoint> endpoint_;
};

template <class F>
bool soon(F condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

} // namespace

BOOST_AUTO_TEST_CASE(frames_arrive_once_and_in_order_both_ways) {
  party a(options_of(0, 2, 10)), b(options_of(1, 2, 11));
  join(a, 0, 10, b, 1, 11);
  constexpr std::uint64_t n = 5000;
  std::thread other([&] {
    for (std::uint64_t i = 0; i < n; ++i)
      b.send(0, text(i));
  });
  for (std::uint64_t i = 0; i < n; ++i)
    a.send(1, text(i));
  other.join();
  for (party* p : {&a, &b}) {
    BOOST_REQUIRE(p->hears(n));
    for (std::uint64_t i = 0; i < n; ++i)
      BOOST_TEST_REQUIRE(p->heard[i].second == text(i));
  }
  BOOST_TEST(a.link->flush(5'000'000us));
  BOOST_TEST(a.link->stats(rank_id{1}).frames_sent == n);
  BOOST_TEST(b.link->stats(rank_id{0}).frames_received == n);
  BOOST_TEST(a.link->stats().crc_errors == 0u);
}

BOOST_AUTO_TEST_CASE(large_frames_empty_frames_and_frames_to_self) {
  party a(options_of(0, 2, 10)), b(options_of(1, 2, 11));
  join(a, 0, 10, b, 1, 11);
  BOOST_TEST(a.link->connect(rank_id{0}, a.link->address(), incarnation_id{10}).has_value());
  const std::string large(1 << 20, 'L');
  a.send(1, large);
  a.send(1, "");
  a.send(0, "note to self");
  BOOST_REQUIRE(b.hears(2));
  BOOST_TEST((b.heard[0].second == large));
  BOOST_TEST(b.heard[1].second == "");
  BOOST_REQUIRE(a.hears(1));
  BOOST_TEST(a.heard[0].second == "note to self");
  BOOST_TEST((a.link->post(rank_id{1}, large + "x") == post_status::too_large));
  BOOST_TEST((a.link->post(rank_id{7}, "x") == post_status::unknown_peer));
  a.link->close();
  BOOST_TEST((a.link->post(rank_id{1}, "x") == post_status::closed));
}

BOOST_AUTO_TEST_CASE(a_slow_consumer_makes_the_sender_busy_and_nothing_is_lost) {
  auto o = options_of(0, 2, 10);
  o.window_frames = 50;
  auto o1 = options_of(1, 2, 11);
  o1.window_frames = 50;
  party a(o), b(o1);
  join(a, 0, 10, b, 1, 11);
  b.refuse = true;
  std::uint64_t sent = 0;
  while (a.link->post(rank_id{1}, text(sent)) == post_status::accepted)
    ++sent;
  BOOST_TEST(sent == 50u);
  std::this_thread::sleep_for(50ms); // arrived, but not consumed: the window stays full
  BOOST_TEST((a.link->post(rank_id{1}, "x") == post_status::busy));
  BOOST_TEST(a.spaces == 0);
  b.refuse = false;
  BOOST_TEST(soon([&] { return a.spaces > 0; }));
  for (; sent < 200; ++sent)
    a.send(1, text(sent));
  BOOST_REQUIRE(b.hears(200));
  for (std::uint64_t i = 0; i < 200; ++i)
    BOOST_TEST_REQUIRE(b.heard[i].second == text(i));
  BOOST_TEST(a.link->stats(rank_id{1}).busy >= 2u);
}

BOOST_AUTO_TEST_CASE(a_new_endpoint_in_the_middle_loses_and_repeats_nothing) {
  party a(options_of(0, 2, 10)), b(options_of(1, 2, 11));
  join(a, 0, 10, b, 1, 11);
  constexpr std::uint64_t n = 3000;
  for (std::uint64_t i = 0; i < n; ++i) {
    a.send(1, text(i));
    if (i % 700 != 699) continue;
    BOOST_REQUIRE(b.hears(i - 600)); // UCX 1.13 may abort where endpoints that connect are replaced
    join(a, 0, 10, b, 1, 11);        // both sides drop what is under way
  }
  BOOST_REQUIRE(b.hears(n));
  for (std::uint64_t i = 0; i < n; ++i)
    BOOST_TEST_REQUIRE(b.heard[i].second == text(i));
  BOOST_TEST(a.link->flush(5'000'000us));
  BOOST_TEST(b.heard.size() == n);
}

BOOST_AUTO_TEST_CASE(damaged_frames_are_counted_and_reported_and_harm_nobody) {
  party a(options_of(0, 2, 10)), b(options_of(1, 2, 11));
  join(a, 0, 10, b, 1, 11);
  a.send(1, "before");
  BOOST_REQUIRE(b.hears(1));
  raw_sender raw(b.link->address());
  std::mt19937_64 chance(5);
  for (int i = 0; i < 200; ++i) { // noise
    std::string noise(chance() % 300, '\0');
    for (char& c : noise)
      c = static_cast<char>(chance());
    raw.send(noise);
  }
  frame_header h;
  h.type = frame_type::data;
  h.sender = rank_id{0};
  h.from = incarnation_id{10};
  h.to = incarnation_id{11};
  h.seq = 2;
  const std::string good = encode_frame(h, "forged");
  for (std::size_t i = 0; i < good.size(); i += 2) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    raw.send(bad);
  }
  h.from = incarnation_id{9}; // rank 0 before it was started again
  raw.send(encode_frame(h, "from the grave"));
  h.from = incarnation_id{10};
  h.sender = rank_id{1000};
  raw.send(encode_frame(h, "from nobody"));
  BOOST_TEST(b.sees(peer_event_kind::undecodable, 0));
  soon([&] { return b.link->stats().stale >= 2; }); // the last two that were sent
  const auto counts = b.link->stats();
  BOOST_TEST(counts.undecodable >= 200u);
  BOOST_TEST(counts.crc_errors > 10u);
  BOOST_TEST(counts.unknown_version > 0u);
  BOOST_TEST(counts.stale >= 2u);
  a.send(1, "after");
  BOOST_REQUIRE(b.hears(2));
  BOOST_TEST(b.heard[1].second == "after");
  BOOST_TEST(b.heard.size() == 2u);
}

// Child: `link RANK WORLD INCARNATION`. Sends every frame back to where it came from.
int adafloor::testing::run_child(const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t i) { return std::stoull(arguments.at(i)); };
  auto opened =
      ucx_link::open(options_of(std::uint32_t(number(1)), std::uint32_t(number(2)), number(3)));
  if (!opened) return 1;
  auto& link = **opened;
  link.on_frame([&](rank_id from, std::string_view f) {
    return link.post(from, std::string(f)) == post_status::accepted;
  });
  std::cout << link.address() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::uint32_t rank;
    std::string address;
    std::uint64_t incarnation;
    words >> rank >> address >> incarnation;
    auto done = link.connect(rank_id{rank}, address, incarnation_id{incarnation});
    std::cout << (done ? "ok" : done.error().text) << std::endl;
  }
  return 0;
}

namespace {

child_process start(party& parent, std::uint32_t rank, std::uint32_t world,
                    std::uint64_t incarnation) {
  child_process c(
      {"link", std::to_string(rank), std::to_string(world), std::to_string(incarnation)});
  const std::string address = c.hear();
  c.say("0 " + parent.link->address() + " 10");
  BOOST_TEST(c.hear() == "ok");
  BOOST_TEST(parent.link->connect(rank_id{rank}, address, incarnation_id{incarnation}).has_value());
  return c;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_killed_process_is_reported_and_its_successor_starts_afresh) {
  party a(options_of(0, 2, 10));
  {
    auto c = start(a, 1, 2, 77);
    for (std::uint64_t i = 0; i < 100; ++i)
      a.send(1, text(i));
    BOOST_REQUIRE(a.hears(100));
    c.kill();
    BOOST_TEST(a.sees(peer_event_kind::endpoint_lost, 1));
    for (int i = 0; i < 20; ++i)
      a.send(1, "for the dead");
  }
  BOOST_TEST(testing::shared_memory_segments() == 0u);
  a.heard.clear();
  auto c = start(a, 1, 2, 78);
  for (std::uint64_t i = 0; i < 100; ++i)
    a.send(1, text(i));
  BOOST_REQUIRE(a.hears(100));
  for (std::uint64_t i = 0; i < 100; ++i)
    BOOST_TEST_REQUIRE(a.heard[i].second == text(i));
}

BOOST_AUTO_TEST_CASE(a_frozen_process_fills_its_window_is_reported_silent_and_catches_up) {
  auto o = options_of(0, 2, 10);
  o.silent_after = microseconds{500'000};
  o.window_frames = 300;
  party a(o);
  auto c = start(a, 1, 2, 77);
  a.send(1, text(0));
  BOOST_REQUIRE(a.hears(1));
  c.freeze();
  std::uint64_t sent = 1;
  while (a.link->post(rank_id{1}, text(sent)) == post_status::accepted)
    ++sent;
  // Bounded, however long it sleeps; the first may not be acknowledged yet.
  BOOST_TEST((sent == 300u || sent == 301u), sent);
  BOOST_TEST(a.sees(peer_event_kind::silent, 1));
  const double before = testing::cpu_seconds(::getpid());
  std::this_thread::sleep_for(1s);
  BOOST_TEST(testing::cpu_seconds(::getpid()) - before < 0.3); // waits, does not spin
  c.signal(SIGCONT);
  BOOST_REQUIRE(a.hears(sent));
  BOOST_TEST(a.sees(peer_event_kind::heard_again, 1));
  for (std::uint64_t i = 0; i < sent; ++i)
    BOOST_TEST_REQUIRE(a.heard[i].second == text(i));
}

BOOST_AUTO_TEST_CASE(eight_idle_processes_use_under_a_tenth_of_a_core) {
  party a(options_of(0, 9, 10));
  std::vector<child_process> children;
  for (std::uint32_t r = 1; r <= 8; ++r)
    children.push_back(start(a, r, 9, 100 + r));
  for (std::uint32_t r = 1; r <= 8; ++r)
    a.send(r, "hello");
  BOOST_REQUIRE(a.hears(8));
  std::this_thread::sleep_for(300ms);
  double before = 0, after = 0;
  for (auto& c : children)
    before += testing::cpu_seconds(c.pid());
  std::this_thread::sleep_for(3s);
  for (auto& c : children)
    after += testing::cpu_seconds(c.pid());
  BOOST_TEST_MESSAGE("8 idle processes: " << (after - before) / 3 * 100 << " % of a core");
  BOOST_TEST((after - before) / 3 < 0.10);
}
