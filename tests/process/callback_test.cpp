// Work that a user linked in, on leased ranks: as every other kind, whatever it does.
#define BOOST_TEST_MODULE callback
#include "tests/process/lease_runs.hpp"

#include <cstdlib>
#include <functional>

using namespace adafloor::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

struct workplace : scratch_dir {
  std::string out = path() + "/out";
  std::string inputs = path() + "/inputs.jsonl";
  std::string said;                   ///< by the last run
  std::size_t called = 0, failed = 0; ///< units, in all runs

  void write(const std::vector<std::string>& lines) const {
    std::ofstream file{inputs};
    for (const auto& line : lines)
      file << line << '\n';
  }
  std::vector<std::string> words(const char* work, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--lease-callback", work, "--lease-callback-file", inputs,
                               "--time-scale", "0.02"});
    return long_tail(*this, more);
  }
  program start(const char* work, std::vector<std::string> more = {}) const {
    return {words(work, std::move(more)), path(), "", ADAFLOOR_CALLBACK_USER};
  }
  /// Runs to the end until there are `count` results: on a slow machine one tail is too short for
  /// them all, and the next run goes on. `during` is called while one runs. The results by unit.
  std::map<std::uint64_t, json> run(
      const char* work, std::size_t count, const std::vector<std::string>& more = {},
      const std::function<void(const program&)>& during = [](const program&) {}) {
    for (int runs = 0; runs == 0 || (runs < 10 && results().size() < count); ++runs) {
      std::filesystem::remove(out + "/run.json");
      auto job = start(work, more);
      BOOST_REQUIRE(comes_true(
          [&] {
            during(job);
            return std::filesystem::exists(out + "/run.json");
          },
          240s));
      const auto ended = job.wait();
      BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
      said = ended.out + ended.err;
      check_restored(out);
      const auto arm = arm_of(out);
      called += arm["sidecar"]["called"].get<std::size_t>();
      failed += arm["sidecar"]["failed"].get<std::size_t>();
      BOOST_TEST(arm["sidecar"]["duplicates"] == 0);
      BOOST_TEST(arm["leases"]["unclean"] == 0);
    }
    const auto all = results();
    BOOST_TEST(all.size() >= count);
    return all;
  }
  std::map<std::uint64_t, json> results() const {
    std::map<std::uint64_t, json> by_unit;
    for (const auto& line : lines_of(out + "/callback.jsonl"))
      BOOST_TEST(by_unit.emplace(line["unit"].get<std::uint64_t>(), line).second, line.dump());
    return by_unit;
  }
  /// Lines of the ranks' logs with `text`.
  std::size_t count_logged(const std::string& text) const {
    std::size_t found = 0;
    for (int rank = 0; rank < 4; ++rank) {
      std::istringstream log{read_file(out + "/rank-" + std::to_string(rank) + ".log")};
      for (std::string line; std::getline(log, line);)
        found += line.find(text) != std::string::npos ? 1 : 0;
    }
    return found;
  }
};

/// The start in [from, to) of the longest Collatz chain, the last of equals.
std::uint64_t longest_chain(std::uint64_t from, std::uint64_t to) {
  std::uint64_t best = 0, most = 0;
  for (auto start = from; start < to; ++start) {
    std::uint64_t steps = 0;
    for (auto n = start; n > 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1)
      ++steps;
    if (steps >= most) best = start;
    most = std::max(most, steps);
  }
  return best;
}

} // namespace

BOOST_FIXTURE_TEST_CASE(each_unit_is_done_once_whichever_of_their_processes_are_killed, workplace) {
  constexpr std::uint64_t count = 40, width = 20'000;
  std::vector<std::string> ranges;
  for (std::uint64_t i = 0; i < count; ++i)
    ranges.push_back(json{{"from", 1 + i * width}, {"to", 1 + (i + 1) * width}}.dump());
  write(ranges);
  std::srand(5);
  std::size_t killed = 0;
  const auto kill_some = [&](const program& job) {
    for (const auto rank : children_of(job.pid(), out + "/job.json"))
      for (const auto worker : children_of(rank, "callback-worker"))
        if (killed < 10 && std::rand() % 8 == 0) killed += kill(worker, SIGKILL) == 0 ? 1 : 0;
  };
  const auto results = run("longest-chain", count, {"--lease-max-unit-attempts", "0"}, kill_some);
  BOOST_TEST(killed > 0U);
  BOOST_TEST(results.size() == count);
  for (const auto& [unit, line] : results) {
    BOOST_REQUIRE_MESSAGE(line.contains("text"), line.dump());
    const auto best = longest_chain(1 + unit * width, 1 + (unit + 1) * width);
    BOOST_TEST(json::parse(line["text"].get<std::string>())["start"] == best, line.dump());
    BOOST_TEST(line["fence"].contains("epoch"));
  }
  BOOST_TEST(called == count);
  BOOST_TEST(failed == 0U);
}

BOOST_FIXTURE_TEST_CASE(work_knows_its_lease_and_its_process_stays, workplace) {
  write(std::vector<std::string>(30, "ok"));
  const auto results = run("unruly", 1);
  int most_calls = 0;
  std::map<std::string, std::vector<double>> left;
  for (const auto& [unit, line] : results) {
    const auto told = json::parse(line["text"].get<std::string>());
    const auto id = told["lease"].get<std::string>();
    BOOST_TEST(id == line["lease"][0].dump() + "." + line["lease"][1].dump());
    BOOST_TEST(told["unit"] == unit);
    BOOST_TEST(told["device"] == "emulated");
    BOOST_TEST(told["rank"] < 4);
    most_calls = std::max(most_calls, told["calls"].get<int>());
    left[id].push_back(told["left"].get<double>());
  }
  BOOST_TEST(most_calls > 1);
  check_left(left, windows_of(out));
}

BOOST_FIXTURE_TEST_CASE(work_that_does_not_stop_is_killed_and_the_world_returns, workplace) {
  write(std::vector<std::string>(4, "deaf"));
  BOOST_TEST(run("unruly", 0, {"--lease-grace-seconds", "0.3"}).empty());
  const auto leases = arm_of(out)["leases"];
  BOOST_TEST(leases["forced"] > 0);
  BOOST_TEST(leases["unclean"] == 0);
  for (const auto pid : processes_with("callback-worker")) {
    std::error_code none;
    const auto exe = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", none);
    BOOST_TEST(exe != ADAFLOOR_CALLBACK_USER, pid);
  }
}

BOOST_FIXTURE_TEST_CASE(work_that_stops_when_it_is_asked_to_hands_its_unit_back, workplace) {
  write(std::vector<std::string>(4, "until stopped"));
  BOOST_TEST(run("unruly", 0, {"--lease-grace-seconds", "30"}).empty());
  const auto leases = arm_of(out)["leases"];
  BOOST_TEST(leases["granted"] > 0);
  BOOST_TEST(leases["forced"] == 0);
  BOOST_TEST(leases["unclean"] == 0);
}

BOOST_FIXTURE_TEST_CASE(a_unit_at_which_workers_always_die_is_given_up_and_the_queue_goes_on,
                        workplace) {
  std::vector<std::string> lines(12, "ok");
  lines[3] = "die";
  write(lines);
  const auto results = run("unruly", lines.size(), {"--lease-max-unit-attempts", "3"});
  BOOST_TEST(results.size() == lines.size());
  for (const auto& [unit, line] : results)
    if (unit == 3)
      BOOST_TEST(line.value("error", "").find("died 3 times at it") != std::string::npos,
                 line.dump());
    else
      BOOST_TEST(line.contains("text"), line.dump());
  BOOST_TEST(count_logged("its callback-worker ended with exit status 9") == 3U);
  BOOST_TEST(failed == 1U);
  BOOST_TEST(called == lines.size());
}

BOOST_FIXTURE_TEST_CASE(what_fails_has_its_error_as_result, workplace) {
  write({"throw", "ok", "too long"});
  const auto results = run("unruly", 3);
  BOOST_REQUIRE(results.size() == 3U);
  BOOST_TEST(results.at(0).value("error", "") == "thrown");
  BOOST_TEST(results.at(1).contains("text"));
  BOOST_TEST(results.at(2).value("error", "").find("at most 65536") != std::string::npos);
  BOOST_TEST(failed == 2U);
  if (arm_of(out)["sidecar"]["failed"] > 0) // In the last run.
    BOOST_TEST(said.find("units failed") != std::string::npos, said);
}

BOOST_FIXTURE_TEST_CASE(work_that_is_not_there_is_refused, workplace) {
  const auto refuses = [&](const char* file, const std::vector<std::string>& words,
                           const std::string& said) {
    const auto ended = program{words, path(), "", file}.wait();
    BOOST_TEST(ended.exit_code == 2, ended.err);
    BOOST_TEST(ended.err.find(said) != std::string::npos, ended.err);
    BOOST_TEST(!std::filesystem::exists(out));
  };
  write({"ok"});
  refuses(ADAFLOOR_BIN, words("unruly"),
          "--lease-callback unruly: this program has no work linked");
  refuses(ADAFLOOR_CALLBACK_USER, words("unrly"),
          "--lease-callback unrly: this program has longest-chain, unruly");
  refuses(ADAFLOOR_CALLBACK_USER, long_tail(*this, {"--lease-callback", "unruly"}),
          "belong together");
  write({});
  refuses(ADAFLOOR_CALLBACK_USER, words("unruly"), inputs + ": has no line");
  write({std::string(70'000, 'x')});
  refuses(ADAFLOOR_CALLBACK_USER, words("unruly"), inputs + ":1: has 70000 bytes, at most 65536");
}
