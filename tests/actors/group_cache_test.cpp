#define BOOST_TEST_MODULE group_cache
#include "actors/group_cache.hpp"
#include "gpu/loopback.hpp"

#include <boost/test/unit_test.hpp>

#include <optional>

using namespace adafloor;

namespace {

struct two_ranks {
  std::vector<std::unique_ptr<collective_fabric>> fabrics =
      make_loopback_fabrics(2, std::chrono::milliseconds{1000});
  group_cache groups{*fabrics[0]};
  const std::vector<rank_id> both{rank_id{0}, rank_id{1}}, own{rank_id{0}};
};

} // namespace

BOOST_FIXTURE_TEST_CASE(a_kept_group_is_made_once_and_enters_every_epoch, two_ranks) {
  BOOST_REQUIRE(groups.keep(epoch_id{1}, own).has_value());
  BOOST_REQUIRE(groups.keep(epoch_id{1}, own).has_value());
  const auto first = groups.take(epoch_id{1}, own);
  BOOST_REQUIRE(first.has_value());
  for (std::uint64_t epoch = 2; epoch < 60; ++epoch) {
    const auto again = groups.take(epoch_id{epoch}, own);
    BOOST_REQUIRE(again.has_value());
    BOOST_TEST((*again == *first));
    BOOST_TEST((*again)->epoch() == epoch_id{epoch});
  }
  BOOST_TEST(groups.made() == 1u);
  BOOST_TEST(groups.kept() == 1u);
}

BOOST_FIXTURE_TEST_CASE(any_other_group_goes_with_its_epoch, two_ranks) {
  std::weak_ptr<communicator> before;
  for (std::uint64_t epoch = 1; epoch < 10; ++epoch) {
    const auto group = groups.take(epoch_id{epoch}, both);
    BOOST_REQUIRE(group.has_value());
    BOOST_TEST(before.expired());
    before = *group;
  }
  BOOST_TEST(groups.made() == 9u);
  BOOST_TEST(groups.kept() == 0u);
}

BOOST_FIXTURE_TEST_CASE(epochs_never_fall_and_bad_groups_are_refused, two_ranks) {
  BOOST_REQUIRE(groups.keep(epoch_id{5}, own).has_value());
  BOOST_TEST(!groups.take(epoch_id{4}, own).has_value());
  BOOST_TEST(!groups.keep(epoch_id{5}, {rank_id{1}}).has_value());
  BOOST_TEST(groups.kept() == 1u);
}

BOOST_AUTO_TEST_CASE(a_group_that_a_restore_uses_is_not_destroyed) {
  auto fabrics = make_loopback_fabrics(1, std::chrono::milliseconds{1000});
  const std::vector<rank_id> own{rank_id{0}};
  for (const bool keeps : {false, true}) {
    std::optional<group_cache> groups{*fabrics[0]};
    if (keeps) BOOST_REQUIRE(groups->keep(epoch_id{1}, own).has_value());
    const auto used = groups->take(epoch_id{2}, own).value();
    for (std::uint64_t epoch = 3; epoch < 6; ++epoch) // other epochs come and go
      BOOST_REQUIRE(groups->take(epoch_id{epoch}, own).has_value());
    BOOST_REQUIRE(!groups->take(epoch_id{6}, {rank_id{1}}).has_value());
    groups.reset();
    std::vector<bytes_view> in;
    BOOST_TEST(used->exchange({1, 0, exchange_id::header}, {{}}, &in).has_value());
  }
}
