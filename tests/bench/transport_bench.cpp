// What the transport costs: request/response, one way, bulk, all-to-all for 2, 4 and 8 processes
// and idle processes, beside plain UCX active messages and memcpy. Prints one line per figure.
// Usage: transport_bench [quick]
#include "actors/ucx_bulk.hpp"
#include "actors/ucx_collective.hpp"
#include "actors/ucx_link.hpp"
#include "actors/ucx_worker.hpp"
#include "messages/checksum.hpp"
#include "tests/ucx/child_process.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <thread>

using namespace adafloor;
using adafloor::testing::child_process;
using clock_type = std::chrono::steady_clock;

namespace {

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

template <class Options>
Options options_of(std::uint32_t rank, std::uint32_t world) {
  Options o;
  o.self = rank_id{rank};
  o.world_size = world;
  o.incarnation = incarnation_id{rank + 1};
  return o;
}

template <class T>
std::unique_ptr<T> opened(result<std::unique_ptr<T>> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "%s\n", r.error().text.c_str());
  std::exit(1);
}

/// Reads "connect RANK ADDRESS" lines until "go".
template <class F>
void connect_as_told(F connect) {
  std::string line, word, address;
  while (std::getline(std::cin, line) && line != "go") {
    std::istringstream words(line);
    std::uint32_t rank = 0;
    words >> word >> rank >> address;
    connect(rank_id{rank}, address, incarnation_id{rank + 1});
  }
}

void wait_for_the_end() {
  for (std::string line; std::getline(std::cin, line);) {
  }
}

// --- children

int link_child(const std::vector<std::string>& a) { // echo | sink, spin
  auto o = options_of<ucx_link::options>(1, 2);
  o.spin = microseconds{std::stol(a.at(2))};
  auto link = opened(ucx_link::open(o));
  const bool echo = a.at(1) == "echo";
  link->on_frame([&](rank_id from, std::string_view f) {
    return !echo || link->post(from, std::string(f)) == post_status::accepted;
  });
  std::cout << link->address() << std::endl;
  connect_as_told([&](auto... x) { (void)link->connect(x...); });
  wait_for_the_end();
  return 0;
}

int bulk_child() {
  auto bulk = opened(ucx_bulk::open(options_of<ucx_bulk::options>(1, 2)));
  auto bytes = std::make_shared<std::vector<std::byte>>(64 << 20, std::byte{1});
  bulk->on_request([bytes](rank_id, const std::string& key) -> result<shared_bytes> {
    return shared_bytes{bytes, {bytes->data(), std::stoul(key)}};
  });
  std::cout << bulk->address() << std::endl;
  connect_as_told([&](auto... x) { (void)bulk->connect(x...); });
  wait_for_the_end();
  return 0;
}

int alltoall_child(const std::vector<std::string>& a) { // RANK WORLD BYTES ROUNDS
  const auto rank = static_cast<std::uint32_t>(std::stoul(a.at(1)));
  const auto world = static_cast<std::uint32_t>(std::stoul(a.at(2)));
  const std::size_t bytes = std::stoul(a.at(3)), rounds = std::stoul(a.at(4));
  auto fabric = opened(ucx_collective::open(options_of<ucx_collective::options>(rank, world)));
  std::cout << fabric->address() << std::endl;
  connect_as_told([&](auto... x) { (void)fabric->connect(x...); });
  std::vector<rank_id> all;
  for (std::uint32_t r = 0; r < world; ++r)
    all.push_back(rank_id{r});
  auto group = opened(fabric->make_group(epoch_id{1}, all));
  std::vector<std::byte> out(bytes, std::byte{7});
  const std::vector<bytes_view> outgoing(world, {out.data(), out.size()});
  std::vector<bytes_view> incoming;
  std::vector<double> times;
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto start = clock_type::now();
    auto done = group->exchange({i, 0, exchange_id::dispatch}, outgoing, &incoming);
    if (!done) {
      std::fprintf(stderr, "%s\n", done.error().text.c_str());
      return 1;
    }
    if (i >= rounds / 5) times.push_back(seconds_since(start) * 1e6);
  }
  double sum = 0;
  for (double t : times)
    sum += t;
  std::cout << percentile(times, 0.5) << " " << sum / static_cast<double>(times.size())
            << std::endl;
  wait_for_the_end();
  return 0;
}

int idle_child(const std::vector<std::string>& a) { // RANK WORLD
  const auto rank = static_cast<std::uint32_t>(std::stoul(a.at(1)));
  const auto world = static_cast<std::uint32_t>(std::stoul(a.at(2)));
  auto link = opened(ucx_link::open(options_of<ucx_link::options>(rank, world)));
  auto bulk = opened(ucx_bulk::open(options_of<ucx_bulk::options>(rank, world)));
  auto fabric = opened(ucx_collective::open(options_of<ucx_collective::options>(rank, world)));
  link->on_frame([](rank_id, std::string_view) { return true; });
  std::cout << link->address() << " " << bulk->address() << " " << fabric->address() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "go";) {
    std::istringstream words(line);
    std::string l, b, f;
    std::uint32_t peer = 0;
    words >> peer >> l >> b >> f;
    (void)link->connect(rank_id{peer}, l, incarnation_id{peer + 1});
    (void)bulk->connect(rank_id{peer}, b, incarnation_id{peer + 1});
    (void)fabric->connect(rank_id{peer}, f, incarnation_id{peer + 1});
  }
  std::vector<rank_id> all;
  for (std::uint32_t r = 0; r < world; ++r)
    all.push_back(rank_id{r});
  auto group = opened(fabric->make_group(epoch_id{1}, all));
  std::vector<bytes_view> incoming;
  (void)group->exchange({1, 0, exchange_id::header}, std::vector<bytes_view>(world), &incoming);
  for (std::uint32_t r = 0; r < world; ++r)
    link->post(rank_id{r}, "hello");
  std::cout << "ready" << std::endl;
  wait_for_the_end();
  return 0;
}

/// Plain UCX: answers each active message with one of the same size.
struct plain_ucx {
  std::unique_ptr<ucx_worker> worker;
  std::unique_ptr<ucx_endpoint> endpoint;
  std::size_t got = 0;
  struct sending final : ucx_sending {
    std::string bytes;
    void done(ucs_status_t) override {}
  };
  static ucs_status_t on_message(void* self, const void*, std::size_t, void*, std::size_t,
                                 const ucp_am_recv_param_t*) {
    ++static_cast<plain_ucx*>(self)->got;
    return UCS_OK;
  }
  plain_ucx() : worker(opened(ucx_worker::open({}, "bench"))) {
    (void)worker->handle_messages(1, &on_message, this);
  }
  ~plain_ucx() { worker->close(std::move(endpoint)); }
  void send(std::size_t size) {
    auto s = std::make_unique<sending>();
    s->bytes.assign(size, 'x');
    const ucx_message m{nullptr, 0, s->bytes.data(), size};
    worker->send(*endpoint, 1, m, 0, std::move(s));
  }
  void wait(std::size_t n) {
    while (got < n) {
      if (worker->progress() > 0) continue;
      if (!worker->arm()) continue;
      pollfd p{worker->event_fd(), POLLIN, 0};
      if (got < n) ::poll(&p, 1, 100);
    }
  }
};

int plain_child() {
  plain_ucx ucx;
  std::cout << ucx.worker->address() << std::endl;
  connect_as_told(
      [&](rank_id, const std::string& a, auto) { ucx.endpoint = opened(ucx.worker->connect(a)); });
  for (std::size_t n = 1;; ++n) {
    ucx.wait(n);
    ucx.send(40);
  }
}

// --- figures

void introduce(child_process& c, const std::string& own_address) {
  c.say("connect 0 " + own_address);
  c.say("go");
}

void plain_round_trip(int rounds) {
  plain_ucx ucx;
  child_process c({"plain"});
  ucx.endpoint = opened(ucx.worker->connect(c.hear()));
  introduce(c, ucx.worker->address());
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = clock_type::now();
    ucx.send(40);
    ucx.wait(std::size_t(i) + 1);
    times.push_back(seconds_since(start) * 1e6);
  }
  std::printf("plain UCX, event-driven: 40 B request/response p50 %.0f us, p99 %.0f us\n",
              percentile(times, 0.5), percentile(times, 0.99));
}

void link_round_trip(int rounds, long spin) {
  auto o = options_of<ucx_link::options>(0, 2);
  o.spin = microseconds{spin};
  auto link = opened(ucx_link::open(o));
  std::atomic<int> got{0};
  link->on_frame([&](rank_id, std::string_view) {
    ++got;
    return true;
  });
  child_process c({"link", "echo", std::to_string(spin)});
  (void)link->connect(rank_id{1}, c.hear(), incarnation_id{2});
  introduce(c, link->address());
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = clock_type::now();
    link->post(rank_id{1}, std::string(40, 'x'));
    while (got <= i)
      std::this_thread::yield();
    times.push_back(seconds_since(start) * 1e6);
  }
  std::printf("link, spin %ld us: 40 B request/response p50 %.0f us, p99 %.0f us\n", spin,
              percentile(times, 0.5), percentile(times, 0.99));
  link->close();
}

void link_one_way(int frames, long spin) {
  auto o = options_of<ucx_link::options>(0, 2);
  o.spin = microseconds{spin};
  auto link = opened(ucx_link::open(o));
  link->on_frame([](rank_id, std::string_view) { return true; });
  child_process c({"link", "sink", std::to_string(spin)});
  (void)link->connect(rank_id{1}, c.hear(), incarnation_id{2});
  introduce(c, link->address());
  link->post(rank_id{1}, "first");
  link->flush(microseconds{5'000'000});
  const auto start = clock_type::now();
  for (int i = 0; i < frames; ++i)
    while (link->post(rank_id{1}, std::string(40, 'x')) == post_status::busy)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  const bool done = link->flush(microseconds{60'000'000});
  std::printf("link, spin %ld us: 40 B one way %.0f thousand frames/s%s\n", spin,
              frames / seconds_since(start) / 1e3, done ? "" : " (not all acknowledged)");
  link->close();
}

void bulk_rate(std::size_t bytes, int rounds) {
  auto bulk = opened(ucx_bulk::open(options_of<ucx_bulk::options>(0, 2)));
  child_process c({"bulk"});
  (void)bulk->connect(rank_id{1}, c.hear(), incarnation_id{2});
  introduce(c, bulk->address());
  std::vector<double> times;
  for (int i = 0; i < rounds + 3; ++i) {
    const auto start = clock_type::now();
    auto got = bulk->fetch_now(rank_id{1}, std::to_string(bytes), microseconds{30'000'000});
    if (!got) return void(std::printf("bulk: %s\n", got.error().text.c_str()));
    if (i >= 3) times.push_back(seconds_since(start));
  }
  const double p50 = percentile(times, 0.5);
  std::printf("bulk, with checksums: %zu KB in p50 %.0f us, %.1f GB/s\n", bytes >> 10, p50 * 1e6,
              static_cast<double>(bytes) / p50 / 1e9);
}

void alltoall(std::uint32_t world, std::size_t bytes, int rounds) {
  std::vector<child_process> children;
  std::vector<std::string> addresses;
  for (std::uint32_t r = 0; r < world; ++r)
    children.emplace_back(std::vector<std::string>{"alltoall", std::to_string(r),
                                                   std::to_string(world), std::to_string(bytes),
                                                   std::to_string(rounds)});
  for (auto& c : children)
    addresses.push_back(c.hear());
  for (auto& c : children) {
    for (std::uint32_t p = 0; p < world; ++p)
      c.say("connect " + std::to_string(p) + " " + addresses[p]);
  }
  for (auto& c : children)
    c.say("go");
  double p50 = 0, mean = 0, most = 0;
  for (auto& c : children) {
    std::istringstream words(c.hear());
    words >> p50 >> mean;
    most = std::max(most, mean);
  }
  std::printf("exchange, %u processes, %zu B to each: p50 %.0f us, mean of the slowest %.0f us\n",
              world, bytes, p50, most);
}

void idle(std::uint32_t world, double seconds) {
  std::vector<child_process> children;
  std::vector<std::string> addresses;
  for (std::uint32_t r = 0; r < world; ++r)
    children.emplace_back(
        std::vector<std::string>{"idle", std::to_string(r), std::to_string(world)});
  for (auto& c : children)
    addresses.push_back(c.hear());
  for (auto& c : children)
    for (std::uint32_t p = 0; p < world; ++p)
      c.say(std::to_string(p) + " " + addresses[p]);
  for (auto& c : children)
    c.say("go");
  for (auto& c : children)
    c.hear();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  double used = 0;
  for (auto& c : children)
    used -= testing::cpu_seconds(c.pid());
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  for (auto& c : children)
    used += testing::cpu_seconds(c.pid());
  std::printf("idle, %u processes with link, bulk and collective: %.2f %% of one core together\n",
              world, used / seconds * 100);
}

void local_speeds() {
  std::vector<char> from(64 << 20, 1), to(64 << 20, 2);
  double copy = 1e9, sum = 1e9;
  std::uint32_t crc = 0;
  for (int i = 0; i < 5; ++i) {
    auto start = clock_type::now();
    std::memcpy(to.data(), from.data(), from.size());
    copy = std::min(copy, seconds_since(start));
    start = clock_type::now();
    crc ^= crc32c(to.data(), to.size());
    sum = std::min(sum, seconds_since(start));
  }
  std::printf("memcpy of 64 MB: %.1f GB/s; crc32c: %.1f GB/s (%08x)\n",
              static_cast<double>(from.size()) / copy / 1e9,
              static_cast<double>(from.size()) / sum / 1e9, crc);
}

int run_child(const std::vector<std::string>& a) {
  if (a.at(0) == "link") return link_child(a);
  if (a.at(0) == "bulk") return bulk_child();
  if (a.at(0) == "alltoall") return alltoall_child(a);
  if (a.at(0) == "idle") return idle_child(a);
  return plain_child();
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--child") == 0) return run_child({argv + 2, argv + argc});
  const bool quick = argc > 1 && std::strcmp(argv[1], "quick") == 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int rounds = quick ? 500 : 5000;
  local_speeds();
  plain_round_trip(rounds);
  for (long spin : {0L, 50L}) {
    link_round_trip(rounds, spin);
    link_one_way(rounds * 40, spin);
  }
  bulk_rate(64 << 10, rounds / 10);
  bulk_rate(1 << 20, rounds / 10);
  bulk_rate(64 << 20, 10);
  for (std::uint32_t world : {2u, 4u, 8u})
    for (std::size_t bytes : {1u << 10, 2u << 10, 4u << 10, 8u << 10, 64u << 10})
      alltoall(world, bytes, rounds);
  idle(8, quick ? 3 : 10);
  return 0;
}
