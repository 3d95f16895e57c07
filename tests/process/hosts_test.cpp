// Ranks on four hosts: network and process namespaces of one machine. Whatever the network does,
// the tokens are those of ranks on one host.
#define BOOST_TEST_MODULE hosts
#include "tests/process/lan.hpp"
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <map>
#include <memory>
#include <set>

using namespace adafloor::testing;
using nlohmann::json;

namespace {

using words = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int host_count = 4, ranks = 8, ranks_per_host = ranks / host_count;
constexpr seconds patience{60};

struct run_end {
  json arm;
  std::vector<json> events, responses;
  std::string said;                    ///< by the launcher
  std::map<int, program_result> nodes; ///< by rank, of the ranks that `adafloor node` ran

  std::vector<json> all(const std::string& kind) const {
    std::vector<json> found;
    for (const auto& e : events)
      if (e["event"] == kind) found.push_back(e);
    return found;
  }
  /// Every (prompt, sample) is there once.
  bool each_response_once() const {
    std::set<std::pair<std::string, int>> seen;
    for (const auto& r : responses)
      seen.emplace(r["prompt_id"], r["sample"]);
    return seen.size() == responses.size() && responses.size() == arm["responses"];
  }
};

/// Eight prompts of which two have long answers: it contracts, moves requests before that, and
/// restores.
struct four_hosts : scratch_dir {
  words arguments(const std::string& out, const words& more) const {
    const auto models = shipped_models() + "/collatz-moe";
    words line{"run",
               "--ranks",
               std::to_string(ranks),
               "--floor",
               "4",
               "--migrate",
               "consolidate",
               "--model",
               models + "/v1-bf16",
               "--history",
               models + "/history/v1.csv",
               "--prompts",
               two_long_answers(path()),
               "--out",
               out};
    for (const char* word : {"--steps", "1", "--n", "2", "--prompts-per-step", "8",
                             "--max-num-seqs", "6", "--sidecar-model", "none"})
      line.emplace_back(word);
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }

  using intruder = std::function<void(const std::string& out)>;

  /// `intrude` is called once there is an event `first`.
  run_end on_hosts(const lan& network, const words& more, const std::string& first = "",
                   const intruder& intrude = {}) {
    const auto out = path() + "/hosts", token = path() + "/token";
    std::filesystem::remove_all(out);
    std::ofstream(token) << "a secret of this test alone\n";
    std::filesystem::permissions(token, std::filesystem::perms(0600));
    auto line = arguments(out, {"--arms", "natural", "--bind", lan::address(0), "--port", "29500",
                                "--tls", "tcp,self", "--local-ranks",
                                std::to_string(ranks_per_host), "--token-file", token});
    line.insert(line.end(), more.begin(), more.end());
    program launcher(line, folder("launcher"), network.inside(0));
    BOOST_REQUIRE(comes_true([&] { return std::filesystem::exists(out + "/job.json"); }, patience));
    std::map<int, std::unique_ptr<program>> nodes;
    for (int rank = ranks_per_host; rank < ranks; ++rank) {
      const int host = rank / ranks_per_host;
      nodes[rank] = std::make_unique<program>(
          words{"node", "--job", out + "/job.json", "--rank", std::to_string(rank), "--master",
                lan::address(0) + ":29500", "--bind", lan::address(host), "--token-file", token},
          folder("node" + std::to_string(rank)), network.inside(host));
    }
    if (intrude) {
      const auto there = [&] { return has(out, first) || launcher.ended(); };
      BOOST_REQUIRE(comes_true(there, patience));
      intrude(out);
    }
    BOOST_REQUIRE_MESSAGE(comes_true([&] { return launcher.ended(); }, patience),
                          "it hangs: " << read_file(path() + "/launcher/stderr"));
    const auto ended = launcher.wait();
    BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
    run_end seen;
    seen.said = ended.err;
    for (auto& [rank, node] : nodes) {
      const auto& n = *node;
      BOOST_REQUIRE_MESSAGE(comes_true([&] { return n.ended(); }, patience),
                            "rank " << rank << " does not end");
      seen.nodes[rank] = node->wait();
    }
    seen.arm = json::parse(read_file(out + "/run.json"))["arms"][0];
    seen.events = events_of(out);
    seen.responses = lines_of(out + "/responses.jsonl");
    return seen;
  }

  static bool has(const std::string& out, const std::string& kind, int times = 1) {
    for (const auto& e : events_of(out))
      times -= e["event"] == kind ? 1 : 0;
    return times <= 0;
  }

  /// The same tokens as all ranks on one host, without elasticity; nothing twice.
  void same(const run_end& seen, const words& more = {}) {
    auto line = arguments(path() + "/alone", {"--arms", "vanilla"});
    line.insert(line.end(), more.begin(), more.end());
    const auto local = run_program(line, folder("local"));
    BOOST_REQUIRE_MESSAGE(local.exit_code == 0, local.err);
    const auto plain = json::parse(read_file(path() + "/alone/run.json"))["arms"][0];
    BOOST_TEST(seen.arm["tokens_digest"] == plain["tokens_digest"]);
    BOOST_TEST(seen.arm["logprobs_digest"] == plain["logprobs_digest"]);
    BOOST_TEST(seen.arm["responses"] == plain["responses"]);
    BOOST_TEST(seen.each_response_once());
  }

  std::string folder(const std::string& name) const {
    std::filesystem::create_directory(path() + "/" + name);
    return path() + "/" + name;
  }
};

/// The ranks of `host` are lost, and nobody else; that is said, and the others are back together at
/// the end.
void lost_host(const run_end& seen, int host) {
  const std::set<int> cut_off{ranks_per_host * host, ranks_per_host * host + 1};
  std::set<int> lost;
  for (const auto& e : seen.all("rank_lost"))
    lost.insert(e["rank"].get<int>());
  BOOST_TEST(lost == cut_off);
  BOOST_TEST(seen.arm["ranks_lost"].size() == cut_off.size());
  BOOST_TEST(seen.said.find("the job goes on with 6 ranks") != std::string::npos, seen.said);
  const auto transitions = seen.all("transition");
  BOOST_REQUIRE(!transitions.empty());
  BOOST_TEST(transitions.back()["to"] == ranks - ranks_per_host);
  std::set<std::uint64_t> epochs; // Each has one set of members.
  for (const auto& t : transitions)
    BOOST_TEST(epochs.insert(t["epoch"].get<std::uint64_t>()).second, t.dump());
  for (const auto& [rank, node] : seen.nodes)
    if (!cut_off.count(rank)) BOOST_TEST(node.exit_code == 0, "rank " << rank << ": " << node.err);
}

bool skipped(const lan& network) {
  if (network.missing().empty()) return false;
  BOOST_TEST_MESSAGE("skipped: this machine lets this test have no " << network.missing());
  return true;
}

} // namespace

BOOST_FIXTURE_TEST_CASE(frames_are_late_and_lost, four_hosts) {
  lan network(host_count, weather{milliseconds(5), 0.01});
  if (skipped(network)) return;
  const words shorter{"--max-response-length", "200"};
  const auto seen = on_hosts(network, shorter);
  const auto [carried, lost] = network.wire()->stop();
  BOOST_TEST_MESSAGE(carried << " frames carried, " << lost << " lost");
  BOOST_TEST(lost > 0U);
  BOOST_TEST(!seen.all("move").empty());
  BOOST_TEST(seen.arm["transitions"].size() >= 2U); // It contracted and was restored.
  BOOST_TEST(seen.all("rank_lost").empty());
  same(seen, shorter);
}

/// Shorter than the silence after which a rank counts as lost, also where the machine stalls.
BOOST_FIXTURE_TEST_CASE(a_short_cut_loses_nobody, four_hosts) {
  const lan network(host_count);
  if (skipped(network)) return;
  const auto seen =
      on_hosts(network, {"--failure-ms", "20000"}, "transition", [&](const std::string& out) {
        BOOST_TEST(network.set_link(1, false));
        std::this_thread::sleep_for(milliseconds(700));
        BOOST_TEST(!has(out, "step_end"));
        BOOST_TEST(network.set_link(1, true));
      });
  BOOST_TEST(seen.all("rank_lost").empty());
  BOOST_TEST(seen.arm["transitions"].back()["to"] == ranks);
  for (const auto& [rank, node] : seen.nodes)
    BOOST_TEST(node.exit_code == 0, "rank " << rank << ": " << node.err);
  same(seen);
}

/// Those that are cut off hear nothing from the planner and end, as nothing is to be started again.
/// Once while requests move away from it, once in the contracted group.
BOOST_FIXTURE_TEST_CASE(the_others_go_on_without_a_host_that_is_cut_off, four_hosts) {
  const auto cut = [&](int host, const std::string& first) {
    const lan network(host_count);
    if (skipped(network)) return;
    const auto seen =
        on_hosts(network, {"--failure-ms", "2000", "--max-restarts", "0"}, first,
                 [&](const std::string&) { BOOST_TEST(network.set_link(host, false)); });
    lost_host(seen, host);
    same(seen);
  };
  cut(3, "move");
  cut(1, "transition");
}

/// They are told, or have noticed for themselves, while the books are kept open.
BOOST_FIXTURE_TEST_CASE(a_partition_heals_when_its_ranks_count_as_lost, four_hosts) {
  const lan network(host_count);
  if (skipped(network)) return;
  const words slow_end{"--failure-ms",   "2000",
                       "--max-restarts", "0",
                       "--fault",        "at=end_rollout do=delay rank=4 ms=8000 count=0"};
  const auto seen = on_hosts(network, slow_end, "transition", [&](const std::string& out) {
    BOOST_TEST(network.set_link(1, false));
    BOOST_TEST(comes_true([&] { return has(out, "rank_lost", ranks_per_host); }, patience));
    BOOST_TEST(network.set_link(1, true));
  });
  lost_host(seen, 1);
  for (const int rank : {2, 3}) {
    const auto& told = seen.nodes.at(rank).err;
    const bool knows = told.find("declared lost") != std::string::npos
                       || told.find("the planner was silent") != std::string::npos;
    BOOST_TEST(knows, "rank " << rank << ": " << told);
  }
  same(seen);
}

/// Its launcher starts it again at the same port, and the ranks of the other hosts join by
/// themselves.
BOOST_FIXTURE_TEST_CASE(all_hosts_go_on_when_rank_0_starts_again, four_hosts) {
  const lan network(host_count);
  if (skipped(network)) return;
  const auto seen =
      on_hosts(network, {"--fault", "at=response role=planner rank=0 skip=6 do=crash"});
  BOOST_TEST(seen.arm["resumptions"].size() >= 1U);
  BOOST_TEST(seen.arm["transitions"].back()["to"] == ranks);
  for (const auto& [rank, node] : seen.nodes)
    BOOST_TEST(node.exit_code == 0, "rank " << rank << ": " << node.err);
  same(seen);
}
