// Commands in process groups of their own: how they end, and that nothing of them is left.
#define BOOST_TEST_MODULE process_group
#include "actors/process_group.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

template <class F>
bool comes_true(F&& holds) {
  constexpr int tries = 6000; // a minute
  for (int i = 0; i < tries; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool no_such_group(pid_t id) {
  return kill(-id, 0) != 0 && errno == ESRCH;
}

struct bench {
  scratch_dir place;
  std::string output = place.path() + "/output";

  process_group start(const std::string& text, std::vector<std::string> environment = {}) {
    auto group = process_group::start({{"/bin/sh", "-c", text}, std::move(environment), output});
    BOOST_REQUIRE(group.has_value());
    return std::move(*group);
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(a_command_gets_its_environment_and_gives_output_and_exit_code, bench) {
  auto group = start("echo $FIRST; echo $HOME >&2; read line; exit 7", {"FIRST=one", "HOME=two"});
  const auto id = group.id();
  BOOST_TEST(getpgid(id) == id);
  BOOST_TEST(comes_true([&] { return group.gone(); }));
  BOOST_TEST(group.ended().value() == 7);
  BOOST_TEST(read_file(output) == "one\ntwo\n");
  BOOST_TEST(no_such_group(id));
}

BOOST_FIXTURE_TEST_CASE(a_command_runs_when_nobody_else_wants_the_cpu, bench) {
  auto group = start("sleep 600");
  BOOST_TEST(comes_true([&] { return sched_getscheduler(group.id()) == SCHED_IDLE; }));
  BOOST_TEST(!group.ended());
  BOOST_TEST(!group.gone());
}

BOOST_FIXTURE_TEST_CASE(a_command_keeps_the_bounds_that_it_is_given, bench) {
  process_group::order order;
  order.command = {"named", "-c",
                   "echo $0; nice; ulimit -d; grep Cpus_allowed_list /proc/self/status"};
  order.program = "/bin/sh";
  order.output = output;
  order.niceness = 19;
  order.cpus = {0};
  order.memory_bytes = 64U << 20;
  auto group = process_group::start(order);
  BOOST_REQUIRE(group.has_value());
  BOOST_TEST(comes_true([&] { return group->gone(); }));
  BOOST_TEST(read_file(output) == "named\n19\n65536\nCpus_allowed_list:\t0\n");
}

BOOST_FIXTURE_TEST_CASE(a_command_is_handed_one_descriptor_and_no_other, bench) {
  int ends[2], others[2];
  BOOST_REQUIRE(pipe(ends) == 0);
  BOOST_REQUIRE(pipe(others) == 0);
  process_group::order order;
  order.command = {"/bin/sh", "-c", "echo said >&3; ls /proc/self/fd"};
  order.output = output;
  order.socket_fd = ends[1];
  auto group = process_group::start(order);
  BOOST_REQUIRE(group.has_value());
  BOOST_TEST(comes_true([&] { return group->gone(); }));
  char text[8] = "";
  BOOST_TEST(read(ends[0], text, sizeof text) == 5);
  BOOST_TEST(std::string(text) == "said\n");
  BOOST_TEST(read_file(output) == "0\n1\n2\n3\n4\n"); // 4: the folder that ls reads.
  for (const int fd : {ends[0], ends[1], others[0], others[1]})
    close(fd);
}

BOOST_FIXTURE_TEST_CASE(a_program_that_does_not_exist_says_so, bench) {
  auto group = process_group::start({{"/nowhere/at-all"}, {}, output});
  BOOST_REQUIRE(group.has_value());
  BOOST_TEST(comes_true([&] { return group->gone(); }));
  BOOST_TEST(group->ended().value() == 127);
  BOOST_TEST(read_file(output).find("/nowhere/at-all: cannot be executed: No such file") == 0U);
}

BOOST_FIXTURE_TEST_CASE(what_a_command_leaves_behind_in_its_group_ends_with_it, bench) {
  auto group = start("sleep 600 & sleep 600 & exit 0");
  const auto id = group.id();
  BOOST_TEST(comes_true([&] { return group.gone(); }));
  BOOST_TEST(group.ended().value() == 0);
  BOOST_TEST(no_such_group(id));
}

BOOST_FIXTURE_TEST_CASE(a_group_that_ignores_sigterm_is_killed_with_all_its_children, bench) {
  const auto ready = place.path() + "/ready";
  auto group = start("trap '' TERM; (sleep 600; sleep 600) & touch " + ready + "; sleep 600; wait");
  const auto id = group.id();
  BOOST_TEST_REQUIRE(comes_true([&] { return access(ready.c_str(), F_OK) == 0; }));
  group.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  BOOST_TEST(!group.gone());
  group.signal(SIGKILL);
  BOOST_TEST(comes_true([&] { return group.gone(); }));
  BOOST_TEST(group.ended().value() == 128 + SIGKILL);
  BOOST_TEST(no_such_group(id));
}

BOOST_FIXTURE_TEST_CASE(a_command_may_end_well_when_it_is_told_to_stop, bench) {
  const auto ready = place.path() + "/ready";
  auto group = start("trap 'echo saved; exit 0' TERM; touch " + ready + "; sleep 600 & wait");
  BOOST_TEST_REQUIRE(comes_true([&] { return access(ready.c_str(), F_OK) == 0; }));
  group.signal(SIGTERM);
  BOOST_TEST(comes_true([&] { return group.gone(); }));
  BOOST_TEST(group.ended().value() == 0);
  BOOST_TEST(read_file(output) == "saved\n");
}

BOOST_FIXTURE_TEST_CASE(a_group_that_is_let_go_of_ends, bench) {
  pid_t id = 0;
  {
    auto group = start("sleep 600 & sleep 600");
    id = group.id();
  }
  BOOST_TEST(no_such_group(id));
}
