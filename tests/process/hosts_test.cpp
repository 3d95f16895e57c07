// Ranks on several hosts: network namespaces, each with its own address, behind one bridge.
#define BOOST_TEST_MODULE hosts
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <memory>

using namespace adafloor::testing;

namespace {

constexpr int host_count = 4, ranks = 8;

bool done(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0; // NOLINT
}

/// Namespaces of this test alone, gone when it ends.
class lan {
public:
  lan() {
    up_ = done("ip netns add " + name("lan")) && in_switch("ip link add br0 type bridge")
          && in_switch("ip link set br0 up");
    for (int host = 0; up_ && host < host_count; ++host) {
      const auto port = "port" + std::to_string(host);
      up_ = done("ip netns add " + name(host))
            && in_switch("ip link add " + port + " type veth peer name eth0 netns " + name(host))
            && in_switch("ip link set " + port + " master br0 up")
            && done(inside(host) + "ip address add " + address(host) + "/24 dev eth0")
            && done(inside(host) + "ip link set eth0 up")
            && done(inside(host) + "ip link set lo up");
    }
  }
  ~lan() {
    for (int host = 0; host < host_count; ++host)
      done("ip netns delete " + name(host));
    done("ip netns delete " + name("lan"));
  }
  lan(const lan&) = delete;
  lan& operator=(const lan&) = delete;

  bool up() const { return up_; }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  std::string inside(int host) const { return "ip netns exec " + name(host) + " "; }

private:
  bool in_switch(const std::string& command) const {
    return done("ip netns exec " + name("lan") + " " + command);
  }
  std::string name(const std::string& what) const {
    return "adafloor-" + std::to_string(getpid()) + "-" + what;
  }
  std::string name(int host) const { return name(std::to_string(host)); }
  bool up_ = false;
};

std::vector<std::string> rollout(const std::string& out) {
  return {"run",     "--ranks", std::to_string(ranks),
          "--floor", "2",       "--arms",
          "natural", "--steps", "1",
          "--n",     "2",       "--sidecar-model",
          "none",    "--out",   out};
}

std::string digest_of(const std::string& out) {
  return nlohmann::json::parse(read_file(out + "/run.json")).at("arms").at(0).at("tokens_digest");
}

} // namespace

BOOST_AUTO_TEST_CASE(ranks_on_four_hosts_give_the_tokens_of_one_host) {
  const lan network;
  if (!network.up()) {
    BOOST_TEST_MESSAGE("skipped: no network namespaces here (needs root and iproute2)");
    return;
  }
  scratch_dir folder;
  const auto token = folder.path() + "/token", out = folder.path() + "/hosts";
  std::ofstream(token) << "a secret of this test alone\n";
  std::filesystem::permissions(token, std::filesystem::perms(0600));

  auto words = rollout(out);
  for (const auto& word : {"--bind", lan::address(0).c_str(), "--port", "29500", "--tls",
                           "tcp,self", "--local-ranks", "2", "--token-file", token.c_str()})
    words.emplace_back(word);
  std::filesystem::create_directory(folder.path() + "/launcher");
  program launcher(words, folder.path() + "/launcher", network.inside(0));
  BOOST_REQUIRE(comes_true([&] { return std::filesystem::exists(out + "/job.json"); },
                           std::chrono::seconds(20)));
  std::vector<std::unique_ptr<program>> nodes;
  for (int rank = 2; rank < ranks; ++rank) {
    const auto log = folder.path() + "/node" + std::to_string(rank);
    std::filesystem::create_directory(log);
    const int host = rank / (ranks / host_count);
    nodes.push_back(std::make_unique<program>(
        std::vector<std::string>{"node", "--job", out + "/job.json", "--rank", std::to_string(rank),
                                 "--master", lan::address(0) + ":29500", "--bind",
                                 lan::address(host), "--token-file", token},
        log, network.inside(host)));
  }
  const auto ended = launcher.wait();
  BOOST_REQUIRE_MESSAGE(ended.exit_code == 0, ended.err);
  for (auto& node : nodes) {
    const auto end = node->wait();
    BOOST_TEST_MESSAGE(end.err);
    BOOST_TEST(end.exit_code == 0);
  }
  const auto alone = folder.path() + "/alone";
  const auto local = run_program(rollout(alone), folder.path());
  BOOST_REQUIRE_MESSAGE(local.exit_code == 0, local.err);
  BOOST_TEST(digest_of(out) == digest_of(alone));
}

BOOST_AUTO_TEST_CASE(a_token_that_others_can_read_is_refused) {
  scratch_dir folder;
  const auto token = folder.path() + "/token";
  std::ofstream(token) << "a secret of this test alone\n";
  std::filesystem::permissions(token, std::filesystem::perms(0644));
  auto words = rollout(folder.path() + "/out");
  words.insert(words.end(), {"--token-file", token});
  const auto ended = run_program(words, folder.path());
  BOOST_TEST(ended.exit_code != 0);
  BOOST_TEST(ended.err.find("chmod 600") != std::string::npos, ended.err);
}
