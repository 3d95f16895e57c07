// Four ranks' loops that decode together in one process, their machines played by the test: who
// takes part in which exchange, and when a member leaves.
#define BOOST_TEST_MODULE engine_loop
#include "actors/engine_loop.hpp"
#include "tests/gpu/engine_world.hpp"

#include <array>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

constexpr auto patience = std::chrono::seconds(60);

/// Counts the exchanges of a rank and holds them at a step of epoch 1, so that a test can say
/// between which steps a message arrives.
class turnstile {
public:
  void pass(epoch_id epoch, std::uint64_t step) {
    std::unique_lock lock(mutex_);
    ++passed_;
    if (epoch != epoch_id{1}) return;
    reached_ = std::max(reached_, step);
    moved_.notify_all();
    moved_.wait_for(lock, patience, [&] { return step < open_to_; });
  }
  void open(std::uint64_t to = UINT64_MAX) {
    std::lock_guard lock(mutex_);
    open_to_ = to;
    moved_.notify_all();
  }
  bool reaches(std::uint64_t step) {
    std::unique_lock lock(mutex_);
    return moved_.wait_for(lock, patience, [&] { return reached_ >= step; });
  }
  std::uint64_t passed() {
    std::lock_guard lock(mutex_);
    return passed_;
  }

private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::uint64_t open_to_ = UINT64_MAX, reached_ = 0, passed_ = 0;
};

struct watched_group final : communicator {
  watched_group(std::unique_ptr<communicator> of, turnstile& at) : inner(std::move(of)), gate(at) {}
  epoch_id epoch() const override { return inner->epoch(); }
  const std::vector<rank_id>& members() const override { return inner->members(); }
  std::size_t self_index() const override { return inner->self_index(); }
  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    gate.pass(epoch(), id.step);
    return inner->exchange(id, outgoing, incoming);
  }
  result<void> enter(epoch_id e) override { return inner->enter(e); }
  void abort() noexcept override { inner->abort(); }

  std::unique_ptr<communicator> inner;
  turnstile& gate;
};

struct watched_fabric final : collective_fabric {
  watched_fabric(std::unique_ptr<collective_fabric> of, turnstile& at)
    : inner(std::move(of)), gate(at) {}
  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override {
    auto made = inner->make_group(epoch, std::move(members));
    if (!made) return made;
    return std::make_unique<watched_group>(std::move(*made), gate);
  }

  std::unique_ptr<collective_fabric> inner;
  turnstile& gate;
};

/// One rank's loop and all that it told.
struct seat {
  turnstile gate;
  std::unique_ptr<watched_fabric> fabric;
  std::unique_ptr<engine_loop> loop;
  std::mutex mutex;
  std::condition_variable came;
  std::vector<any_message> told;

  template <class M>
  std::vector<M> all() {
    std::lock_guard lock(mutex);
    std::vector<M> found;
    for (const auto& m : told)
      if (const auto* x = std::get_if<M>(&m)) found.push_back(*x);
    return found;
  }
  /// Waits for the first message for which `is` holds.
  template <class M, class F>
  M hears(F is) {
    std::optional<M> found;
    std::unique_lock lock(mutex);
    BOOST_REQUIRE(came.wait_for(lock, patience, [&] {
      for (const auto& m : told)
        if (const auto* x = std::get_if<M>(&m); x && is(*x)) found = *x;
      return found.has_value();
    }));
    return *found;
  }
  engine_state rests(std::uint64_t rollout) {
    return hears<engine_state>([&](const engine_state& s) {
      return s.rollout == rollout_id{rollout} && s.state == rank_state::idle;
    });
  }
  switched switches(epoch_id epoch) {
    return hears<switched>([&](const switched& s) { return s.epoch == epoch; });
  }
};

constexpr epoch_id second{2}, third{3};

struct four_ranks {
  static constexpr std::uint32_t count = 4;
  std::array<seat, count> seats;
  std::vector<rank_id> home;

  four_ranks() {
    auto fabrics = make_loopback_fabrics(count);
    home = must(home_expert_map(16, count)).owner_of;
    for (std::uint32_t r = 0; r < count; ++r) {
      auto& s = seats[r];
      s.fabric = std::make_unique<watched_fabric>(std::move(fabrics[r]), s.gate);
      engine_options options;
      options.world_size = count;
      options.self = rank_id{r};
      engine_surroundings around;
      around.fabric = s.fabric.get();
      around.post = [&s](envelope e) {
        std::lock_guard lock(s.mutex);
        s.told.push_back(std::move(e.body));
        s.came.notify_all();
      };
      around.fetch = [this](rank_id from, const std::string& name, auto into, auto answer) {
        const auto lent = seats[from.value].loop->exported(name);
        if (!lent) return answer(tl::unexpected(lent.error()));
        byte_string copy(lent->size());
        lent->copy_to(copy.data());
        const auto* at = copy.data();
        for (const auto& place : into) {
          place.fill(at);
          at += place.size;
        }
        answer(shared_bytes{});
      };
      around.fabric_address = [] { return std::string{}; };
      around.weights_changed = [](weights_id) {};
      s.loop = must(engine_loop::start(collatz, options, around));
    }
  }
  ~four_ranks() {
    for (auto& s : seats)
      s.gate.open();
    for (auto& s : seats)
      s.loop.reset();
  }

  void push(std::uint32_t rank, any_message m) {
    envelope e;
    e.body = std::move(m);
    seats[rank].loop->push(e);
  }
  void push_all(const any_message& m) {
    for (std::uint32_t r = 0; r < count; ++r)
      push(r, m);
  }
  /// Eight requests on rank 0; the others have none.
  void start(std::uint64_t rollout = 1) {
    engine_admit admission{rollout_id{rollout}, {}};
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto spec = sampled_request(i);
      admission.requests.push_back({spec.id, spec.random_key, spec.prompt, 90, {}});
    }
    push(0, admission);
    push_all(engine_start{rollout_id{rollout}});
  }
  /// Orders a group of these members; what others own goes to them.
  void prepare(epoch_id epoch, const std::vector<rank_id>& members) {
    auto owners = home;
    for (std::size_t e = 0; e < owners.size(); ++e)
      if (std::find(members.begin(), members.end(), owners[e]) == members.end())
        owners[e] = members[e % members.size()];
    push_all(engine_prepare{epoch, members, owners});
  }
  void all_prepared(epoch_id epoch) {
    for (auto& s : seats)
      s.hears<engine_prepared>([&](const engine_prepared& p) { return p.epoch == epoch; });
  }
  /// Rank 0 decodes and is held in step 40 of the rollout; all are ready to go on without 2 and 3.
  void prepare_to_leave() {
    seats[0].gate.open(10);
    start();
    BOOST_REQUIRE(seats[0].gate.reaches(10));
    prepare(second, {rank_id{0}, rank_id{1}});
    seats[0].gate.open(40);
    all_prepared(second);
    BOOST_REQUIRE(seats[0].gate.reaches(40));
  }
  std::map<request_id, std::vector<token_id>> responses() {
    std::map<request_id, std::vector<token_id>> all;
    for (const auto& r : seats[0].all<response>())
      all[r.request] = r.tokens;
    return all;
  }
  void check_none_failed() {
    for (auto& s : seats)
      for (const auto& f : s.all<engine_failed>())
        BOOST_ERROR(f.text);
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(an_idle_member_joins_every_exchange_to_the_end, four_ranks) {
  start();
  const auto steps = seats[0].rests(1).step;
  BOOST_TEST(steps > 60u);
  for (auto& s : seats) {
    BOOST_TEST(s.rests(1).step == steps);
    BOOST_TEST(s.gate.passed() == seats[0].gate.passed());
  }
  BOOST_TEST(responses().size() == 8u);
  check_none_failed();
}

BOOST_FIXTURE_TEST_CASE(all_switch_after_the_same_step_however_late_one_hears_the_commit,
                        four_ranks) {
  prepare_to_leave();
  push(0, engine_commit{second});
  push(1, engine_commit{second});
  push(3, engine_commit{second});
  seats[0].gate.open(55);
  BOOST_REQUIRE(seats[0].gate.reaches(55));
  for (auto& s : seats)
    BOOST_TEST(s.all<switched>().empty()); // rank 2 has not heard of it
  push(2, engine_commit{second});
  seats[0].gate.open();
  const auto at = seats[0].switches(second).at_step;
  BOOST_TEST(at >= 56u);
  for (auto& s : seats)
    BOOST_TEST(s.switches(second).at_step == at); // and not each when it heard of it
  BOOST_TEST(seats[0].rests(1).step > at);
  const auto moved = responses();
  four_ranks quiet;
  quiet.start();
  quiet.seats[0].rests(1);
  BOOST_TEST((moved == quiet.responses()));
  check_none_failed();
}

BOOST_FIXTURE_TEST_CASE(late_messages_do_not_wake_a_departed_rank, four_ranks) {
  prepare_to_leave();
  push_all(engine_commit{second});
  seats[0].gate.open(50);
  seats[2].switches(second);
  seats[2].rests(1);
  const auto passed = seats[2].gate.passed();
  push(2, engine_start{rollout_id{1}});
  push(2, engine_start{rollout_id{2}});
  push(2, engine_commit{second});
  seats[0].gate.open();
  seats[0].rests(1);
  seats[1].rests(1);
  const auto at_rest = seats[0].gate.passed();
  push_all(engine_start{rollout_id{1}}); // nor a member whose rollout is done
  prepare(third, {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}});
  all_prepared(third); // what was pushed before is done with
  BOOST_TEST(seats[0].gate.passed() == at_rest);
  BOOST_TEST(seats[2].gate.passed() == passed);
  BOOST_TEST((seats[2].all<engine_state>().back().state == rank_state::idle));
  BOOST_TEST((seats[0].all<engine_state>().back().state == rank_state::idle));
  check_none_failed();
}

BOOST_FIXTURE_TEST_CASE(a_transition_exchanges_nothing_over_the_group, four_ranks) {
  prepare_to_leave();
  push_all(engine_commit{second});
  seats[0].gate.open();
  std::array<std::uint64_t, count> passed{};
  for (std::uint32_t r = 0; r < count; ++r) {
    seats[r].rests(1);
    passed[r] = seats[r].gate.passed();
  }
  prepare(third, {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}});
  all_prepared(third);
  push(1, engine_commit{third}); // each by itself, waiting for no other
  seats[1].switches(third);
  push(0, engine_commit{third});
  seats[0].switches(third);
  for (std::uint32_t r : {2, 3}) {
    push(r, engine_commit{third});
    seats[r].switches(third);
  }
  for (std::uint32_t r = 0; r < count; ++r)
    BOOST_TEST(seats[r].gate.passed() == passed[r]);
  start(2);
  for (auto& s : seats)
    BOOST_TEST(s.rests(2).step == seats[0].rests(2).step);
  BOOST_TEST(seats[2].gate.passed() > passed[2]);
  check_none_failed();
}

BOOST_FIXTURE_TEST_CASE(new_weights_wait_for_the_forward_that_runs, four_ranks) {
  seats[0].gate.open(10);
  start();
  BOOST_REQUIRE(seats[0].gate.reaches(10));
  const update_weights order{weights_id{2}, golden + "models/collatz-moe-v1", 0, 0};
  push(1, order); // owns no request, and yet its experts serve those of rank 0
  seats[0].gate.open(20);
  BOOST_REQUIRE(seats[0].gate.reaches(20));
  BOOST_TEST(seats[1].all<weights_refused>().size() == 1u);
  BOOST_TEST(seats[1].all<weights_updated>().empty());
  seats[0].gate.open();
  seats[0].rests(1);
  seats[1].rests(1);
  push(1, order);
  seats[1].hears<weights_updated>([](const weights_updated& w) { return w.version.value == 2; });
  check_none_failed();
}
