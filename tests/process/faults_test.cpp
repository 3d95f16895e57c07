// Every step of the protocols on real processes with something gone wrong on purpose: messages
// lost, doubled and late, refusals, deadlines, frozen ranks. The tokens stay the same.
#define BOOST_TEST_MODULE faults
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <map>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

using words = std::vector<std::string>;

/// The messages between processes, by conversation.
const words rollout_messages{"admit_requests",  "requests_admitted", "start_rollout",
                             "rollout_started", "response",          "response_kept",
                             "rank_progress",   "end_rollout",       "rollout_report",
                             "token_batch",     "tokens_kept"};
const words transition_messages{"prepare_transition", "prepared",          "commit_transition",
                                "switched",           "settle_transition", "settled"};
const words move_messages{"move_request", "request_moved", "move_offer",    "move_accepted",
                          "kv_ready",     "kv_taken",      "move_committed"};

struct run_end {
  json arm;
  std::vector<json> events;
  std::string logs; ///< of all ranks

  /// The first of `faults` that no rank's log tells of; empty when all struck.
  std::string without_strike(const words& faults) const {
    for (const auto& fault : faults) {
      const auto at = fault.substr(3, fault.find(' ') - 3);
      const auto act = fault.substr(fault.find("do=") + 3);
      const auto line = "fault injected: " + act.substr(0, act.find(' ')) + ' ' + at + ' ';
      if (logs.find(line) == std::string::npos) return fault;
    }
    return {};
  }
  int aborted() const {
    for (const auto& e : events)
      if (e["event"] == "step_end") return e["aborted_transitions"];
    return -1;
  }
  int moves(const std::string& outcome) const {
    int n = 0;
    for (const auto& e : events)
      n += e["event"] == "move" && e["outcome"] == outcome ? 1 : 0;
    return n;
  }
};

/// Four ranks, eight prompts of which two have long answers: it contracts to two ranks, moves four
/// requests before that, and restores.
struct elastic_run : scratch_dir {
  words arguments(const words& faults, const words& more) const {
    const auto models = shipped_models() + "/collatz-moe";
    words line{"run", "--ranks", "4", "--floor", "2", "--migrate", "consolidate", "--model"};
    for (const auto& word : {models + "/v1-bf16", std::string{"--history"},
                             models + "/history/v1.csv", std::string{"--prompts"},
                             two_long_answers(path()), std::string{"--out"}, path() + "/out"})
      line.push_back(word);
    for (const char* word : {"--steps", "1", "--n", "2", "--prompts-per-step", "8", "--arms",
                             "natural", "--max-num-seqs", "6", "--max-response-length", "1500"})
      line.emplace_back(word);
    for (const auto& fault : faults)
      line.insert(line.end(), {"--fault", fault});
    if (std::find(more.begin(), more.end(), "--sidecar-model") == more.end())
      line.insert(line.end(), {"--sidecar-model", "none"});
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }

  run_end go(const words& faults, const words& more = {}) {
    std::filesystem::remove_all(path() + "/out");
    const auto ended = run_program(arguments(faults, more), path());
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    run_end seen;
    seen.arm = json::parse(read_file(path() + "/out/run.json"))["arms"][0];
    seen.events = events_of(path() + "/out");
    for (int rank = 0; rank < 4; ++rank)
      seen.logs += read_file(path() + "/out/rank-" + std::to_string(rank) + ".log");
    return seen;
  }

  /// Whatever happens, the same tokens and log-probabilities as without any fault, and the full
  /// world at the end. Every fault must have struck and `reached` hold: a loaded machine may end so
  /// short a rollout before it contracts or moves, then it is run again.
  void same(
      const words& faults, const words& more = {},
      const std::function<bool(const run_end&)>& reached = [](const run_end&) { return true; }) {
    static const auto plain = elastic_run{}.go({}, {"--arms", "vanilla"});
    const auto label = json(faults).dump();
    std::string unstruck;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const auto seen = go(faults, more);
      BOOST_TEST(seen.arm["tokens_digest"] == plain.arm["tokens_digest"], label);
      BOOST_TEST(seen.arm["logprobs_digest"] == plain.arm["logprobs_digest"], label);
      if (!seen.arm["transitions"].empty())
        BOOST_TEST(seen.arm["transitions"].back()["to"] == 4, label);
      unstruck = seen.without_strike(faults);
      if (unstruck.empty() && reached(seen)) return;
    }
    BOOST_TEST(unstruck.empty(), label << ": never struck: " << unstruck);
    if (unstruck.empty()) BOOST_ERROR(label << ": struck, but without the effect it should have");
  }

  static bool has_aborted(const run_end& r) { return r.aborted() > 0; }
  static bool has_moved(const run_end& r) { return r.moves("moved") > 0; }
  static words each(const words& messages, const std::string& how) {
    words faults;
    for (const auto& m : messages)
      faults.push_back("at=" + m + " " + how);
    return faults;
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(the_run_contracts_and_moves_without_faults, elastic_run) {
  same({}, {},
       [](const run_end& r) { return r.arm["transitions"].size() >= 2U && r.moves("moved") > 0; });
}

BOOST_FIXTURE_TEST_CASE(the_first_messages_of_each_kind_are_lost, elastic_run) {
  same(each(rollout_messages, "do=drop count=2"));
  for (const auto& m : transition_messages)
    same({"at=" + m + " do=drop count=2"});
  for (const auto& m : move_messages) // All at once, a move outlasts the rollout of a fast machine.
    same({"at=" + m + " do=drop"}, {}, has_moved);
}

BOOST_FIXTURE_TEST_CASE(every_message_comes_twice, elastic_run) {
  same(each(rollout_messages, "do=duplicate count=0"));
  same(each(transition_messages, "do=duplicate count=0"));
  same(each(move_messages, "do=duplicate count=0"), {}, has_moved);
}

BOOST_FIXTURE_TEST_CASE(each_message_of_a_transition_comes_late, elastic_run) {
  for (const auto& m : transition_messages)
    same({"at=" + m + " do=delay ms=150"});
}

BOOST_FIXTURE_TEST_CASE(each_message_of_a_move_comes_late, elastic_run) {
  for (const auto& m : move_messages)
    same({"at=" + m + " do=delay ms=150"});
}

BOOST_FIXTURE_TEST_CASE(damaged_messages_are_dropped_and_said_again, elastic_run) {
  same(each(rollout_messages, "do=corrupt"));
  for (const auto& m : transition_messages)
    same({"at=" + m + " do=corrupt"});
  for (const std::string m : {"kv_ready", "move_committed"})
    same({"at=" + m + " do=corrupt"}, {}, has_moved);
}

BOOST_FIXTURE_TEST_CASE(messages_are_overtaken_by_later_ones, elastic_run) {
  same(each(rollout_messages, "do=reorder count=2"));
  for (const auto& m : transition_messages)
    same({"at=" + m + " do=reorder"});
  for (const std::string m : {"move_offer", "kv_ready", "kv_taken", "move_committed"})
    same({"at=" + m + " do=reorder"});
}

BOOST_FIXTURE_TEST_CASE(slow_processes_hold_up_the_others_only, elastic_run) {
  for (const std::string fault :
       {"at=rank_progress rank=0 do=slow ms=2 count=0",
        "at=prepare_transition rank=2 do=slow ms=100", "at=engine_commit rank=1 do=slow ms=100",
        "at=kv_ready do=slow ms=50", "at=engine_receive_round do=slow ms=50"})
    same({fault});
}

BOOST_FIXTURE_TEST_CASE(a_refused_transition_is_aborted, elastic_run) {
  for (const std::string at : {"prepare_transition", "engine_prepare"})
    same({"at=" + at + " do=refuse rank=2"}, {}, has_aborted);
}

BOOST_FIXTURE_TEST_CASE(transitions_are_refused_again_and_again, elastic_run) {
  same({"at=engine_prepare do=refuse rank=1 count=3"}, {}, has_aborted);
}

BOOST_FIXTURE_TEST_CASE(a_preparation_past_its_deadline_is_aborted, elastic_run) {
  for (const std::string at : {"engine_prepare", "engine_prepared"})
    same({"at=" + at + " do=delay ms=1200 rank=2"}, {"--deadline-ms", "400"}, has_aborted);
}

BOOST_FIXTURE_TEST_CASE(a_committed_transition_outlives_the_deadline, elastic_run) {
  for (const std::string at : {"engine_commit", "settle_transition"})
    same({"at=" + at + " do=delay ms=1200 rank=2"}, {"--deadline-ms", "400"});
}

BOOST_FIXTURE_TEST_CASE(a_lost_abort_is_said_again, elastic_run) {
  same({"at=prepare_transition do=refuse rank=2", "at=abort_transition do=drop count=2",
        "at=transition_aborted do=drop count=2"},
       {}, has_aborted);
}

BOOST_FIXTURE_TEST_CASE(a_refused_move_leaves_the_request_where_it_is, elastic_run) {
  for (const std::string at : {"move_offer", "engine_receive_begin"})
    same({"at=" + at + " do=refuse count=0"}, {},
         [](const run_end& r) { return r.moves("moved") == 0 && r.moves("refused") > 0; });
}

BOOST_FIXTURE_TEST_CASE(a_move_past_its_deadline_is_given_up, elastic_run) {
  // The deadline ends long before the request does, on a fast machine too.
  same({"at=engine_receive_round do=delay ms=900"}, {"--deadline-ms", "40"},
       [](const run_end& r) { return r.moves("given up") > 0; });
}

BOOST_FIXTURE_TEST_CASE(a_cancelled_move_whose_cancel_is_lost, elastic_run) {
  same({"at=engine_receive_begin do=delay ms=400", "at=move_cancel do=drop",
        "at=move_cancelled do=drop"},
       {"--deadline-ms", "150"});
}

BOOST_FIXTURE_TEST_CASE(ranks_freeze_for_a_moment_in_the_middle, elastic_run) {
  for (const std::string fault :
       {"at=prepare_transition do=freeze rank=3 ms=300",
        "at=commit_transition do=freeze rank=1 ms=300", "at=kv_ready do=freeze ms=300",
        "at=move_committed do=freeze ms=300", "at=prepared do=freeze rank=0 ms=300"})
    same({fault});
}

BOOST_FIXTURE_TEST_CASE(rules_that_cannot_strike_are_refused_at_the_start, elastic_run) {
  for (const auto& [fault, said] :
       {std::pair{"at=kv_ready do=drop rank=9", "there are ranks 0 to 3"},
        {"at=kv_read do=drop", "no such message"}}) {
    const auto ended = run_program(arguments({fault}, {}), path());
    BOOST_TEST(ended.exit_code == 2, ended.err);
    BOOST_TEST(ended.err.find(said) != std::string::npos, ended.err);
  }
}
