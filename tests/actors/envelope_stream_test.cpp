// Envelopes over a socket pair: whole or not at all, in order, whatever the socket takes at once.
#define BOOST_TEST_MODULE envelope_stream
#include "actors/envelope_stream.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/socket.h>
#include <unistd.h>

using namespace adafloor;

namespace {

struct bench {
  std::pair<int, int> ends = envelope_stream::open_pair().value();
  envelope_stream here{ends.first};
  std::optional<envelope_stream> there{ends.second};

  static envelope unit(std::uint64_t number, std::size_t tokens) {
    run_unit m;
    m.work.unit = number;
    m.work.response.assign(tokens, 70'000);
    return {{}, {}, {}, {}, m};
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(nothing_comes_before_it_is_there, bench) {
  BOOST_TEST(!here.receive().value().has_value());
  here.send(unit(1, 3));
  BOOST_TEST(!here.unsent());
  const auto got = there->receive().value();
  BOOST_REQUIRE(got.has_value());
  BOOST_TEST(std::get<run_unit>(got->body).work.response.size() == 3U);
  BOOST_TEST(!there->receive().value().has_value());
}

BOOST_FIXTURE_TEST_CASE(more_than_the_socket_holds_goes_on_as_it_is_read, bench) {
  constexpr std::uint64_t count = 40;
  for (std::uint64_t i = 0; i < count; ++i)
    here.send(unit(i, 20'000));
  BOOST_TEST(here.unsent());
  std::uint64_t received = 0;
  for (int turns = 0; received < count && turns < 10'000; ++turns) {
    here.flush();
    while (auto got = there->receive().value()) {
      BOOST_TEST(std::get<run_unit>(got->body).work.unit == received++);
      BOOST_TEST(std::get<run_unit>(got->body).work.response.size() == 20'000U);
    }
  }
  BOOST_TEST(received == count);
  BOOST_TEST(!here.unsent());
}

BOOST_FIXTURE_TEST_CASE(what_was_sent_before_the_end_still_arrives, bench) {
  there->send(unit(5, 1));
  there.reset();
  BOOST_TEST(here.receive().value().has_value());
  BOOST_TEST((here.receive().error().code == error_code::peer_lost));
  here.send(unit(6, 1)); // No signal, no error.
  BOOST_TEST(!here.unsent());
}

BOOST_FIXTURE_TEST_CASE(what_is_no_envelope_is_an_error, bench) {
  const char nonsense[] = "\x03\x00\x00\x00???";
  BOOST_REQUIRE(::send(ends.second, nonsense, sizeof nonsense - 1, 0) > 0);
  BOOST_TEST((here.receive().error().code == error_code::internal));
  const char endless[] = "\xff\xff\xff\xff";
  envelope_stream other(dup(ends.first));
  BOOST_REQUIRE(::send(ends.second, endless, sizeof endless - 1, 0) > 0);
  BOOST_TEST((other.receive().error().code == error_code::internal));
}
