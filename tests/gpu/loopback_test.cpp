#define BOOST_TEST_MODULE loopback
#include "gpu/loopback.hpp"
#include "tests/gpu/communicator_conformance.hpp"

using namespace adafloor;

BOOST_AUTO_TEST_CASE(conformance) {
  tests::run_communicator_conformance([](std::uint32_t ranks) {
    return make_loopback_fabrics(ranks, std::chrono::milliseconds(20'000));
  });
}

BOOST_AUTO_TEST_CASE(a_silent_member_times_out) {
  auto fabrics = make_loopback_fabrics(2, std::chrono::milliseconds(50));
  auto group = fabrics[0]->make_group(epoch_id{4}, tests::first_ranks(2));
  BOOST_REQUIRE(group);
  std::vector<bytes_view> outgoing(2), incoming;
  auto done = (*group)->exchange({7, 2, exchange_id::combine}, outgoing, &incoming);
  BOOST_REQUIRE(!done);
  BOOST_TEST((done.error().code == error_code::timed_out));
  BOOST_TEST(done.error().text
             == "loopback: timed out waiting for rank 1 in step 7 layer 2 combine of epoch 4");
}

BOOST_AUTO_TEST_CASE(leavers_may_exit_while_the_others_regroup) {
  tests::conformance_leavers_exit([](std::uint32_t ranks) {
    return make_loopback_fabrics(ranks, std::chrono::milliseconds(20'000));
  });
}
