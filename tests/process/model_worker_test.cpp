// The processes that work on a leased rank: one with a model stays between leases, is killed alone,
// and whatever becomes of it every order to stop is answered when nothing of the lease runs any
// more; commands have their limits.
#define BOOST_TEST_MODULE model_worker
#include "actors/sidecar_worker.hpp"
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <mutex>

using namespace adafloor;
using namespace adafloor::testing;
using namespace std::chrono_literals;

namespace {

struct worker_bench {
  scratch_dir place;
  const std::string model = shipped_models() + "/arith-dense-bf16";
  const std::vector<nlohmann::json> queries = lines_of(model + "/queries_heldout.jsonl");
  std::mutex mutex;
  std::map<std::uint64_t, work_result> results;
  std::vector<worker_stopped> stops;
  sidecar_worker::options options;
  std::optional<sidecar_worker> worker;
  lease_id lease{epoch_id(2), 1};

  worker_bench() {
    options.model.program = ADAFLOOR_BIN;
    options.model.models = {model};
    options.scratch = place.path();
  }
  void start() {
    worker.emplace(options, [this](const envelope& e) {
      std::lock_guard lock(mutex);
      if (const auto* done = std::get_if<work_result>(&e.body)) results[done->unit] = *done;
      if (const auto* gone = std::get_if<worker_stopped>(&e.body)) stops.push_back(*gone);
    });
  }
  void push(any_message m) { worker->push({{}, {}, {}, {}, std::move(m)}); }
  void ask(std::uint64_t query) {
    run_unit order;
    order.lease = lease;
    order.work.unit = query;
    order.work.prompt = queries[query]["prompt_token_ids"].get<std::vector<token_id>>();
    order.work.max_tokens = 16;
    order.work.model = model;
    push(order);
  }
  bool answered(std::uint64_t query) {
    return comes_true(
        [&] {
          std::lock_guard lock(mutex);
          const auto done = results.find(query);
          return done != results.end()
                 && done->second.tokens
                        == queries[query]["answer_token_ids"].get<std::vector<token_id>>();
        },
        60s);
  }
  std::size_t count_stops() {
    std::lock_guard lock(mutex);
    return stops.size();
  }
  /// The answer with this number, from 0.
  worker_stopped stopped(std::size_t number) {
    BOOST_REQUIRE(comes_true([&] { return count_stops() > number; }, 60s));
    std::lock_guard lock(mutex);
    return stops[number];
  }
  pid_t process() {
    std::vector<pid_t> found;
    BOOST_REQUIRE(comes_true(
        [&] {
          found = children_of(getpid(), "model-worker");
          return found.size() == 1;
        },
        60s));
    return found.front();
  }
};

bool is_gone(pid_t pid) {
  return kill(pid, 0) != 0 && errno == ESRCH;
}

} // namespace

BOOST_FIXTURE_TEST_CASE(it_is_there_before_a_lease_and_stays_after_it, worker_bench) {
  start();
  const auto pid = process();
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t query = 0; query < 20; ++query)
      ask(query);
    for (std::uint64_t query = 0; query < 20; ++query)
      BOOST_TEST(answered(query));
    push(stop_worker{lease, false});
    const auto gone = stopped(static_cast<std::size_t>(round));
    BOOST_TEST((gone.lease == lease && !gone.forced && gone.clean));
    BOOST_TEST(process() == pid);
    ++lease.counter;
    results.clear();
  }
  worker.reset();
  BOOST_TEST(is_gone(pid));
  BOOST_TEST(stops.size() == 2U);
}

/// Nothing that a port of the rank or of another worker could collide with.
BOOST_FIXTURE_TEST_CASE(it_opens_no_port, worker_bench) {
  start();
  ask(1);
  BOOST_TEST(answered(1));
  const auto proc = "/proc/" + std::to_string(process());
  std::size_t sockets = 0;
  for (const auto& fd : std::filesystem::directory_iterator(proc + "/fd")) {
    const auto to = std::filesystem::read_symlink(fd.path()).string(); // socket:[12345]
    if (to.compare(0, 8, "socket:[") != 0) continue;
    ++sockets;
    const auto inode = " " + to.substr(8, to.size() - 9) + " ";
    for (const auto* kind : {"tcp", "tcp6", "udp", "udp6"})
      BOOST_TEST(read_file(proc + "/net/" + kind).find(inode) == std::string::npos, kind);
  }
  BOOST_TEST(sockets == 1U); // to its rank
}

BOOST_FIXTURE_TEST_CASE(its_death_ends_the_lease_and_the_next_one_finds_another, worker_bench) {
  start();
  worker->wait_loaded(microseconds{60'000'000});
  const auto pid = process();
  kill(pid, SIGSTOP); // So that it dies with a unit under way.
  ask(1);
  kill(pid, SIGKILL);
  auto gone = stopped(0);
  BOOST_TEST((gone.lease == lease && gone.forced && gone.clean));
  BOOST_TEST(is_gone(pid));
  ask(2); // Was on its way.
  push(stop_worker{lease, false});
  gone = stopped(1);
  BOOST_TEST((gone.lease == lease && !gone.forced && gone.clean));
  BOOST_TEST(results.empty());
  ++lease.counter;
  ask(1);
  BOOST_TEST(answered(1));
  BOOST_TEST(process() != pid);
  BOOST_TEST(results.size() == 1U);
  BOOST_TEST(count_stops() == 2U);
}

BOOST_FIXTURE_TEST_CASE(one_that_does_not_stop_is_killed_and_gone_when_that_is_said, worker_bench) {
  start();
  const auto pid = process();
  kill(pid, SIGSTOP);
  ask(1);
  push(stop_worker{lease, false});
  std::this_thread::sleep_for(200ms);
  BOOST_TEST(count_stops() == 0U);
  push(stop_worker{lease, true});
  const auto gone = stopped(0);
  BOOST_TEST((gone.lease == lease && gone.forced && gone.clean));
  BOOST_TEST(is_gone(pid));
  ++lease.counter;
  ask(1);
  BOOST_TEST(answered(1));
  BOOST_TEST(count_stops() == 1U);
}

BOOST_FIXTURE_TEST_CASE(death_while_it_is_told_to_stop_is_the_answer, worker_bench) {
  start();
  const auto pid = process();
  kill(pid, SIGSTOP);
  ask(1);
  push(stop_worker{lease, false});
  kill(pid, SIGKILL);
  const auto gone = stopped(0);
  BOOST_TEST((gone.lease == lease && gone.clean));
  BOOST_TEST(is_gone(pid));
  ++lease.counter;
  ask(1);
  BOOST_TEST(answered(1));
}

BOOST_FIXTURE_TEST_CASE(one_that_dies_without_work_is_started_again_and_nobody_hears,
                        worker_bench) {
  start();
  for (int round = 0; round < 4; ++round) {
    const auto pid = process();
    kill(pid, SIGKILL);
    BOOST_TEST(comes_true([&] { return process() != pid; }, 60s));
  }
  ask(1);
  BOOST_TEST(answered(1));
  BOOST_TEST(count_stops() == 0U);
}

BOOST_FIXTURE_TEST_CASE(one_that_dies_before_it_is_ready_is_started_again_for_the_same_unit,
                        worker_bench) {
  const auto file = place.path() + "/program", count = place.path() + "/count";
  std::ofstream{file} << "#!/bin/sh\necho again >> " << count << "\n"
                      << "[ $(wc -l < " << count << ") -lt 4 ] && exit 7\n"
                      << "exec " << ADAFLOOR_BIN << " \"$@\"\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  options.model.program = file;
  start();
  ask(1);
  BOOST_TEST(answered(1));
  BOOST_TEST(count_stops() == 0U);
  BOOST_TEST(read_file(count) == "again\nagain\nagain\nagain\n");
}

BOOST_FIXTURE_TEST_CASE(units_under_way_are_dropped_and_done_again_when_asked, worker_bench) {
  start();
  run_unit score;
  score.lease = lease;
  score.work.unit = 7;
  score.work.kind = work_kind::score;
  score.work.model = model;
  score.work.prompt = {1};
  score.work.response.assign(40, 2);
  push(score);
  push(stop_worker{lease, false});
  BOOST_TEST(!stopped(0).forced);
  score.lease.counter = 2;
  push(score);
  BOOST_TEST(comes_true(
      [&] {
        std::lock_guard lock(mutex);
        return results.count(7) == 1 && results[7].lease == score.lease;
      },
      60s));
  BOOST_TEST(results[7].logprobs.size() == 40U);
}

BOOST_FIXTURE_TEST_CASE(an_interrupted_answer_is_handed_back_and_goes_on_with_the_same_bits,
                        worker_bench) {
  options.model.models = {shipped_models() + "/collatz-moe/v3-bf16"}; // Answers at length.
  start();
  run_unit order;
  order.lease = lease;
  order.work.unit = 1;
  order.work.prompt = {11, 4, 2, 9, 0, 0, 0};
  order.work.max_tokens = 1500;
  order.work.model = options.model.models.front();
  const auto answer = [&] {
    std::lock_guard lock(mutex);
    const auto done = results.find(1);
    return done != results.end() && done->second.lease == order.lease ? std::optional(done->second)
                                                                      : std::nullopt;
  };
  push(order);
  BOOST_REQUIRE(comes_true([&] { return answer().has_value(); }, 60s));
  const auto whole = *answer();
  BOOST_REQUIRE(whole.tokens.size() > 20U);
  BOOST_REQUIRE(whole.logprobs.size() == whole.tokens.size());

  std::size_t interrupted = 0;
  for (int pause = 0; order.lease.counter < 500;
       pause += 2) { // Longer, or a slow machine never gets on.
    ++order.lease.counter;
    push(order);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    push(stop_worker{order.lease, false});
    const auto stop = stopped(order.lease.counter - 2);
    if (answer() && interrupted > 0) break;
    if (answer()) pause = 0; // In one piece.
    for (const auto& part : stop.partial) {
      interrupted += part.tokens.size() > order.work.response.size() ? 1 : 0;
      BOOST_TEST(part.tokens.size() >= order.work.response.size()); // None is lost.
      order.work.response = part.tokens;
      order.work.logprobs = part.logprobs;
    }
  }
  BOOST_TEST(interrupted > 0U);
  BOOST_REQUIRE(answer().has_value());
  BOOST_TEST((answer()->tokens == whole.tokens));
  BOOST_TEST((answer()->logprobs == whole.logprobs));
}

/// Commands see their lease and have its limits.
struct command_bench : worker_bench {
  run_unit order;
  command_bench() {
    options.model.models.clear();
    options.memory_bytes = 64U << 20;
    order.lease = lease;
    order.work.kind = work_kind::exec;
    order.work.unit = 5;
    start();
  }
  work_result result_of(const std::string& command, microseconds window = {}) {
    ++order.work.unit;
    order.work.command = {"/bin/sh", "-c", command};
    order.window = window;
    push(order);
    BOOST_REQUIRE(comes_true(
        [&] {
          std::lock_guard lock(mutex);
          return results.count(order.work.unit) == 1;
        },
        60s));
    std::lock_guard lock(mutex);
    return results[order.work.unit];
  }
};

BOOST_FIXTURE_TEST_CASE(a_command_has_no_more_memory_than_its_lease, command_bench) {
  BOOST_TEST(result_of("ulimit -d").text == "65536\n"); // KiB
  const auto fill = [](const char* bytes) {
    return std::string{"head -c "} + bytes + " /dev/zero | tail -c " + bytes + " | wc -c";
  };
  BOOST_TEST(result_of(fill("10000000")).text == "10000000\n");
  const auto more = result_of(fill("200000000"));
  BOOST_TEST(more.text.find("200000000") == std::string::npos, more.text);
  BOOST_TEST(more.text.find("memory") != std::string::npos, more.text);
}

BOOST_FIXTURE_TEST_CASE(a_command_is_told_what_is_left_of_the_window, command_bench) {
  const auto left = [&](std::int64_t seconds) {
    const auto said =
        result_of("echo $ADAFLOOR_LEASE_DEADLINE_SECONDS", microseconds{seconds * 1'000'000});
    return std::stod(said.text);
  };
  const auto hour = left(3600), minute = left(60);
  BOOST_TEST((hour > 3000 && hour <= 3600), hour);
  BOOST_TEST((minute > 10 && minute <= 60), minute);
  BOOST_TEST(left(0) == 0);
}

BOOST_FIXTURE_TEST_CASE(it_gives_way_within_its_cpus_and_memory, worker_bench) {
  options.model.cpus = {0};
  options.model.memory_bytes = 1U << 30;
  start();
  ask(1);
  BOOST_TEST(answered(1));
  const auto pid = process();
  const auto proc = "/proc/" + std::to_string(pid);
  BOOST_TEST(getpriority(PRIO_PROCESS, static_cast<id_t>(pid)) == 19);
  BOOST_TEST(read_file(proc + "/status").find("Cpus_allowed_list:\t0\n") != std::string::npos);
  BOOST_TEST(read_file(proc + "/limits").find("Max data size             1073741824")
             != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_model_that_cannot_be_loaded_leaves_its_units_unanswered, worker_bench) {
  start();
  const auto pid = process();
  run_unit order;
  order.lease = lease;
  order.work.prompt = {1};
  order.work.model = place.path() + "/nowhere";
  push(order);
  push(stop_worker{lease, false});
  const auto gone = stopped(0);
  BOOST_TEST((!gone.forced && gone.clean));
  BOOST_TEST(results.empty());
  ++lease.counter;
  ask(1);
  BOOST_TEST(answered(1));
  BOOST_TEST(process() == pid);
}
