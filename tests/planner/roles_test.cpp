#define BOOST_TEST_MODULE roles
// Who stays, who leaves, what moves.
#include "planner/plan/chance.hpp"
#include "planner/plan/roles.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>

using namespace adafloor;

namespace {

std::vector<rank_id> ranks(std::initializer_list<std::uint32_t> list) {
  std::vector<rank_id> out;
  for (auto r : list)
    out.emplace_back(r);
  return out;
}

std::vector<rank_id> first(std::uint32_t count) {
  std::vector<rank_id> out;
  for (std::uint32_t r = 0; r < count; ++r)
    out.emplace_back(r);
  return out;
}

const std::vector<planned_exit> stages{{100, 8}, {200, 4}, {300, 2}};

} // namespace

BOOST_AUTO_TEST_CASE(nine_to_seven_in_one_step_still_shrinks) {
  BOOST_TEST(!next_group(stages, 16, 9).has_value());
  auto to = next_group(stages, 16, 7);
  BOOST_REQUIRE(to.has_value());
  BOOST_TEST(*to == 8);
  auto stay = survivors_for(ranks({3, 5, 6, 9, 11, 12, 15}), first(16), *to);
  BOOST_REQUIRE(stay.has_value());
  BOOST_TEST((*stay == ranks({0, 3, 5, 6, 9, 11, 12, 15}))); // padded with the lowest finished rank
}

BOOST_AUTO_TEST_CASE(five_to_one_still_visits_four_and_two) {
  auto group = first(8);
  auto to = next_group(stages, 8, 1);
  BOOST_TEST((to == 4));
  auto four = survivors_for(ranks({6}), group, *to);
  BOOST_REQUIRE(four.has_value());
  BOOST_TEST((*four == ranks({0, 1, 2, 6})));
  to = next_group(stages, 4, 1);
  BOOST_TEST((to == 2));
  auto two = survivors_for(ranks({6}), *four, *to);
  BOOST_REQUIRE(two.has_value());
  BOOST_TEST((*two == ranks({0, 6})));
  BOOST_TEST(!next_group(stages, 2, 1).has_value());
  BOOST_TEST((next_group(stages, 16, 1, true) == 2)); // a direct jump
}

BOOST_AUTO_TEST_CASE(impossible_survivors_are_refused_with_the_reason) {
  auto many = survivors_for(ranks({0, 1, 2}), first(4), 2);
  BOOST_REQUIRE(!many.has_value());
  BOOST_TEST(many.error().text.find("3 ranks are unfinished") != std::string::npos);
  auto stranger = survivors_for(ranks({9}), first(4), 2);
  BOOST_REQUIRE(!stranger.has_value());
  BOOST_TEST(stranger.error().text.find("rank 9") != std::string::npos);
  BOOST_TEST(!survivors_for({}, first(4), 5).has_value());
  BOOST_TEST(!survivors_for({}, first(4), 0).has_value());
  auto last = planned_survivors(first(8), 3);
  BOOST_REQUIRE(last.has_value());
  BOOST_TEST((*last == ranks({5, 6, 7})));
}

BOOST_AUTO_TEST_CASE(packing_keeps_every_limit_and_every_request) {
  int packed = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    std::uint64_t n = 0;
    auto roll = [&](int below) {
      return static_cast<int>(draw_bits(seed, 1, n++) % static_cast<std::uint64_t>(below));
    };
    std::vector<packed_request> live;
    int world = 4 + roll(5), size = 1 + roll(world - 1);
    for (int i = roll(40); i >= 0; --i) {
      double tokens = roll(1000);
      live.push_back({static_cast<std::uint64_t>(i),
                      rank_id{static_cast<std::uint32_t>(roll(world))}, tokens,
                      tokens + 1 + roll(2000)});
    }
    pack_limits limits{4 + roll(8), 3000.0 + roll(12000)};
    auto found = pack_live(live, first(static_cast<std::uint32_t>(world)), size, limits);
    if (!found) {
      ++refused;
      continue;
    }
    ++packed;
    BOOST_TEST(found->survivors.size() == static_cast<std::size_t>(size));
    std::map<std::uint64_t, rank_id> moved;
    for (const auto& move : found->moves)
      BOOST_TEST(moved.emplace(move.request, move.to).second);
    std::map<std::uint32_t, std::vector<const packed_request*>> by_rank;
    for (const auto& r : live) {
      auto place = moved.find(r.request);
      by_rank[(place == moved.end() ? r.rank : place->second).value].push_back(&r);
    }
    for (const auto& [rank, requests] : by_rank) {
      BOOST_TEST(
          std::binary_search(found->survivors.begin(), found->survivors.end(), rank_id{rank}));
      BOOST_TEST(static_cast<int>(requests.size()) <= limits.max_num_seqs);
      BOOST_TEST(future_peak(requests) <= limits.capacity_tokens + 1e-6);
    }
  }
  BOOST_TEST(packed > 50);
  BOOST_TEST(refused > 50);
}

BOOST_AUTO_TEST_CASE(planned_residency_packs_onto_the_last_ranks) {
  std::vector<packed_request> live{
      {0, rank_id{0}, 10, 20}, {1, rank_id{0}, 10, 30}, {2, rank_id{3}, 5, 9}};
  auto natural = pack_live(live, first(4), 2, {4, 0, false});
  auto planned = pack_live(live, first(4), 2, {4, 0, true});
  BOOST_REQUIRE((natural.has_value() && planned.has_value()));
  BOOST_TEST((natural->survivors == ranks({0, 3})));
  BOOST_TEST(natural->moves.empty());
  BOOST_TEST((planned->survivors == ranks({2, 3})));
  BOOST_TEST(planned->moves.size() == 2U);
}
