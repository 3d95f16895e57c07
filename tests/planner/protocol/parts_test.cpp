// Membership, time line and expert placement.
#define BOOST_TEST_MODULE protocol_parts
#include "planner/protocol/expert_placement.hpp"
#include "planner/protocol/membership.hpp"
#include "planner/protocol/timeline.hpp"
#include "tests/planner/protocol/fixture.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

std::vector<rank_id> ranks(std::initializer_list<std::uint32_t> numbers) {
  std::vector<rank_id> out;
  for (auto n : numbers)
    out.emplace_back(n);
  return out;
}

bench<membership_machine> three_members() {
  membership_config c;
  c.world_size = 3;
  c.silence_max = ms(600);
  return bench<membership_machine>(
      membership_machine(c, term_id{1}, time_point{microseconds{1'000'000}}));
}

envelope beat(std::uint32_t rank, incarnation_id incarnation) {
  auto e = say(rank, role_kind::rank, role_at(rank_id{0}, role_kind::membership),
               heartbeat{incarnation, epoch_id{1}, 5, ms(1)});
  e.incarnation = incarnation;
  return e;
}

} // namespace

BOOST_AUTO_TEST_SUITE(membership_decides)

BOOST_AUTO_TEST_CASE(a_silent_rank_is_lost_once_and_the_others_are_not) {
  auto b = three_members();
  effects out;
  for (int i = 0; i < 12; ++i) {
    b.tell(beat(0, process_of(0)));
    b.tell(beat(2, process_of(2)));
    const auto more = b.wait(ms(100));
    out.insert(out.end(), more.begin(), more.end());
  }
  const auto lost = sent<member_lost>(out);
  BOOST_REQUIRE_EQUAL(lost.size(), 2u); // planner and broker, once each
  BOOST_TEST(lost[0].rank == rank_id{1});
  BOOST_TEST(sent<member_lost>(out, role_kind::planner).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_frozen_rank_that_thaws_stays_dead_and_is_told_so) {
  auto b = three_members();
  b.tell(beat(1, process_of(1)));
  b.wait(ms(800));
  BOOST_REQUIRE(b.machine.peers[rank_id{1}].lost);
  const auto told = b.tell(beat(1, process_of(1)));
  BOOST_REQUIRE_EQUAL(told.size(), 1u);
  const auto news = sent<member_lost>(told, role_kind::rank);
  BOOST_REQUIRE_EQUAL(news.size(), 1u);
  BOOST_TEST(news[0].incarnation == process_of(1));
  BOOST_TEST(b.tell(beat(1, incarnation_id{77})).empty());
  BOOST_TEST(b.machine.drops.stale_incarnation == 1u);
}

BOOST_AUTO_TEST_CASE(a_heartbeat_of_another_incarnation_is_dropped) {
  auto b = three_members();
  BOOST_TEST(sent<heartbeat_seen>(b.tell(beat(1, process_of(1)))).size() == 1u);
  BOOST_TEST(b.tell(beat(1, incarnation_id{77})).empty());
  BOOST_TEST(b.machine.drops.stale_incarnation == 1u);
}

BOOST_AUTO_TEST_CASE(a_process_that_was_itself_stopped_blames_nobody) {
  auto b = three_members();
  b.now += ms(5000);
  effects out;
  tick(b.machine, b.now, out);
  BOOST_TEST(sent<member_lost>(out).empty());
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(timeline_adds_up)

BOOST_AUTO_TEST_CASE(intervals_touch_and_cover) {
  timeline t;
  begin(t, ms(100));
  note_engine(t, rank_state::busy, ms(110));
  note_engine(t, rank_state::dummy, ms(150));
  note_engine(t, rank_state::idle, ms(200));
  note_lease(t, true, ms(220));
  note_lease(t, false, ms(300));
  const auto x = finish(t, ms(1100), ms(1350), ms(1000));
  const std::vector<interval> wanted{
      {rank_state::idle, ms(1100), ms(1110)},   {rank_state::busy, ms(1110), ms(1150)},
      {rank_state::dummy, ms(1150), ms(1200)},  {rank_state::idle, ms(1200), ms(1220)},
      {rank_state::leased, ms(1220), ms(1300)}, {rank_state::idle, ms(1300), ms(1350)}};
  BOOST_TEST((x == wanted));
}

BOOST_AUTO_TEST_CASE(stamps_out_of_order_lose_and_double_nothing) {
  timeline t;
  begin(t, ms(0));
  note_engine(t, rank_state::dummy, ms(10));
  note_lease(t, true, ms(50));
  note_engine(t, rank_state::idle, ms(45)); // late news: was already counted as leased
  note_lease(t, false, ms(90));
  note_engine(t, rank_state::transition, ms(80));
  const auto x = finish(t, ms(0), ms(100), ms(0));
  microseconds at{0};
  for (const auto& i : x) {
    BOOST_TEST((i.begin == at && i.end > i.begin));
    at = i.end;
  }
  BOOST_TEST((at == ms(100)));
  BOOST_TEST((x.back() == interval{rank_state::transition, ms(90), ms(100)}));
}

BOOST_AUTO_TEST_CASE(a_clock_that_is_far_off_still_covers) {
  timeline t;
  begin(t, ms(50'000));
  note_engine(t, rank_state::busy, ms(50'010));
  const auto x = finish(t, ms(10), ms(20), ms(0));
  BOOST_REQUIRE_EQUAL(x.size(), 1u);
  BOOST_TEST((x[0].begin == ms(10) && x[0].end == ms(20)));
}

BOOST_AUTO_TEST_CASE(more_changes_than_fit_are_merged) {
  timeline t;
  begin(t, ms(0));
  for (int i = 1; i < 10'000; ++i)
    note_engine(t, i % 2 ? rank_state::busy : rank_state::dummy, ms(i));
  const auto x = finish(t, ms(0), ms(10'000), ms(0));
  BOOST_TEST(x.size() <= timeline_intervals_max + 1);
  BOOST_TEST((x.front().begin == ms(0) && x.back().end == ms(10'000)));
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(expert_maps)

BOOST_AUTO_TEST_CASE(home_owners_are_contiguous_and_even) {
  BOOST_TEST((home_owners(4, 2) == ranks({0, 0, 1, 1})));
  const auto uneven = home_owners(7, 3);
  BOOST_TEST(std::is_sorted(uneven.begin(), uneven.end()));
  for (std::uint32_t r = 0; r < 3; ++r) {
    BOOST_TEST(experts_of(uneven, rank_id{r}) >= 2u);
    BOOST_TEST(experts_of(uneven, rank_id{r}) <= 3u);
  }
}

BOOST_AUTO_TEST_CASE(survivors_keep_theirs_and_no_slot_is_one_short) {
  for (std::uint32_t world = 2; world <= 16; ++world)
    for (std::uint32_t experts = world; experts <= 40; experts += 3) {
      auto owners = home_owners(experts, world);
      auto members = world;
      for (auto size = world / 2; size >= 1; size /= 2) {
        std::vector<rank_id> survivors; // every other rank of the group, from the top
        for (std::uint32_t i = 0; i < size; ++i)
          survivors.emplace_back(world - 1 - i);
        std::sort(survivors.begin(), survivors.end());
        const auto next = contract_owners(owners, survivors);
        BOOST_REQUIRE(check_map(next, survivors));
        for (std::uint32_t e = 0; e < experts; ++e)
          if (std::binary_search(survivors.begin(), survivors.end(), owners[e]))
            BOOST_REQUIRE(next[e] == owners[e]);
        for (auto rank : survivors)
          BOOST_REQUIRE(experts_of(next, rank) <= (experts + size - 1) / size);
        owners = next;
        members = size;
      }
      BOOST_REQUIRE(members == 1);
    }
}

BOOST_AUTO_TEST_CASE(an_expert_on_no_member_is_named) {
  const auto bad = check_map(ranks({0, 0, 3, 1}), ranks({0, 1}));
  BOOST_REQUIRE(!bad);
  BOOST_TEST(bad.error().text.find("expert 2") != std::string::npos);
  BOOST_TEST(bad.error().text.find("rank 3") != std::string::npos);
  BOOST_TEST(!check_map({}, ranks({0})));
}

BOOST_AUTO_TEST_CASE(different_maps_have_different_hashes) {
  BOOST_TEST(expert_map_hash(ranks({0, 0, 1, 1})) != expert_map_hash(ranks({0, 1, 0, 1})));
}

BOOST_AUTO_TEST_SUITE_END()
