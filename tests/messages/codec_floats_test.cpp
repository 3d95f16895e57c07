#define BOOST_TEST_MODULE codec_floats
#include "messages/codec.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <limits>

using namespace adafloor;

namespace {

envelope with(std::vector<float> logprobs) {
  envelope e;
  e.body = response{rollout_id(1), request_id(2), {}, std::move(logprobs), finish_reason::eos, 3};
  return e;
}

} // namespace

BOOST_AUTO_TEST_CASE(log_probabilities_arrive_with_the_bits_they_left_with) {
  using limits = std::numeric_limits<float>;
  const std::vector<float> sent{-0.0F,
                                0.0F,
                                -1.0F,
                                -0.1F,
                                limits::denorm_min(),
                                -limits::max(),
                                -limits::infinity(),
                                limits::quiet_NaN()};
  const auto back = decode(encode(with(sent)));
  BOOST_REQUIRE(back.has_value());
  const auto& got = std::get<response>(back->body).logprobs;
  BOOST_REQUIRE_EQUAL(got.size(), sent.size());
  BOOST_TEST(std::memcmp(got.data(), sent.data(), sent.size() * sizeof(float)) == 0);
}

BOOST_AUTO_TEST_CASE(a_list_that_is_too_long_or_no_list_of_floats_is_refused) {
  BOOST_TEST(decode(encode(with(std::vector<float>(frame_floats_max)))).has_value());
  BOOST_TEST(!decode(encode(with(std::vector<float>(frame_floats_max + 1)))).has_value());
  auto frame = encode(with({1.0F})); // ... bin8, 4 bytes, the float, two small integers
  const auto size_at = frame.size() - 7;
  BOOST_REQUIRE_EQUAL(static_cast<int>(frame[size_at]), 4);
  frame[size_at] = 3;
  frame.erase(size_at + 1, 1);
  BOOST_TEST(!decode(frame).has_value());
}
