#define BOOST_TEST_MODULE machine_actor
// The generic shell and the router under CAF's deterministic scheduler.
#include "actors/machine_actor.hpp"
#include "actors/router.hpp"
#include "messages/codec.hpp"

#include <boost/test/unit_test.hpp>
#include <caf/scheduler/test_coordinator.hpp>

using namespace adafloor;

namespace {

struct deterministic {
  struct config : caf::actor_system_config {
    config() {
      add_message_types<caf::id_block::adafloor>();
      set("scheduler.policy", caf::atom("testing"));
    }
  };
  config cfg;
  caf::actor_system sys{cfg};
  caf::scheduler::test_coordinator& sched =
      dynamic_cast<caf::scheduler::test_coordinator&>(sys.scheduler());
  deterministic() { sched.clock().current_time += std::chrono::hours(1); }
  void settle() {
    while (sched.has_job())
      sched.try_run_once();
  }
};

/// Answers each heartbeat and counts ticks in what it sends to the trainer.
struct echo_machine {
  identity who;
  std::uint64_t ticks = 0;
};
void step(echo_machine& m, const envelope& e, time_point, effects& out) {
  if (const auto* h = std::get_if<heartbeat>(&e.body))
    post(m.who, e.from, heartbeat_seen{h->step, {}, {}}, out);
}
void tick(echo_machine& m, time_point, effects& out) {
  post(m.who, {m.who.self.rank, role_kind::trainer}, heartbeat_seen{++m.ticks, {}, {}}, out);
}
struct echo_role {
  static constexpr auto name = "echo";
  using machine = echo_machine;
  struct accepts {
    static bool contains(const any_message& m) { return std::holds_alternative<heartbeat>(m); }
  };
};

struct world : deterministic {
  router out{rank_id(0), incarnation_id(7)};
  std::vector<envelope> trainer_got;
  role_actor echo;
  world() {
    out.attach(role_kind::trainer, [this](const envelope& e) { trainer_got.push_back(e); });
    echo_machine m{{{rank_id(0), role_kind::membership}, {}}, 0};
    echo = spawn_machine(sys, std::make_shared<boxed<echo_role>>(m), out, microseconds{100'000});
    out.attach(role_kind::membership, echo);
    settle();
  }
  ~world() {
    caf::anon_send_exit(echo, caf::exit_reason::kill);
    echo = nullptr;
    out.detach_all();
    settle();
    sched.clock().cancel_all();
    settle();
  }
  envelope to_echo(any_message body, rank_id from = rank_id(0)) {
    return {{from, role_kind::trainer}, {rank_id(0), role_kind::membership}, {}, {}, body};
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_message_is_stepped_and_the_answer_carries_the_incarnation) {
  world w;
  w.trainer_got.clear();
  w.out.post(w.to_echo(heartbeat{incarnation_id(1), {}, 42, {}}));
  w.settle();
  BOOST_REQUIRE_EQUAL(w.trainer_got.size(), 1u);
  BOOST_TEST(std::get<heartbeat_seen>(w.trainer_got[0].body).step == 42u);
  BOOST_TEST((w.trainer_got[0].incarnation == incarnation_id(7)));
}

BOOST_AUTO_TEST_CASE(time_passes_in_ticks) {
  world w;
  w.trainer_got.clear();
  for (int i = 0; i < 5; ++i) {
    w.sched.advance_time(std::chrono::milliseconds(100));
    w.settle();
  }
  BOOST_TEST(w.trainer_got.size() == 5u);
}

BOOST_AUTO_TEST_CASE(a_message_that_the_role_does_not_accept_is_counted_and_ignored) {
  world w;
  w.trainer_got.clear();
  w.out.post(w.to_echo(settled{}));
  w.settle();
  BOOST_TEST(w.trainer_got.empty());
  BOOST_TEST(w.out.stats().misdirected == 1u);
}

BOOST_AUTO_TEST_CASE(frames_from_the_wire_are_checked_before_they_reach_a_role) {
  world w;
  w.trainer_got.clear();
  const auto good = encode(w.to_echo(heartbeat{incarnation_id(1), {}, 3, {}}, rank_id(2)));
  BOOST_TEST(w.out.receive(rank_id(2), "garbage"));
  BOOST_TEST(w.out.stats().undecodable == 1u);
  BOOST_TEST(w.out.receive(rank_id(3), good)); // Says that it is from rank 2.
  BOOST_TEST(w.out.stats().misdirected == 1u);
  BOOST_TEST(w.out.receive(rank_id(2), good));
  BOOST_TEST(w.out.stats().received == 1u);
}

BOOST_AUTO_TEST_CASE(unread_frames_are_bounded_and_reading_makes_room_again) {
  world w;
  const auto frame = encode(w.to_echo(settled{}, rank_id(2)));
  std::size_t taken = 0;
  while (taken < 100'000 && w.out.receive(rank_id(2), frame))
    ++taken;
  BOOST_TEST(taken < 100'000u);
  BOOST_TEST(taken > 0u);
  w.settle();
  BOOST_TEST(w.out.receive(rank_id(2), frame));
  w.settle();
}
