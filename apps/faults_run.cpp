#include "apps/faults_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

namespace adafloor {
namespace {

using namespace sim;
using std::chrono::steady_clock;

constexpr std::size_t failing_max = 10; ///< then no further seed is begun
constexpr std::size_t shown_lines = 40; ///< of a failing world
constexpr std::ptrdiff_t cells_named_max = 12;

struct failing_seed {
  std::uint64_t seed;
  std::string broken;
};

/// The seed that each thread plays, for asserts in the machines: they end the process.
thread_local std::uint64_t playing = 0;
extern "C" void tell_seed(int) {
  char text[96];
  const auto size =
      std::snprintf(text, sizeof text, "\nan assertion failed in the world of seed %llu\n",
                    static_cast<unsigned long long>(playing));
  (void)!write(STDERR_FILENO, text, static_cast<std::size_t>(size));
}

/// Hands seeds out to threads and gathers what became of them.
class seed_pool {
public:
  explicit seed_pool(const faults_run_options& o) : o_(o), next_(o.first) {}

  void play_all() {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < o_.jobs; ++i)
      threads.emplace_back([this] { work(); });
    std::unique_lock lock(mutex_);
    while (working_ < o_.jobs || ended_ < o_.jobs) {
      const bool all =
          wake_.wait_for(lock, std::chrono::seconds(1), [&] { return ended_ == o_.jobs; });
      if (all) break;
      tell_progress();
    }
    lock.unlock();
    for (auto& t : threads)
      t.join();
    std::sort(failing.begin(), failing.end(),
              [](const auto& a, const auto& b) { return a.seed < b.seed; });
  }

  world_figures figures;
  std::vector<failing_seed> failing; ///< ascending
  double seconds() const {
    return std::chrono::duration<double>(steady_clock::now() - began_).count();
  }

private:
  void work() {
    std::unique_lock lock(mutex_);
    ++working_;
    while (next_ <= o_.last && failing.size() < failing_max) {
      playing = next_++;
      lock.unlock();
      world_figures own;
      std::ostringstream trace;
      const auto seen = play(scenario_of(playing, o_.choice), o_.trace ? &trace : nullptr, &own);
      lock.lock();
      if (o_.trace) std::cerr << trace.str();
      figures.add(own);
      if (!seen.clean()) failing.push_back({playing, seen.broken});
    }
    ++ended_;
    wake_.notify_one();
  }

  void tell_progress() const {
    const auto total = o_.last - o_.first + 1;
    std::cerr << fmt::format("{} of {} worlds, {:.0f} a second, {} failed{}", figures.worlds, total,
                             static_cast<double>(figures.worlds) / seconds(), failing.size(),
                             isatty(STDERR_FILENO) != 0 ? "\r" : "\n")
              << std::flush;
  }

  const faults_run_options& o_;
  const steady_clock::time_point began_ = steady_clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t next_;
  unsigned working_ = 0, ended_ = 0;
};

void show(const failing_seed& failed, const world_choice& choice) {
  const auto less = smallest(failed.seed, choice, failed.broken);
  const auto world = scenario_of(failed.seed, less);
  std::cout << fmt::format(
      "\nseed {}: {}\nthe last events of the smallest world that breaks it, {} "
      "ranks, {} requests:\n",
      failed.seed, failed.broken, world.world_size, world.requests)
            << last_events(world, shown_lines)
            << "again, with every message: " << replay_command(failed.seed, less) << '\n';
}

bool run_clean(const faults_run_options& o) {
  seed_pool pool(o);
  pool.play_all();
  std::cout << pool.figures.text() << "\n\nfaults that struck, by protocol step and kind:\n"
            << pool.figures.struck.table();
  const auto empty = pool.figures.struck.empty_cells();
  const auto cells = std::count(empty.begin(), empty.end(), ',') + 1;
  if (!empty.empty() && o.choice.kinds == world_choice::all_kinds())
    std::cout << "not reached by these seeds: "
              << (cells <= cells_named_max ? empty : fmt::format("{} cells", cells)) << '\n';
  std::cout << fmt::format(
      "{} worlds in {:.1f} s, {:.0f} a second, {} failed\n", pool.figures.worlds, pool.seconds(),
      static_cast<double>(pool.figures.worlds) / pool.seconds(), pool.failing.size());
  for (const auto& failed : pool.failing)
    std::cout << fmt::format("seed {}: {}\n", failed.seed, failed.broken);
  if (!pool.failing.empty()) show(pool.failing.front(), o.choice);
  return pool.failing.empty();
}

/// The first seed that shows the bug.
std::optional<failing_seed> catch_bug(const faults_run_options& o, const world_choice& choice) {
  for (auto seed = o.first; seed <= o.last; ++seed) {
    playing = seed;
    const auto seen = play(scenario_of(seed, choice), o.trace ? &std::cerr : nullptr);
    if (!seen.clean()) return failing_seed{seed, seen.broken};
  }
  return std::nullopt;
}

bool run_mutants(const faults_run_options& o) {
  std::size_t planted = 0, caught = 0;
  for (int number = 1; number <= static_cast<int>(enum_max(mutant{})); ++number) {
    const auto bug = static_cast<mutant>(number);
    if (!o.all_mutants && bug != o.choice.bug) continue;
    auto choice = o.choice;
    choice.bug = bug;
    choice.leases = choice_for(bug).leases;
    choice.deaths = choice_for(bug).deaths;
    const auto found = catch_bug(o, choice);
    ++planted;
    caught += found.has_value();
    std::cout << fmt::format("{} ({}): {}", name_of(bug), describe(bug),
                             found ? fmt::format("seed {}: {}", found->seed, found->broken)
                                   : "not caught")
              << std::endl;
    if (found && !o.all_mutants) show(*found, choice);
  }
  std::cout << fmt::format("{} of {} planted bugs caught\n", caught, planted);
  return caught == planted;
}

} // namespace

result<void> read_seeds(const std::string& text, faults_run_options* o) {
  const auto number = [&](std::string_view digits, std::uint64_t* to) {
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), *to);
    return !digits.empty() && fault == std::errc{} && end == digits.data() + digits.size();
  };
  const auto dots = text.find("..");
  const auto first = std::string_view(text).substr(0, dots);
  const auto last = dots == std::string::npos ? first : std::string_view(text).substr(dots + 2);
  if (!number(first, &o->first) || !number(last, &o->last) || o->last < o->first)
    return bad_input("--seeds " + text + ": must be A..B with A not above B, for instance 1..5000");
  return {};
}

result<std::set<fault_kind>> read_kinds(const std::string& text) {
  if (text == "all") return world_choice::all_kinds();
  std::set<fault_kind> kinds;
  if (text == "none") return kinds;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto kind = named_member<fault_kind>(word);
    if (!kind) {
      std::string known;
      for (const auto k : world_choice::all_kinds())
        known += std::string(", ") + name_of(k);
      return bad_input("--kinds " + text + ": '" + word + "' must be one of all, none" + known);
    }
    kinds.insert(*kind);
  }
  return kinds;
}

bool run_worlds(const faults_run_options& o) {
  std::signal(SIGABRT, tell_seed);
  const bool plants = o.all_mutants || o.choice.bug != mutant::none;
  return plants ? run_mutants(o) : run_clean(o);
}

} // namespace adafloor
