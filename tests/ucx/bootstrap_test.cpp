// The rendezvous of a launch: everybody gets the same table, strangers are refused, and errors say
// who is missing.
#define BOOST_TEST_MODULE bootstrap
#include "actors/bootstrap.hpp"
#include "actors/bootstrap_wire.hpp"
#include "actors/launch_environment.hpp"

#include <arpa/inet.h>
#include <boost/test/unit_test.hpp>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

using namespace adafloor;

namespace {

using table = std::vector<bootstrap_entry>;

struct meeting {
  listening_socket socket = listen_on("127.0.0.1", 0).value();
  std::string token = random_token();
  std::mutex mutex;
  std::string log;

  bootstrap_options options(std::uint32_t world, bool root) {
    bootstrap_options o;
    o.world_size = world;
    o.master_port = socket.port;
    if (root) o.listen_fd = socket.fd;
    o.token = token;
    o.job_digest = "job";
    o.timeout = microseconds{10'000'000};
    o.log = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex);
      log += line + "\n";
    };
    return o;
  }
};

bootstrap_entry entry(std::uint32_t rank) {
  bootstrap_entry e;
  e.rank = rank_id{rank};
  e.incarnation = incarnation_id{1000 + rank};
  e.control_address = "control" + std::to_string(rank);
  e.bulk_address = "bulk" + std::to_string(rank);
  e.collective_address = std::string("binary\0address", 14);
  e.host = "host";
  e.pid = 7 + rank;
  return e;
}

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BOOST_REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  return fd;
}

} // namespace

BOOST_AUTO_TEST_CASE(everybody_gets_the_same_table) {
  for (std::uint32_t n : {1u, 2u, 8u, 40u}) {
    meeting m;
    std::vector<result<table>> got(n);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < n; ++r)
      threads.emplace_back([&, r] { got[r] = bootstrap(m.options(n, r == 0), entry(r)); });
    for (auto& t : threads)
      t.join();
    for (std::uint32_t r = 0; r < n; ++r) {
      BOOST_REQUIRE_MESSAGE(got[r], (got[r] ? "" : got[r].error().text));
      BOOST_REQUIRE(got[r]->size() == n);
      for (std::uint32_t p = 0; p < n; ++p) {
        const auto& e = (*got[r])[p];
        BOOST_TEST((e.rank == rank_id{p} && e.incarnation == incarnation_id{1000 + p}));
        BOOST_TEST(e.control_address == "control" + std::to_string(p));
        BOOST_TEST(e.collective_address == entry(p).collective_address);
        BOOST_TEST(e.pid == 7 + p);
      }
    }
    if (n == 1) ::close(m.socket.fd);
  }
}

BOOST_AUTO_TEST_CASE(rank_0_may_come_last_and_listen_itself) {
  meeting m;
  ::close(m.socket.fd); // only its port is wanted
  auto late = m.options(2, false);
  result<table> got[2];
  std::thread other([&] { got[1] = bootstrap(late, entry(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  got[0] = bootstrap(m.options(2, false), entry(0));
  other.join();
  BOOST_TEST(got[0].has_value());
  BOOST_TEST(got[1].has_value());
}

BOOST_AUTO_TEST_CASE(strangers_are_refused_and_logged_and_do_not_disturb) {
  meeting m;
  std::map<std::string, std::string> refusals;
  result<table> root;
  std::thread first([&] { root = bootstrap(m.options(2, true), entry(0)); });
  const auto try_with = [&](const std::string& name, auto change) {
    auto o = m.options(2, false);
    auto e = entry(1);
    change(o, e);
    auto got = bootstrap(o, e);
    BOOST_REQUIRE(!got);
    BOOST_TEST((got.error().code == error_code::refused), name);
    refusals[name] = got.error().text;
  };
  try_with("token", [](auto& o, auto&) { o.token = std::string(32, 'w'); });
  try_with("world", [](auto& o, auto&) { o.world_size = 3; });
  try_with("digest", [](auto& o, auto&) { o.job_digest = "other"; });
  BOOST_TEST(refusals["token"].find("cluster token is missing or wrong") != std::string::npos);
  BOOST_TEST(refusals["world"].find("started for 3 ranks, rank 0 for 2") != std::string::npos);
  BOOST_TEST(refusals["digest"].find("has another job") != std::string::npos);
  // Noise, an oversized length, and one that says nothing.
  const int noisy = connect_to(m.socket.port);
  std::mt19937 chance(3);
  std::string noise(3000, '\0');
  for (char& c : noise)
    c = static_cast<char>(chance());
  BOOST_TEST(::send(noisy, noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
  const int huge = connect_to(m.socket.port);
  BOOST_TEST(::send(huge, "\xFF\xFF\xFF\xFF", 4, MSG_NOSIGNAL) == 4);
  const int silent = connect_to(m.socket.port);
  auto good = bootstrap(m.options(2, false), entry(1));
  first.join();
  for (int fd : {noisy, huge, silent})
    ::close(fd);
  BOOST_TEST(good.has_value());
  BOOST_TEST(root.has_value());
  BOOST_TEST(m.log.find("refused a newcomer: its cluster token") != std::string::npos);
  BOOST_TEST(m.log.find("longer than allowed") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_there_already_cannot_be_taken_over) {
  meeting m;
  result<table> got[3];
  std::thread root([&] { got[0] = bootstrap(m.options(3, true), entry(0)); });
  std::thread owner([&] { got[1] = bootstrap(m.options(3, false), entry(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  auto thief = entry(1);
  thief.incarnation = incarnation_id{5};
  auto refused = bootstrap(m.options(3, false), thief);
  got[2] = bootstrap(m.options(3, false), entry(2));
  root.join();
  owner.join();
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  BOOST_TEST(refused.error().text.find("rank 1 is here already (pid 8 on host)")
             != std::string::npos);
  for (const auto& g : got)
    BOOST_TEST(g.has_value());
}

BOOST_AUTO_TEST_CASE(a_rank_0_without_the_token_is_not_believed) {
  meeting m;
  auto impostor = m.options(2, true);
  impostor.token = std::string(32, 'w');
  impostor.timeout = microseconds{1'000'000};
  std::thread root([&] { (void)bootstrap(impostor, entry(0)); });
  auto got = bootstrap(m.options(2, false), entry(1));
  root.join();
  BOOST_REQUIRE(!got);
  BOOST_TEST((got.error().code == error_code::refused));
}

BOOST_AUTO_TEST_CASE(missing_ranks_are_named_to_all) {
  meeting m;
  result<table> got[2];
  std::vector<std::thread> threads;
  for (std::uint32_t r : {0u, 1u})
    threads.emplace_back([&, r] {
      auto o = m.options(5, r == 0);
      o.timeout = microseconds{r == 0 ? 400'000 : 5'000'000};
      got[r] = bootstrap(o, entry(r));
    });
  for (auto& t : threads)
    t.join();
  for (const auto& g : got) {
    BOOST_REQUIRE(!g);
    BOOST_TEST((g.error().code == error_code::timed_out));
    BOOST_TEST(g.error().text.find("3 of 5 ranks did not come") != std::string::npos);
    BOOST_TEST(g.error().text.find("2, 3, 4") != std::string::npos, g.error().text);
  }
  auto alone = m.options(2, false);
  alone.timeout = microseconds{200'000};
  auto lost = bootstrap(alone, entry(1));
  BOOST_REQUIRE(!lost);
  BOOST_TEST((lost.error().code == error_code::timed_out));
  BOOST_TEST(lost.error().text.find("Connection refused") != std::string::npos, lost.error().text);
}

BOOST_AUTO_TEST_CASE(a_rank_that_left_may_come_again_as_another_process) {
  meeting m;
  auto root_options = m.options(3, true);
  result<table> got[3];
  std::thread root([&] { got[0] = bootstrap(root_options, entry(0)); });
  auto impatient = m.options(3, false);
  impatient.timeout = microseconds{300'000}; // gives up before rank 2 is there
  BOOST_TEST(!bootstrap(impatient, entry(1)).has_value());
  auto again = entry(1);
  again.incarnation = incarnation_id{555};
  std::thread second([&] { got[1] = bootstrap(m.options(3, false), again); });
  got[2] = bootstrap(m.options(3, false), entry(2));
  root.join();
  second.join();
  BOOST_REQUIRE(got[2].has_value());
  BOOST_TEST(((*got[2])[1].incarnation == incarnation_id{555}));
}

BOOST_AUTO_TEST_CASE(bad_options_are_refused_before_anything_happens) {
  meeting m;
  auto o = m.options(2, false);
  o.token = "short";
  BOOST_TEST(bootstrap(o, entry(1)).error().text.find("at least 16") != std::string::npos);
  BOOST_TEST((bootstrap(m.options(2, false), entry(2)).error().code == error_code::bad_input));
  auto e = entry(1);
  e.host = std::string(2000, 'h');
  BOOST_TEST((bootstrap(m.options(2, false), e).error().code == error_code::bad_input));
  BOOST_TEST(!listen_on("203.0.113.1", 0).has_value()); // not an address of this host
  ::close(m.socket.fd);
}

BOOST_AUTO_TEST_CASE(hmac_matches_rfc_4231) {
  const std::string mac = hmac_sha256("Jefe", "what do ya want for nothing?"); // test case 2
  std::string hex;
  for (const char c : mac) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(c) & 0xFFu);
    hex += digits;
  }
  BOOST_TEST(hex == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  BOOST_TEST(random_token() != random_token());
  BOOST_TEST(random_token().size() == 64u);
  BOOST_TEST((random_incarnation() != random_incarnation()));
}

BOOST_AUTO_TEST_CASE(a_token_file_must_be_private_and_long_enough) {
  char path[] = "/tmp/adafloor-token-XXXXXX";
  ::close(::mkstemp(path));
  std::ofstream(path) << "0123456789abcdef0123\n";
  BOOST_TEST(read_token_file(path).value() == "0123456789abcdef0123");
  ::chmod(path, 0644);
  BOOST_TEST(read_token_file(path).error().text.find("chmod 600") != std::string::npos);
  ::chmod(path, 0600);
  std::ofstream(path) << "short\n";
  BOOST_TEST(!read_token_file(path).has_value());
  ::unlink(path);
  BOOST_TEST((read_token_file(path).error().code == error_code::io));
}

BOOST_AUTO_TEST_CASE(damaged_wire_bytes_never_crash_the_decoders) {
  std::mt19937_64 chance(11);
  const std::string good[] = {
      encode(bootstrap_challenge{1, std::string(32, 'n')}),
      encode(bootstrap_hello{std::string(32, 'n'), std::string(32, 'm'), "body"}),
      encode(bootstrap_claim{2, "job", entry(1)}), encode(table{entry(0), entry(1)})};
  BOOST_TEST(decode_table(good[3], 2).has_value());
  BOOST_TEST(!decode_table(good[3], 3).has_value());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good[chance() % 4];
    for (auto n = chance() % 4; n > 0; --n)
      bytes[chance() % bytes.size()] = static_cast<char>(chance());
    bytes.resize(chance() % (bytes.size() + 10));
    (void)decode_challenge(bytes);
    (void)decode_hello(bytes);
    (void)decode_claim(bytes);
    (void)decode_answer(bytes);
    (void)decode_table(bytes, 2);
  }
  BOOST_TEST(!decode_claim(good[2] + "x").has_value()); // all bytes must be consumed
}

namespace {

result<launch_place> place_in(const std::map<std::string, std::string>& variables,
                              const launch_flags& flags = {}) {
  return read_launch_place(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

} // namespace

BOOST_AUTO_TEST_CASE(launchers_are_understood) {
  auto torch = place_in({{"RANK", "3"},
                         {"WORLD_SIZE", "8"},
                         {"MASTER_ADDR", "n1"},
                         {"MASTER_PORT", "29500"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "1"}});
  BOOST_REQUIRE(torch);
  BOOST_TEST(torch->source == "torchrun");
  BOOST_TEST((torch->rank == rank_id{3} && torch->world_size == 8));
  BOOST_TEST(torch->master_host == "n1");
  BOOST_TEST(torch->master_port == 29501);
  auto slurm = place_in({{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "16"},
                         {"SLURM_JOB_NODELIST", "gpu[07-09,12],login"}});
  BOOST_REQUIRE(slurm);
  BOOST_TEST(slurm->master_host == "gpu07");
  BOOST_TEST(slurm->master_port == 29431);
  auto mpi = place_in({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  BOOST_REQUIRE(mpi);
  BOOST_TEST(mpi->master_host == "127.0.0.1");
  auto flags = place_in({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n1"}},
                        {2, 4, std::string("n9"), std::uint16_t{7}});
  BOOST_REQUIRE(flags);
  BOOST_TEST((flags->rank == rank_id{2} && flags->world_size == 4 && flags->master_port == 7));
  BOOST_TEST(flags->master_host == "n9");
}

BOOST_AUTO_TEST_CASE(wrong_launch_variables_are_named) {
  const auto text = [](const std::map<std::string, std::string>& v) {
    auto p = place_in(v);
    return p ? std::string("no error") : p.error().text;
  };
  BOOST_TEST(text({}).find("--rank and --world-size") != std::string::npos);
  BOOST_TEST(text({{"RANK", "1"}}).find("RANK is set but WORLD_SIZE is not") != std::string::npos);
  BOOST_TEST(text({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK=\"x\"") != std::string::npos);
  BOOST_TEST(text({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}).find("0-based")
             != std::string::npos);
  BOOST_TEST(
      text({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).find("MASTER_ADDR")
      != std::string::npos);
  BOOST_TEST(
      text({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}})
          .find("MASTER_PORT=\"70000\"")
      != std::string::npos);
}

BOOST_AUTO_TEST_CASE(slurm_node_lists) {
  const std::pair<const char*, const char*> lists[] = {
      {"node1", "node1"},         {"node1,node2", "node1"}, {"node[3-5]", "node3"},
      {"node[003,7]", "node003"}, {"a,node[3-5]", "a"},     {"r[1-2]-ib,x", "r1-ib"}};
  for (const auto& [list, host] : lists)
    BOOST_TEST(first_slurm_host(list).value() == host);
  for (const char* bad : {"", "node[", "node[a-b]", "r[1-2]n[3-4]"})
    BOOST_TEST(!first_slurm_host(bad).has_value());
}
