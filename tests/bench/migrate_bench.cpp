// How fast a live request's KV moves between two rank processes, beside plain fetches of as many
// bytes in rounds of the same size without checksums, in turn. The engines are emulated: pages of a
// real model's size, no arithmetic. Prints one line; exits 1 when the median ratio misses the bar.
// Usage: migrate_bench [pages [kilobytes of a page]]
#include "actors/kv_moves.hpp"
#include "gpu/emulated.hpp"
#include "tests/ucx/child_process.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <iostream>
#include <sstream>
#include <thread>

using namespace adafloor;
using adafloor::testing::child_process;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr double bar = 0.8;
constexpr int runs = 9;
constexpr microseconds patience{30'000'000};

template <class T>
T must(result<T> r) {
  if (!r) {
    std::fprintf(stderr, "%s\n", r.error().text.c_str());
    std::exit(2);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*r);
}

std::unique_ptr<ucx_bulk> open_bulk(std::uint32_t rank) {
  ucx_bulk::options o;
  o.self = rank_id{rank};
  o.world_size = 2;
  o.incarnation = incarnation_id{rank + 1};
  return must(ucx_bulk::open(o));
}

std::unique_ptr<engine> make_engine(std::uint32_t pages, std::uint32_t page_bytes) {
  auto how = std::make_shared<emulation>();
  how->experts = 1;
  how->kv_page_bytes = page_bytes;
  engine_options o;
  o.kv_pages = pages + 4;
  o.prefill_budget = 2 * pages * kv_page_tokens;
  o.emulated = how;
  return must(engine::load("emulated", o));
}

/// A rank that has told `what` to its machine.
struct desk {
  any_message what;
  std::unique_ptr<kv_moves> moves;
};

/// The rank that gives requests away, told what to do on stdin; answers on stdout.
int source(std::uint32_t pages, std::uint32_t page_bytes) {
  auto model = make_engine(pages, page_bytes);
  desk d;
  kv_moves::surroundings around;
  around.tell = [](any_message m) {
    if (const auto* ready = std::get_if<kv_ready>(&m))
      std::cout << ready->pages << ' ' << ready->bytes << ' ' << ready->last << std::endl;
  };
  d.moves = std::make_unique<kv_moves>(*model, around);
  const auto plain = std::make_shared<byte_string>((std::size_t{pages} + 2) * page_bytes);
  auto bulk = open_bulk(1);
  bulk->on_request([&](rank_id, const std::string& name) -> result<shared_bytes> {
    if (name.compare(0, 3, "kv/") == 0) return d.moves->shelved(name);
    std::size_t place = 0, size = 0;
    std::istringstream(name) >> place >> size;
    return shared_bytes{plain, {plain->data() + place, size}, true, {}};
  });
  std::cout << bulk->address() << std::endl;
  for (std::string line, word; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::uint64_t number = 0;
    words >> word;
    if (word == "connect") {
      words >> word;
      must(bulk->connect(rank_id{0}, word, incarnation_id{1}));
    } else if (word == "begin") {
      words >> number;
      request_spec spec, brief; // the end of `brief` is the end of the step
      spec.id = request_id{number};
      spec.prompt.assign(pages * kv_page_tokens, 1);
      spec.max_tokens = 8;
      brief.id = request_id{0};
      brief.prompt = {1};
      brief.max_tokens = 1;
      must(model->add_request(spec));
      must(model->add_request(brief));
      must(model->step(nullptr, {}));
      d.moves->on(engine_move_begin{{rollout_id{1}, spec.id, number}});
      std::cout << pages + 1 << std::endl;
    } else if (word == "round") {
      std::uint32_t round = 0;
      words >> number >> round;
      d.moves->on(engine_move_round{{rollout_id{1}, request_id{number}, number}, round}, 0);
    } else if (word == "end") {
      words >> number;
      d.moves->on(
          engine_move_end{{rollout_id{1}, request_id{number}, number}, move_outcome::moved});
      std::cout << "gone" << std::endl;
    }
  }
  return 0;
}

struct destination {
  std::unique_ptr<engine> model;
  std::unique_ptr<ucx_bulk> bulk = open_bulk(0);
  child_process peer;
  desk d;
  std::mutex mutex; // guards arrivals
  std::condition_variable wake;
  std::deque<kv_arrival> arrivals;
  std::vector<std::uint64_t> rounds; ///< bytes of each, of the last move

  destination(std::uint32_t pages, std::uint32_t page_bytes)
    : model(make_engine(pages, page_bytes)),
      peer({std::to_string(pages), std::to_string(page_bytes)}) {
    must(bulk->connect(rank_id{1}, peer.hear(), incarnation_id{2}));
    peer.say("connect " + bulk->address());
    kv_moves::surroundings around;
    around.tell = [this](any_message m) {
      if (const auto* taken = std::get_if<kv_taken>(&m)) ask(taken->key, taken->round + 1);
      d.what = std::move(m);
    };
    around.arrived = [this](kv_arrival a) {
      std::lock_guard lock(mutex);
      arrivals.push_back(std::move(a));
      wake.notify_one();
    };
    around.fetch = [this](rank_id from, const std::string& name, auto into, auto done) {
      const auto answer = [done](result<pooled_buffer> b) {
        const auto owner = std::make_shared<pooled_buffer>(must(std::move(b)));
        done(shared_bytes{owner, {owner->data(), owner->size()}});
      };
      must(bulk->fetch(from, name, patience, answer, std::move(into)));
    };
    d.moves = std::make_unique<kv_moves>(*model, around);
  }

  /// Asks for a round, which `listen` pulls once it is there.
  void ask(const move_key& key, std::uint32_t number) {
    peer.say("round " + std::to_string(key.move) + ' ' + std::to_string(number));
  }
  /// Pulls what is ready until the last round, as the link's thread does in a rank process.
  void listen(const move_key& key) {
    for (kv_ready round{key, 0, 0, 0, false}; !round.last; ++round.round) {
      std::istringstream(peer.hear()) >> round.pages >> round.bytes >> round.last;
      rounds.push_back(round.bytes);
      d.moves->pull({round, rank_id{1}});
      if (round.last) return;
    }
  }
  kv_arrival next_arrival() {
    std::unique_lock lock(mutex);
    wake.wait(lock, [this] { return !arrivals.empty(); });
    auto a = std::move(arrivals.front());
    arrivals.pop_front();
    return a;
  }

  /// Seconds from the first round to the commit.
  double migrate(std::uint64_t number) {
    const move_key key{rollout_id{1}, request_id{number}, number};
    peer.say("begin " + std::to_string(number));
    d.moves->on(engine_receive_begin{key, static_cast<std::uint32_t>(std::stoul(peer.hear()))});
    rounds.clear();
    std::thread listener([&] { listen(key); });
    const auto began = clock_type::now();
    ask(key, 0);
    while (!std::get_if<move_committed>(&d.what)) {
      d.moves->take(next_arrival(), 0);
      if (const auto* rejected = std::get_if<move_rejected>(&d.what)) {
        std::fprintf(stderr, "%s\n", rejected->text.c_str());
        std::exit(2);
      }
    }
    const auto seconds = std::chrono::duration<double>(clock_type::now() - began).count();
    listener.join();
    peer.say("end " + std::to_string(number));
    peer.hear();
    must(model->abort_request(key.request));
    return seconds;
  }

  /// Seconds for the same bytes without checksums, from as much memory into as much memory.
  double fetch_plainly() {
    std::vector<pooled_buffer> fetched;
    std::uint64_t place = 0;
    const auto began = clock_type::now();
    for (const auto bytes : rounds) {
      const auto name = std::to_string(place) + ' ' + std::to_string(bytes);
      fetched.push_back(must(bulk->fetch_now(rank_id{1}, name, patience)));
      place += bytes;
    }
    return std::chrono::duration<double>(clock_type::now() - began).count();
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

} // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  if (a.size() == 3 && a[0] == "--child")
    return source(static_cast<std::uint32_t>(std::stoul(a[1])),
                  static_cast<std::uint32_t>(std::stoul(a[2])));
  const auto pages = a.empty() ? 64U : static_cast<std::uint32_t>(std::stoul(a[0]));
  const auto page_bytes =
      (a.size() < 2 ? 1024U : static_cast<std::uint32_t>(std::stoul(a[1]))) * 1024;
  destination here(pages, page_bytes);
  std::vector<double> moved, fetched, ratios;
  for (std::uint64_t run = 0; run < runs + 2; ++run) {
    const auto move = here.migrate(run + 1), plain = here.fetch_plainly();
    if (run < 2) continue; // memory is faulted in
    moved.push_back(move);
    fetched.push_back(plain);
    ratios.push_back(plain / move);
  }
  std::uint64_t bytes = 0;
  for (const auto b : here.rounds)
    bytes += b;
  const auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  const auto ratio = median(ratios);
  std::printf("%s: %.1f MB in %zu rounds: migration %.2f GB/s, plain fetches %.2f GB/s, ratio %.2f,"
              " bar %.2f\n",
              ratio >= bar ? "ok" : "MISSED", static_cast<double>(bytes) / 1e6, here.rounds.size(),
              rate(median(moved)), rate(median(fetched)), ratio, bar);
  return ratio >= bar ? 0 : 1;
}
