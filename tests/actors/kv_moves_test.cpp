// Two engines that decode together while requests move from one to the other, the network being
// played by the test: what a destination is told, what tokens come out, what is left behind.
#define BOOST_TEST_MODULE kv_moves
#include "actors/kv_moves.hpp"
#include "tests/gpu/engine_world.hpp"

#include <cstring>
#include <deque>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

constexpr std::uint64_t small_rounds = 1; ///< one page a round

/// One rank's part; what it tells its machine is kept.
struct desk {
  std::vector<any_message> told;
  std::deque<kv_arrival> arrivals;
  std::unique_ptr<kv_moves> moves;

  template <class M>
  std::vector<M> all() const {
    std::vector<M> found;
    for (const auto& m : told)
      if (const auto* x = std::get_if<M>(&m)) found.push_back(*x);
    return found;
  }
  template <class M>
  M newest() const {
    const auto found = all<M>();
    BOOST_REQUIRE(!found.empty());
    return found.back();
  }
};

request_spec sample(std::uint64_t id, std::size_t prompt_tokens, std::uint32_t max_tokens) {
  request_spec r;
  r.id = request_id{id};
  r.random_key = 40 + id;
  for (std::size_t i = 0; i < prompt_tokens; ++i)
    r.prompt.push_back(static_cast<token_id>(1 + (i * 7 + id) % 12));
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  return r;
}

struct pair_of_ranks : engine_world {
  desk source, taker;
  std::uint64_t steps = 0;
  bool cut = false;    ///< pulls fail
  bool damage = false; ///< of pages on their way
  int landed = 0;      ///< rounds that went straight into pages
  const move_key key{rollout_id{1}, request_id{1}, 1};

  explicit pair_of_ranks(std::uint64_t round_bytes_max = small_rounds, engine_options o = {})
    : engine_world(collatz, 2, o) {
    attach(source, 0, round_bytes_max);
    attach(taker, 1, round_bytes_max);
  }
  void attach(desk& d, std::size_t rank, std::uint64_t round_bytes_max) {
    kv_moves::surroundings around;
    around.round_bytes_max = round_bytes_max;
    around.tell = [&d](any_message m) { d.told.push_back(std::move(m)); };
    around.arrived = [&d](kv_arrival a) { d.arrivals.push_back(std::move(a)); };
    around.fetch = [this](rank_id, const std::string& name, auto into, auto answer) {
      if (cut) return answer(fail(error_code::peer_lost, "the line is cut"));
      const auto lent = source.moves->shelved(name);
      if (!lent) return answer(tl::unexpected(lent.error()));
      const auto copy = std::make_shared<byte_string>(lent->size());
      lent->copy_to(copy->data());
      landed += into.empty() ? 0 : 1;
      if (damage && !into.empty()) (*copy)[5] ^= std::byte{1};
      const auto* from = copy->data();
      for (const auto& place : into) {
        place.fill(from);
        from += place.size;
      }
      answer(shared_bytes{copy, view(*copy)});
    };
    d.moves = std::make_unique<kv_moves>(at(rank), around);
  }
  void admit(const request_spec& spec) { must(at(0).add_request(spec)); }
  void decode(int count) {
    for (int i = 0; i < count; ++i, ++steps)
      for (auto& out : step())
        for (const auto& f : out.finished) {
          source.moves->ended(f.id);
          taker.moves->ended(f.id);
        }
  }
  void decode_to_the_end() {
    while (live() > 0)
      decode(1);
  }
  void offer() {
    source.moves->on(engine_move_begin{key});
    taker.moves->on(engine_receive_begin{key, source.newest<engine_move_offer>().pages});
  }
  kv_ready round(std::uint32_t number) {
    source.moves->on(engine_move_round{key, number}, steps);
    return source.newest<kv_ready>();
  }
  void deliver(const kv_ready& what) {
    taker.moves->pull({what, rank_id{0}});
    arrive();
  }
  void arrive() {
    for (; !taker.arrivals.empty(); taker.arrivals.pop_front())
      taker.moves->take(taker.arrivals.front(), steps);
  }
  /// Rounds, with `between` steps after each, up to the last, which is not delivered yet.
  kv_ready copy(int between) {
    for (std::uint32_t number = 0;; ++number) {
      const auto what = round(number);
      if (what.last) return what;
      deliver(what);
      BOOST_TEST(taker.newest<kv_taken>().round == number);
      decode(between);
    }
  }
  void check_nothing_left() {
    for (std::size_t r = 0; r < size(); ++r) {
      BOOST_TEST(at(r).kv().used == 0u);
      BOOST_TEST(at(r).kv().promised == 0u);
    }
    BOOST_TEST(source.moves->held() == 0u);
  }
};

/// What the requests give when nobody disturbs them.
std::map<request_id, request_output> undisturbed(const std::vector<request_spec>& specs) {
  pair_of_ranks world;
  for (const auto& s : specs)
    world.admit(s);
  world.decode_to_the_end();
  return std::move(world.outputs);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_request_goes_on_elsewhere_with_the_same_tokens) {
  const std::vector<request_spec> specs{sample(1, 40, 70), sample(2, 20, 90)};
  pair_of_ranks world;
  for (const auto& s : specs)
    world.admit(s);
  world.decode(30);
  world.offer();
  const auto last = world.copy(2);
  BOOST_TEST(last.round >= 3u);
  BOOST_TEST(world.landed == static_cast<int>(last.round));
  BOOST_TEST(world.source.moves->held() == 1u);
  world.decode(2); // the others go on while it is on its way
  world.deliver(last);
  BOOST_TEST(world.taker.newest<move_committed>().at_step == world.steps);
  world.source.moves->on(engine_move_end{world.key, move_outcome::moved});
  const auto figures = world.source.newest<engine_move_ended>();
  BOOST_TEST((figures.outcome == move_outcome::moved));
  BOOST_TEST(figures.rounds == last.round + 1);
  BOOST_TEST(world.steps - figures.stopped_at_step == 2u);
  // Nothing was copied twice: the pages that the request had when it stopped, and little more.
  const auto page_bytes = world.at(0).facts().kv_page_bytes;
  BOOST_TEST(figures.pages == last.round + last.pages);
  BOOST_TEST(figures.bytes >= figures.pages * page_bytes);
  BOOST_TEST(figures.bytes < (figures.pages + 1) * page_bytes);
  BOOST_TEST(world.at(1).live_requests() == 1u);
  world.decode_to_the_end();
  BOOST_TEST(same_bits(undisturbed(specs), world.outputs));
  world.check_nothing_left();
}

BOOST_AUTO_TEST_CASE(rounds_hold_as_many_pages_as_fit) {
  pair_of_ranks world(std::uint64_t{8} << 20);
  world.admit(sample(1, 200, 40));
  world.decode(10);
  world.offer();
  BOOST_TEST(world.round(0).pages >= 12u);
  BOOST_TEST(!world.source.newest<kv_ready>().last);
  BOOST_TEST(world.round(1).last);
}

BOOST_AUTO_TEST_CASE(a_request_that_nobody_takes_goes_on_at_home) {
  const std::vector<request_spec> specs{sample(1, 40, 70)};
  pair_of_ranks world;
  world.admit(specs[0]);
  world.decode(20);
  world.offer();
  const auto last = world.copy(0);
  world.cut = true;
  world.deliver(last);
  BOOST_TEST(contains(world.taker.newest<move_rejected>().text, "line is cut"));
  BOOST_TEST(world.at(1).kv().promised + world.at(1).kv().used == 0u);
  world.source.moves->on(engine_move_end{world.key, move_outcome::given_up});
  BOOST_TEST(world.source.moves->held() == 0u);
  world.decode_to_the_end();
  BOOST_TEST(same_bits(undisturbed(specs), world.outputs));
  world.check_nothing_left();
}

BOOST_AUTO_TEST_CASE(a_round_that_is_lost_or_damaged_leaves_nothing_behind) {
  for (const bool lost : {true, false}) {
    pair_of_ranks world;
    world.admit(sample(1, 60, 30));
    world.decode(5);
    world.offer();
    world.deliver(world.round(0));
    (lost ? world.cut : world.damage) = true;
    world.deliver(world.round(1));
    world.deliver(world.round(2)); // round 1 had been said to be taken
    BOOST_TEST(contains(world.taker.newest<move_rejected>().text, lost ? "cut" : "checksum"));
    BOOST_TEST(world.at(1).kv().promised + world.at(1).kv().used == 0u);
    world.source.moves->on(engine_move_end{world.key, move_outcome::given_up});
    world.decode_to_the_end();
    world.check_nothing_left();
  }
}

BOOST_AUTO_TEST_CASE(rounds_that_overtake_each_other_are_taken_in_order) {
  const std::vector<request_spec> specs{sample(1, 60, 40)};
  pair_of_ranks world;
  world.admit(specs[0]);
  world.decode(5);
  world.offer();
  const auto pull = [&](std::uint32_t number) {
    world.taker.moves->pull({world.round(number), rank_id{0}});
    auto arrived = std::move(world.taker.arrivals);
    world.taker.arrivals.clear();
    return arrived;
  };
  const auto take = [&](const kv_arrival& a) { world.taker.moves->take(a, world.steps); };
  const auto first = pull(0);
  BOOST_REQUIRE(first.size() == 2u);
  take(first[0]); // on its way: the next one may be made
  BOOST_TEST(world.taker.all<kv_taken>().size() == 1u);
  const auto second = pull(1);
  for (const auto& a : second)
    take(a);
  BOOST_TEST(world.taker.all<kv_taken>().size() == 1u);
  take(first[1]);
  BOOST_TEST(world.taker.all<kv_taken>().size() == 2u);
  for (std::uint32_t number = 2; world.taker.all<move_committed>().empty(); ++number)
    world.deliver(world.round(number));
  world.source.moves->on(engine_move_end{world.key, move_outcome::moved});
  world.decode_to_the_end();
  BOOST_TEST(same_bits(undisturbed(specs), world.outputs));
  world.check_nothing_left();
}

BOOST_AUTO_TEST_CASE(a_small_round_that_is_lost_ends_the_move_at_once) {
  pair_of_ranks world(std::uint64_t{8} << 20);
  world.admit(sample(1, 60, 30));
  world.decode(5);
  world.offer();
  world.cut = true;
  world.deliver(world.round(0));
  BOOST_TEST(contains(world.taker.newest<move_rejected>().text, "cut"));
  BOOST_TEST(world.taker.all<kv_taken>().empty());
  BOOST_TEST(world.at(1).kv().promised + world.at(1).kv().used == 0u);
}

BOOST_AUTO_TEST_CASE(a_request_that_ends_in_the_middle_is_not_moved) {
  pair_of_ranks world;
  world.admit(sample(1, 40, 8));
  world.decode(5);
  world.offer();
  world.deliver(world.round(0));
  world.decode_to_the_end();
  BOOST_TEST((world.source.newest<engine_move_ended>().outcome == move_outcome::finished));
  const auto told = world.source.told.size();
  world.source.moves->on(engine_move_round{world.key, 1}, world.steps); // was on its way
  world.source.moves->on(engine_move_end{world.key, move_outcome::given_up});
  BOOST_TEST(world.source.told.size() == told);
  world.taker.moves->on(engine_receive_cancel{world.key});
  BOOST_TEST(world.taker.all<move_cancelled>().size() == 1u);
  world.check_nothing_left();
  world.source.moves->on(engine_move_begin{{rollout_id{1}, request_id{1}, 2}});
  BOOST_TEST((world.source.newest<engine_move_ended>().outcome == move_outcome::finished));
}

BOOST_AUTO_TEST_CASE(what_arrives_after_it_was_given_back_is_dropped) {
  pair_of_ranks world;
  world.admit(sample(1, 40, 30));
  world.decode(5);
  world.offer();
  const auto first = world.round(0);
  world.taker.moves->pull({first, rank_id{0}});
  world.taker.moves->on(engine_receive_cancel{world.key});
  world.arrive();
  BOOST_TEST(world.taker.all<kv_taken>().empty());
  BOOST_TEST(world.at(1).kv().promised + world.at(1).kv().used == 0u);
}

BOOST_AUTO_TEST_CASE(a_destination_without_room_refuses) {
  engine_options tight;
  tight.kv_pages = 8;
  pair_of_ranks world(small_rounds, tight);
  must(world.at(1).add_request(sample(9, 20, 90)));
  world.admit(sample(1, 20, 90));
  world.decode(3);
  world.offer();
  BOOST_TEST(contains(world.taker.newest<move_refused>().text, "KV pages"));
}

BOOST_AUTO_TEST_CASE(a_move_asks_for_no_more_room_than_admission_does) {
  engine_options tight;
  tight.kv_pages = 8;
  tight.reserved_response_tokens = kv_page_tokens;
  const std::vector<request_spec> specs{sample(1, 20, 90)};
  for (const int steps : {3, 60}) { // with its promise, and when it has outgrown that
    pair_of_ranks world(small_rounds, tight);
    must(world.at(1).add_request(sample(9, 20, 12)));
    world.admit(specs[0]);
    world.decode(steps);
    world.offer();
    const auto asked = world.source.newest<engine_move_offer>().pages;
    BOOST_TEST(asked == (steps == 3 ? 3u : 5u));
    const auto last = world.copy(1);
    world.deliver(last);
    BOOST_TEST(world.taker.all<move_committed>().size() == 1u);
    world.source.moves->on(engine_move_end{world.key, move_outcome::moved});
    world.decode_to_the_end();
    auto outputs = world.outputs;
    outputs.erase(request_id{9});
    BOOST_TEST(same_bits(undisturbed(specs), outputs));
    world.check_nothing_left();
  }
}

BOOST_AUTO_TEST_CASE(lent_pages_stay_whole_while_they_are_read_and_then_go_back) {
  pair_of_ranks world;
  auto& from = world.at(0);
  world.admit(sample(1, 60, 30));
  world.decode(5);
  world.offer();
  world.round(0);
  const auto name = kv_blob_name(world.key, 0);
  BOOST_TEST(name == "kv/1/1/1/0");
  std::optional<shared_bytes> reading = must(world.source.moves->shelved(name));
  byte_string before(reading->size()), after(reading->size());
  reading->copy_to(before.data());
  BOOST_TEST(before.size() > from.facts().kv_page_bytes);
  world.round(1);
  BOOST_TEST(world.source.moves->shelved(name).has_value()); // may be asked for late
  world.round(2); // says that round 1 was taken, and so was round 0
  BOOST_TEST(contains(text_of(world.source.moves->shelved(name)), "not offered"));
  world.source.moves->on(engine_move_end{world.key, move_outcome::given_up});
  BOOST_TEST(!world.source.moves->shelved(kv_blob_name(world.key, 2)).has_value());
  world.taker.moves->on(engine_receive_cancel{world.key});
  world.decode_to_the_end();
  BOOST_TEST(from.kv().used == 1u); // the page that is being read
  world.admit(sample(2, 300, 30));  // takes all pages that are free
  world.decode_to_the_end();
  reading->copy_to(after.data());
  BOOST_TEST((before == after));
  world.source.moves->tidy();
  BOOST_TEST(from.kv().used == 1u);
  must(from.update_weights(collatz, weights_id{2})); // drops the pool that the page is in
  reading->copy_to(after.data());
  BOOST_TEST((before == after));
  reading.reset();
  world.source.moves->tidy();
  world.check_nothing_left();
}
