// The control link's reliability under loss, duplication, reordering, corruption, slow consumers
// and restarts: two channels, a lossy network and a clock, all from one seed.
#define BOOST_TEST_MODULE reliable_channel
#include "actors/reliable_channel.hpp"
#include "messages/checksum.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <random>

using namespace adafloor;

namespace {

struct side {
  std::optional<reliable_channel> channel;
  std::uint64_t offered = 0, received = 0; // numbers of payloads
  std::uint64_t faults = 0;
};

struct in_flight {
  time_point arrives;
  int to;
  std::string bytes;
};

struct weather {
  unsigned loss_percent, duplicate_percent, corrupt_percent, slow_percent;
  microseconds delay_max;
};

struct world {
  std::mt19937_64 chance;
  weather sky;
  time_point now{microseconds{1'000}};
  side sides[2];
  std::vector<in_flight> wire;
  std::string trouble;
  bool calm = false; // faults are over

  explicit world(std::uint64_t seed) : chance(seed) {
    sky = {unsigned(chance() % 40), unsigned(chance() % 30), unsigned(chance() % 20),
           unsigned(chance() % 80), microseconds{std::int64_t(1 + chance() % 60'000)}};
    for (int s : {0, 1})
      restart(s, {100, 101});
  }

  bool happens(unsigned percent) { return !calm && chance() % 100 < percent; }

  void restart(int s, std::array<std::uint64_t, 2> incarnations) {
    channel_config c;
    c.self = rank_id{std::uint32_t(s)};
    c.peer = rank_id{std::uint32_t(1 - s)};
    c.own = incarnation_id{incarnations[std::size_t(s)]};
    c.theirs = incarnation_id{incarnations[std::size_t(1 - s)]};
    c.window_frames = 8;
    c.window_bytes = 600;
    sides[s].channel.emplace(c, now);
    sides[s].offered = sides[s].received = 0;
  }

  std::string payload(int from, std::uint64_t number) const {
    return std::to_string(from) + ":" + std::to_string(number)
           + std::string(std::size_t(number * 37 % 190), 'x');
  }

  void put_on_wire(int from) {
    for (auto& t : sides[from].channel->take_transmissions(now)) {
      const std::string bytes =
          encode_frame(t.header, t.payload ? std::string_view(*t.payload) : "");
      for (int copies = happens(sky.duplicate_percent) ? 2 : 1; copies > 0; --copies) {
        if (happens(sky.loss_percent)) continue;
        in_flight f{
            now + microseconds{std::int64_t(chance() % std::uint64_t(sky.delay_max.count()))},
            1 - from, bytes};
        if (happens(sky.corrupt_percent))
          f.bytes[chance() % f.bytes.size()] ^= char(1 + chance() % 255);
        wire.push_back(std::move(f));
      }
    }
  }

  void consume(int s) {
    while (const std::string* got = sides[s].channel->front()) {
      if (happens(sky.slow_percent)) return;
      if (*got != payload(1 - s, sides[s].received + 1))
        trouble = "side " + std::to_string(s) + " got " + got->substr(0, 20) + " after "
                  + std::to_string(sides[s].received);
      ++sides[s].received;
      sides[s].channel->pop(now);
    }
  }

  void offer_some(int s, std::uint64_t limit) {
    for (std::uint64_t n = chance() % 6; n > 0 && sides[s].offered < limit; --n)
      if (sides[s].channel->offer(payload(s, sides[s].offered + 1), now)) ++sides[s].offered;
  }

  void run(microseconds step) {
    now += step;
    for (std::size_t i = 0; i < wire.size();) {
      if (wire[i].arrives > now) {
        ++i;
        continue;
      }
      in_flight f = std::move(wire[i]);
      wire[i] = std::move(wire.back());
      wire.pop_back();
      auto decoded = decode_frame(f.bytes);
      if (auto* good = std::get_if<frame>(&decoded))
        sides[f.to].channel->receive(*good, now);
      else
        ++sides[f.to].faults;
    }
    for (int s : {0, 1}) {
      consume(s);
      sides[s].channel->tick(now);
      put_on_wire(s);
      if (sides[s].offered - sides[1 - s].received > 8) trouble = "window exceeded";
    }
  }

  bool settled(std::uint64_t limit) const {
    return sides[0].received == limit && sides[1].received == limit
           && sides[0].channel->is_settled() && sides[1].channel->is_settled();
  }
};

std::uint64_t seeds() {
  const char* asked = std::getenv("ADAFLOOR_SEEDS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 3000;
}

channel_config plain(std::uint32_t self, std::uint64_t own, std::uint64_t theirs) {
  channel_config c;
  c.self = rank_id{self};
  c.peer = rank_id{1 - self};
  c.own = incarnation_id{own};
  c.theirs = incarnation_id{theirs};
  return c;
}

} // namespace

BOOST_AUTO_TEST_CASE(every_payload_arrives_once_and_in_order) {
  std::uint64_t duplicates = 0, gaps = 0, again = 0, faults = 0;
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    world w(seed);
    const std::uint64_t limit = 20 + w.chance() % 40;
    for (int i = 0; i < 600 && w.trouble.empty(); ++i) {
      for (int s : {0, 1})
        w.offer_some(s, limit);
      w.run(microseconds{std::int64_t(1 + w.chance() % 20'000)});
    }
    w.calm = true;
    int rounds = 0; // liveness: once faults stop, all is delivered within bounded time
    for (; rounds < 4000 && w.trouble.empty() && !w.settled(limit); ++rounds) {
      for (int s : {0, 1})
        w.offer_some(s, limit);
      w.run(microseconds{10'000});
    }
    BOOST_REQUIRE_MESSAGE(w.trouble.empty(), "seed " << seed << ": " << w.trouble);
    BOOST_REQUIRE_MESSAGE(w.settled(limit), "seed " << seed << ": " << w.sides[0].received
                                                    << " and " << w.sides[1].received << " of "
                                                    << limit);
    for (auto& s : w.sides) {
      duplicates += s.channel->counters().duplicates;
      gaps += s.channel->counters().gaps;
      again += s.channel->counters().retransmitted;
      faults += s.faults;
      BOOST_REQUIRE_EQUAL(s.channel->counters().frames_sent, limit);
      BOOST_REQUIRE_EQUAL(s.channel->counters().frames_received, limit);
    }
  }
  BOOST_TEST(duplicates > 0u); // the weather was bad enough to mean something
  BOOST_TEST(gaps > 0u);
  BOOST_TEST(again > 0u);
  BOOST_TEST(faults > 0u);
}

BOOST_AUTO_TEST_CASE(frames_of_an_old_incarnation_never_surface) {
  for (std::uint64_t seed = 1; seed <= seeds() / 4; ++seed) {
    world w(seed);
    for (int i = 0; i < 60; ++i) {
      for (int s : {0, 1})
        w.offer_some(s, 1000);
      w.run(microseconds{std::int64_t(1 + w.chance() % 20'000)});
    }
    // Side 1 restarts; side 0 learns of it. What is on the wire belongs to the past.
    for (int s : {0, 1})
      w.restart(s, {100, 202});
    for (int i = 0; i < 4000 && w.trouble.empty() && !w.settled(10); ++i) {
      w.calm = i > 100;
      for (int s : {0, 1})
        w.offer_some(s, 10);
      w.run(microseconds{10'000});
    }
    BOOST_REQUIRE_MESSAGE(w.trouble.empty(), "seed " << seed << ": " << w.trouble);
    BOOST_REQUIRE_MESSAGE(w.settled(10), "seed " << seed << " did not settle");
  }
}

BOOST_AUTO_TEST_CASE(a_full_window_turns_offers_away_until_the_peer_consumes) {
  time_point now{};
  reliable_channel a(plain(0, 1, 2), now), b(plain(1, 2, 1), now);
  const auto pass = [&now](reliable_channel& from, reliable_channel& to) {
    for (auto& t : from.take_transmissions(now))
      to.receive({t.header, t.payload ? std::string_view(*t.payload) : ""}, now);
  };
  pass(a, b);
  pass(b, a);
  std::size_t taken = 0;
  while (a.offer("x", now))
    ++taken;
  BOOST_TEST(taken == a.config().window_frames);
  BOOST_TEST(!a.has_room_for(1));
  pass(a, b);
  now += microseconds{10'000};
  b.tick(now);
  pass(b, a); // all arrived, nothing consumed
  BOOST_TEST(a.is_settled());
  BOOST_TEST(!a.offer("x", now));
  while (b.front() != nullptr)
    b.pop(now);
  b.take_transmissions(now); // the acknowledgement that opens the window is lost
  BOOST_TEST(!a.offer("x", now));
  now += a.config().retransmit_max;
  a.tick(now);
  pass(a, b); // "how far are you?"
  pass(b, a);
  BOOST_TEST(a.has_room_for(1));
  BOOST_TEST(a.offer("x", now));
}

BOOST_AUTO_TEST_CASE(a_lone_frame_above_the_byte_window_still_fits) {
  auto c = plain(0, 1, 2);
  c.window_bytes = 10;
  reliable_channel a(c, time_point{});
  BOOST_TEST(a.offer(std::string(100, 'x'), time_point{}));
  BOOST_TEST(!a.offer("y", time_point{}));
}

BOOST_AUTO_TEST_CASE(an_unknown_version_is_refused) {
  auto newer = plain(1, 2, 1);
  newer.version_min = 7;
  newer.version_max = 9;
  reliable_channel a(plain(0, 1, 2), time_point{}), b(newer, time_point{});
  for (auto& t : b.take_transmissions(time_point{}))
    a.receive({t.header, ""}, time_point{});
  BOOST_TEST((a.current_state() == reliable_channel::state::refused));
  BOOST_TEST(!a.wake_at().has_value()); // it says nothing any more
}

BOOST_AUTO_TEST_CASE(a_quiet_channel_asks_for_no_wake_up_and_a_dead_peer_is_silent) {
  time_point now{};
  reliable_channel a(plain(0, 1, 2), now), b(plain(1, 2, 1), now);
  for (int i = 0; i < 3; ++i) {
    for (auto& t : a.take_transmissions(now))
      b.receive({t.header, ""}, now);
    for (auto& t : b.take_transmissions(now))
      a.receive({t.header, ""}, now);
  }
  BOOST_TEST(!a.wake_at().has_value());
  BOOST_TEST(!b.wake_at().has_value());
  now += a.config().silent_after * 2;
  BOOST_TEST(!a.is_silent(now)); // nothing waits for an answer
  a.offer("x", now);
  BOOST_TEST(!a.is_silent(now));
  std::size_t sent = 0;
  const time_point end = now + a.config().silent_after;
  while (a.wake_at() && *a.wake_at() < end) {
    now = *a.wake_at();
    a.tick(now);
    sent += a.take_transmissions(now).size();
  }
  BOOST_TEST(a.is_silent(end));
  BOOST_TEST(sent < 12u); // the timer backs off
}

BOOST_AUTO_TEST_CASE(a_number_beyond_the_window_is_dropped) {
  reliable_channel b(plain(1, 2, 1), time_point{});
  frame f;
  f.header.type = frame_type::data;
  f.header.from = incarnation_id{1};
  f.header.to = incarnation_id{2};
  f.header.seq = b.config().window_frames + 1;
  b.receive(f, time_point{});
  BOOST_TEST(b.counters().beyond_window == 1u);
  BOOST_TEST(b.front() == nullptr);
}

BOOST_AUTO_TEST_CASE(any_bytes_decode_to_a_frame_or_a_fault) {
  std::mt19937_64 chance(7);
  frame_header h;
  h.type = frame_type::resend;
  h.sender = rank_id{3};
  h.from = incarnation_id{0x1122334455667788ull};
  h.seq = 40;
  h.reach = 77;
  const std::string good = encode_frame(h, "payload");
  auto back = decode_frame(good);
  BOOST_REQUIRE(std::holds_alternative<frame>(back));
  BOOST_TEST(std::get<frame>(back).payload == "payload");
  BOOST_TEST(std::get<frame>(back).header.reach == 77u);
  BOOST_TEST(std::get<frame>(back).header.from == h.from);
  for (std::size_t n = 0; n < good.size(); ++n)
    BOOST_TEST(std::holds_alternative<frame_fault>(decode_frame(good.substr(0, n))));
  for (std::size_t n = 0; n < good.size(); ++n) { // no single damaged byte goes unnoticed
    std::string bad = good;
    bad[n] ^= char(1 + chance() % 255);
    BOOST_TEST(std::holds_alternative<frame_fault>(decode_frame(bad)));
  }
  for (int i = 0; i < 20'000; ++i) {
    std::string noise(chance() % 200, '\0');
    for (char& c : noise)
      c = char(chance());
    BOOST_TEST_REQUIRE(std::holds_alternative<frame_fault>(decode_frame(noise)));
  }
}

BOOST_AUTO_TEST_CASE(crc32c_matches_the_published_values) {
  BOOST_TEST(crc32c("123456789", 9) == 0xE3069283u);
  const std::string zeros(32, '\0');
  BOOST_TEST(crc32c(zeros.data(), zeros.size()) == 0x8A9136AAu); // RFC 3720, B.4
  std::mt19937_64 chance(3);
  std::string text(20'000, '\0');
  for (char& c : text)
    c = char(chance());
  for (std::size_t n : {0, 1, 7, 8, 9, 3071, 3072, 3073, 9999, 20'000}) {
    BOOST_TEST(crc32c(text.data(), n) == detail::crc32c_by_table(text.data(), n));
    const std::size_t half = n / 3;
    BOOST_TEST(crc32c(text.data() + half, n - half, crc32c(text.data(), half))
               == crc32c(text.data(), n));
  }
}
