// The process of planner, broker and trainer crashes or freezes, or the launcher dies: all ranks
// start again from what is on disk, nothing that was finished is generated again, and every
// response has the tokens and log-probabilities of a run without any fault.
#define BOOST_TEST_MODULE restart
#include "tests/process/eight_ranks.hpp"
#include "tests/process/lease_runs.hpp"

#include <deque>
#include <memory>
#include <set>

using namespace adafloor::testing;
using namespace std::chrono_literals;

namespace {

struct restarted : eight_ranks {
  static words join(words first, const words& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  static const json& plain() {
    static const auto arm = eight_ranks{}.go({"--arms", "vanilla"}).arm;
    return arm;
  }
  static void equals(const json& arm, const json& expected, const std::string& what) {
    BOOST_TEST(arm["tokens_digest"] == expected["tokens_digest"], what);
    BOOST_TEST(arm["logprobs_digest"] == expected["logprobs_digest"], what);
    BOOST_TEST(arm["responses"] == expected["responses"], what);
    BOOST_TEST(arm["generated_tokens"] == expected["generated_tokens"], what);
  }
  /// Each response stands in the file once.
  void check_responses(std::size_t count) const {
    std::set<std::string> seen;
    for (auto line : lines_of(path() + "/out/responses.jsonl")) {
      line.erase("tokens");
      line.erase("logprobs");
      BOOST_TEST(seen.insert(line.dump()).second, line.dump());
    }
    BOOST_TEST(seen.size() == count);
  }

  static words struck_by(const std::string& fault, const words& more) {
    return join({"--arms", "natural", "--max-restarts", "3", "--fault", fault}, more);
  }
  /// The job is done although rank 0 was struck. A starved machine may lose more ranks than that
  /// one, and start again more than once.
  static void check_done(const run_end& seen, const std::string& fault) {
    BOOST_TEST(seen.struck(0), fault);
    const auto times = seen.arm["resumptions"].size();
    BOOST_REQUIRE_MESSAGE(times > 0, fault);
    BOOST_TEST(seen.all("resumed").size() == times, fault);
    BOOST_TEST(seen.all("step_end").size() + times == seen.all("step_begin").size(), fault);
  }
  run_end strike(const std::string& fault, const words& more = {}) {
    auto seen = go(struck_by(fault, more));
    check_done(seen, fault);
    return seen;
  }
};

/// Rank 0 crashes, and freezes, at each of the messages: a run for each. Up to three frozen ones
/// are waited for while others crash.
template <class Check>
void strike_at(const words& messages, const words& more, Check&& check) {
  struct frozen_run {
    std::string fault;
    std::unique_ptr<restarted> place;
    std::unique_ptr<program> run;
  };
  std::deque<frozen_run> frozen;
  restarted here;
  const auto end_first = [&] {
    const auto f = std::move(frozen.front());
    frozen.pop_front();
    const auto seen = f.place->end_of(*f.run);
    restarted::check_done(seen, f.fault);
    check(*f.place, seen, f.fault);
  };
  for (const auto& at : messages) {
    const auto fault = "rank=0 at=" + at + " do=";
    frozen_run f{fault + "freeze", std::make_unique<restarted>(), nullptr};
    f.run = std::make_unique<program>(f.place->arguments(restarted::struck_by(f.fault, more)),
                                      f.place->path());
    constexpr std::size_t at_once = 3;
    if (frozen.size() == at_once) end_first();
    frozen.push_back(std::move(f));
    check(here, here.strike(fault + "crash", more), fault + "crash");
  }
  while (!frozen.empty())
    end_first();
}

} // namespace

BOOST_AUTO_TEST_CASE(in_every_phase_of_the_planner) {
  const words phases{"requests_admitted role=planner skip=3", // admitting
                     "rollout_started role=planner skip=2",   // starting
                     "response role=planner skip=4",          // decoding
                     "request_moved role=planner",
                     "prepared role=planner skip=3",
                     "switched role=planner skip=1",
                     "leases_recalled role=planner",        // recalling, then restoring
                     "prepared role=planner skip=12",       // restoring
                     "rollout_report role=planner skip=5"}; // reporting
  strike_at(phases, {}, [](const restarted& here, const run_end& seen, const std::string& fault) {
    restarted::equals(seen.arm, restarted::plain(), fault);
    here.check_responses(16);
  });
}

/// Every response was kept, and only the end of the step was missing.
BOOST_FIXTURE_TEST_CASE(when_nothing_is_left_to_generate, restarted) {
  const auto seen = strike("at=rollout_done rank=0 do=crash");
  equals(seen.arm, plain(), "rollout_done");
  BOOST_TEST(seen.arm["resumptions"][0]["responses_kept"] == 16);
  check_responses(16);
}

/// What was generated and logged is computed again, but not drawn again.
BOOST_FIXTURE_TEST_CASE(goes_on_from_responses_and_tokens_that_are_there, restarted) {
  const auto seen = strike("at=response rank=0 role=planner skip=11 do=crash");
  const auto& from = seen.arm["resumptions"][0];
  BOOST_TEST(from["responses_kept"].get<int>() >= 10);
  BOOST_TEST(from["tokens_from_log"].get<int>() > 0);
  BOOST_TEST(seen.arm["ledger"]["rank_seconds"].get<double>() > 0);
}

BOOST_FIXTURE_TEST_CASE(while_a_policy_is_loaded_and_in_a_later_epoch, restarted) {
  const auto versions = shipped_models() + "/collatz-moe/v";
  const words two{"--model", versions + "2-bf16", "--model", versions + "1-bf16", "--epochs", "3"};
  const auto expected = go(join({"--arms", "vanilla"}, two)).arm;
  for (const auto* at : {"weights_updated role=planner rank=0 skip=3", "update_weights rank=5"}) {
    const auto seen = go(join(
        {"--arms", "natural", "--max-restarts", "3", "--fault", std::string("do=crash at=") + at},
        two));
    equals(seen.arm, expected, at);
    check_responses(48);
  }
  const auto late = strike("at=response rank=0 role=planner skip=40 do=crash", two);
  equals(late.arm, expected, "the third epoch");
  BOOST_TEST(late.arm["resumptions"][0]["epoch"] == 2);
  check_responses(48);
}

/// Nobody is left in the group: the others are outside, and have nothing to go on with.
BOOST_FIXTURE_TEST_CASE(when_the_whole_group_dies, restarted) {
  words faults{"--arms", "natural", "--max-restarts", "3"};
  const auto last = go({"--arms", "natural"}).all("transition");
  std::vector<int> members;
  for (const auto& t : last)
    if (t["to"] == 2) members = t["members"].get<std::vector<int>>();
  BOOST_REQUIRE_EQUAL(members.size(), 2U);
  for (const int rank : members)
    faults = join(faults,
                  {"--fault", "at=settle_transition do=crash skip=1 rank=" + std::to_string(rank)});
  const auto seen = go(faults);
  equals(seen.arm, plain(), "the last two");
}

/// Units of work are done once, whatever became of the broker.
BOOST_FIXTURE_TEST_CASE(while_the_broker_leases, scratch_dir) {
  write_queries(path() + "/queries.jsonl", 400);
  const words lent{"--sidecar-model",
                   arith_model(),
                   "--sidecar-queries",
                   path() + "/queries.jsonl",
                   "--lease-min-window-seconds",
                   "0"};
  const auto check = [](const restarted& here, const run_end& seen, const std::string& fault) {
    restarted::equals(seen.arm, restarted::plain(), fault);
    std::set<std::uint64_t> units;
    for (const auto& line : lines_of(here.path() + "/out/sidecar.jsonl"))
      BOOST_TEST(units.insert(line.at("unit").get<std::uint64_t>()).second, line.dump());
    const auto& sidecar = seen.arm["sidecar"];
    BOOST_TEST(sidecar["completed"] == units.size(), fault);
    BOOST_TEST(sidecar["correct"].get<double>() >= 0.99 * double(units.size()), fault);
  };
  strike_at({"lease_accepted role=broker", "work_result role=recorder skip=20",
             "lease_returned role=broker"},
            lent, check);
}

BOOST_FIXTURE_TEST_CASE(without_a_restart_that_is_left_the_run_ends_and_can_be_resumed, restarted) {
  const auto out = path() + "/out";
  const auto ended = run_program(arguments({"--arms", "vanilla,natural", "--fault",
                                            "at=response role=planner rank=0 do=crash skip=20"}),
                                 path());
  BOOST_TEST(ended.exit_code == 3, ended.err);
  BOOST_TEST(ended.err.find("adafloor run --resume " + out) != std::string::npos, ended.err);
  const auto more = run_program({"run", "--resume", out}, path());
  BOOST_REQUIRE_MESSAGE(more.exit_code == 0, more.err);
  const auto arms = json::parse(read_file(out + "/run.json"))["arms"];
  BOOST_REQUIRE_EQUAL(arms.size(), 2U); // the finished one is still there
  for (const auto& arm : arms)
    equals(arm, plain(), "resumed");
  BOOST_TEST(arms[0]["resumptions"].empty());
  BOOST_TEST(arms[1]["resumptions"].size() >= 1U);
  const auto again = run_program({"run", "--resume", out}, path());
  BOOST_TEST(again.exit_code == 2);
  BOOST_TEST(again.err.find("is finished") != std::string::npos, again.err);
}

BOOST_FIXTURE_TEST_CASE(killed_again_while_all_ranks_start, restarted) {
  program run(arguments(struck_by("at=response role=planner rank=0 do=crash skip=3", {})), path());
  const auto job = path() + "/out/job.json";
  BOOST_REQUIRE(
      comes_true([&] { return read_file(job).find("\"term\": 2") != std::string::npos; }, 60s));
  std::vector<pid_t> ranks;
  BOOST_REQUIRE(comes_true([&] { return !(ranks = processes_with(job)).empty(); }, 60s));
  kill(ranks.front(), SIGKILL);
  equals(end_of(run).arm, plain(), "killed twice");
  BOOST_TEST(read_file(job).find("\"term\": 3") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_killed_launcher_at_any_moment, restarted) {
  const auto out = path() + "/out";
  int starts = 0;
  for (const auto wait : {100ms, 600ms, 900ms, 300ms, 1300ms}) {
    program run(starts++ == 0 ? arguments({"--arms", "natural,planned"})
                              : words{"run", "--resume", out},
                path());
    BOOST_REQUIRE(comes_true([&] { return !events_of(out).empty(); }, 60s));
    const auto before = events_of(out).size();
    BOOST_REQUIRE(comes_true([&] { return events_of(out).size() > before || starts == 1; }, 60s));
    std::this_thread::sleep_for(wait);
    run.signal(SIGKILL);
    run.wait();
    BOOST_TEST(comes_true([&] { return processes_with(out + "/job.json").empty(); }, 5s));
    if (std::filesystem::exists(out + "/run.json")) break; // it was faster
  }
  const auto ended = run_program({"run", "--resume", out}, path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0 || ended.err.find("is finished") != std::string::npos,
                        ended.err);
  const auto arms = json::parse(read_file(out + "/run.json"))["arms"];
  BOOST_REQUIRE_EQUAL(arms.size(), 2U);
  for (const auto& arm : arms)
    equals(arm, plain(), "after kills");
  check_responses(32);
}

BOOST_FIXTURE_TEST_CASE(emulated_ranks_start_again, restarted) {
  const auto expected =
      run_program(long_tail(*this, {"--sidecar-model", "none", "--time-scale", "0.02"}), path());
  BOOST_REQUIRE_EQUAL(expected.exit_code, 0);
  const auto plain = arm_of(path() + "/out");
  std::filesystem::remove_all(path() + "/out");
  const auto ended =
      run_program(long_tail(*this, {"--sidecar-model", "none", "--time-scale", "0.02", "--fault",
                                    "at=response_kept do=crash rank=3"}),
                  path());
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  BOOST_TEST(arm_of(path() + "/out")["tokens_digest"] == plain["tokens_digest"]);
  BOOST_TEST(arm_of(path() + "/out")["resumptions"].size() >= 1U);
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_resumed_is_said, scratch_dir) {
  const auto none = run_program({"run", "--resume", path() + "/none"}, path());
  BOOST_TEST(none.exit_code == 2);
  BOOST_TEST(none.err.find("there is no job.json") != std::string::npos, none.err);
  const auto both = run_program({"run", "--resume", path(), "--ranks", "4"}, path());
  BOOST_TEST(both.exit_code == 2);
  BOOST_TEST(both.err.find("takes all settings from there") != std::string::npos, both.err);
}

BOOST_FIXTURE_TEST_CASE(two_runs_do_not_share_a_folder, restarted) {
  program first(arguments({"--arms", "natural", "--hold-seconds", "3"}), path());
  BOOST_REQUIRE(comes_true([&] { return !processes_with(path() + "/out/job.json").empty(); }, 60s));
  scratch_dir elsewhere;
  const auto second = run_program({"run", "--resume", path() + "/out"}, elsewhere.path());
  BOOST_TEST(second.exit_code == 2);
  BOOST_TEST(second.err.find("another run is writing there") != std::string::npos, second.err);
  BOOST_TEST(first.wait().exit_code == 0);
}
