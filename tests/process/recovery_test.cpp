// Ranks that crash or freeze in the middle of a rollout, on eight real processes: the others go on
// without them, and every response has the tokens and log-probabilities of a run without any fault.
#define BOOST_TEST_MODULE recovery
#include "tests/process/eight_ranks.hpp"

#include <boost/test/unit_test.hpp>

#include <set>

using namespace adafloor::testing;

namespace {

struct struck_ranks : eight_ranks {
  /// `rank` is struck by what befalls message `at`. The rest of the world finishes the work.
  /// False: the message did not come there, since a rollout of a few steps may take another course.
  bool survives(const std::string& at, const std::string& act, int rank) {
    static const auto plain = struck_ranks{}.go({"--arms", "vanilla"}).arm;
    const auto fault = "at=" + at + " do=" + act + " rank=" + std::to_string(rank);
    const auto seen = go({"--arms", "natural", "--fault", fault});
    BOOST_TEST(seen.arm["tokens_digest"] == plain["tokens_digest"], fault);
    BOOST_TEST(seen.arm["logprobs_digest"] == plain["logprobs_digest"], fault);
    BOOST_TEST(seen.arm["responses"] == plain["responses"], fault);
    if (!seen.struck(rank)) return false;
    const auto lost = seen.all("rank_lost");
    if (lost.empty()) return false; // It struck when nothing was left to do.
    BOOST_TEST(lost[0]["rank"] == rank, fault);
    BOOST_TEST(seen.arm["ranks_lost"].size() == lost.size(), fault);
    const auto transitions = seen.all("transition");
    const int left = 8 - static_cast<int>(lost.size());
    BOOST_REQUIRE_MESSAGE(!transitions.empty(), fault);
    BOOST_TEST(transitions.back()["to"] == left, fault); // All that live are back at the end.
    return true;
  }

  /// A crash and a freeze of each of `ranks` in turn until each has struck once.
  void survives_at(const std::string& at, const std::vector<int>& ranks) {
    for (const std::string act : {"crash", "freeze"}) {
      bool reached = false;
      for (int attempt = 0; attempt < 3 && !reached; ++attempt)
        for (const int rank : ranks)
          if ((reached = survives(at, act, rank))) break;
      BOOST_TEST(reached, at << ", " << act << ": never struck while the rollout ran");
    }
  }

  /// Ranks but 0 that gave requests away ("from") or took some ("to") in a run without faults.
  std::vector<int> movers(const std::string& end) {
    static const auto run = struck_ranks{}.go({"--arms", "natural"});
    std::set<int> found;
    for (const auto& move : run.all("move"))
      if (move["outcome"] == "moved" && move[end] != 0) found.insert(move[end].get<int>());
    BOOST_TEST(!found.empty(), "no request moved without faults");
    return {found.begin(), found.end()};
  }
  /// Ranks but 0 that the first contraction kept, or let go.
  std::vector<int> in_first_contraction(bool kept) {
    static const auto run = struck_ranks{}.go({"--arms", "natural"});
    const auto members = run.all("transition").at(0)["members"].get<std::set<int>>();
    std::vector<int> found;
    for (int rank = 1; rank < 8; ++rank)
      if ((members.count(rank) > 0) == kept) found.push_back(rank);
    return found;
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(while_it_decodes, struck_ranks) {
  survives_at("token_batch skip=2 role=rank", {5, 1, 3});
}

BOOST_FIXTURE_TEST_CASE(before_it_has_decoded_anything, struck_ranks) {
  survives_at("start_rollout", {6});
}

BOOST_FIXTURE_TEST_CASE(while_it_is_idle_in_the_group, struck_ranks) {
  survives_at("response_kept skip=1", {7, 6, 4, 2});
}

BOOST_FIXTURE_TEST_CASE(while_it_gives_a_request_away, struck_ranks) {
  survives_at("kv_ready role=rank", movers("from"));
}

BOOST_FIXTURE_TEST_CASE(while_it_takes_a_request, struck_ranks) {
  survives_at("engine_receive_begin", movers("to"));
  survives_at("move_committed role=rank", movers("to"));
}

BOOST_FIXTURE_TEST_CASE(while_it_prepares_to_stay, struck_ranks) {
  survives_at("engine_prepare", in_first_contraction(true));
}

BOOST_FIXTURE_TEST_CASE(while_it_leaves_after_the_commit, struck_ranks) {
  survives_at("engine_commit", in_first_contraction(false));
}

BOOST_FIXTURE_TEST_CASE(two_at_once, struck_ranks) {
  const auto plain = go({"--arms", "vanilla"}).arm;
  const auto seen = go({"--arms", "natural", "--fault", "at=token_batch do=crash rank=2 skip=1",
                        "--fault", "at=token_batch do=freeze rank=5 skip=1"});
  BOOST_TEST(seen.arm["tokens_digest"] == plain["tokens_digest"]);
  BOOST_TEST(seen.arm["logprobs_digest"] == plain["logprobs_digest"]);
  BOOST_TEST(seen.arm["ranks_lost"].size() == 2U);
}

/// The books are kept open until the frozen rank has woken and found out.
BOOST_FIXTURE_TEST_CASE(one_that_wakes_is_told_and_ends, struck_ranks) {
  const auto seen = go({"--arms", "natural", "--fault", "at=start_rollout do=freeze rank=5 ms=3500",
                        "--fault", "at=end_rollout do=delay rank=1 ms=4500 count=0"});
  BOOST_TEST(seen.arm["ranks_lost"].size() == 1U);
  BOOST_TEST(seen.logs.at(5).find("declared lost") != std::string::npos, seen.logs.at(5));
}

/// The experts of the dead come from the policy that is being served, not from the first one; the
/// next rollouts are planned for those that are left.
BOOST_FIXTURE_TEST_CASE(under_a_later_policy, struck_ranks) {
  const auto versions = shipped_models() + "/collatz-moe/v";
  const words two{"--model", versions + "2-bf16", "--model", versions + "1-bf16", "--epochs", "3"};
  auto plain = two, struck = two;
  plain.insert(plain.end(), {"--arms", "vanilla"});
  struck.insert(struck.end(),
                {"--arms", "natural", "--fault", "at=start_rollout do=crash rank=4 skip=1"});
  const auto expected = go(plain).arm;
  const auto seen = go(struck);
  BOOST_TEST(seen.arm["tokens_digest"] == expected["tokens_digest"]);
  BOOST_TEST(seen.arm["logprobs_digest"] == expected["logprobs_digest"]);
  BOOST_TEST(seen.arm["ranks_lost"].size() == 1U);
}
