#define BOOST_TEST_MODULE codec
#include "messages/codec.hpp"
#include "messages/printing.hpp"
#include "tests/support/generators.hpp"

#include <boost/test/unit_test.hpp>
#include <rapidcheck/boost_test.h>

#include <set>
#include <sstream>

using namespace adafloor;
using testing::arbitrary_envelope;

namespace {

struct kind {
  std::string_view name;
  envelope (*arbitrary)(); ///< a random envelope whose body is a message of this kind
};

const kind kinds[] = {
#define X(n, T) {T::type_name, arbitrary_envelope<T>},
    ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
};

/// Holds for a hundred random envelopes of every kind of message.
template <class Property>
void holds_for_every_kind(Property property) {
  for (const auto& k : kinds)
    BOOST_TEST(rc::check([&] { property(k.arbitrary()); }), k.name);
}

} // namespace

BOOST_AUTO_TEST_CASE(every_message_survives_the_wire) {
  holds_for_every_kind([](const envelope& sent) {
    const auto got = decode(encode(sent));
    RC_ASSERT(got.has_value());
    RC_ASSERT(*got == sent);
  });
}

BOOST_AUTO_TEST_CASE(every_truncated_frame_is_refused) {
  holds_for_every_kind([](const envelope& sent) {
    auto frame = encode(sent);
    frame.resize(*rc::gen::inRange<std::size_t>(0, frame.size()));
    RC_ASSERT(!decode(frame));
  });
}

BOOST_AUTO_TEST_CASE(a_frame_with_trailing_bytes_is_refused) {
  holds_for_every_kind([](const envelope& sent) {
    auto frame = encode(sent);
    frame.push_back(static_cast<char>(*rc::gen::arbitrary<std::uint8_t>()));
    RC_ASSERT(!decode(frame));
  });
}

BOOST_AUTO_TEST_CASE(a_flipped_byte_never_crashes_and_what_decodes_is_canonical) {
  holds_for_every_kind([](const envelope& sent) {
    auto frame = encode(sent);
    const auto at = *rc::gen::inRange<std::size_t>(0, frame.size());
    frame[at] = static_cast<char>(*rc::gen::arbitrary<std::uint8_t>());
    if (const auto got = decode(frame)) {
      const auto again = decode(encode(*got));
      RC_ASSERT(again.has_value());
      RC_ASSERT(encode(*again) == encode(*got)); // Bytes: a flipped float may be a NaN.
    }
  });
}

BOOST_AUTO_TEST_CASE(an_enum_out_of_range_is_refused) {
  auto e = envelope{{}, {}, {}, {}, refused{epoch_id{1}, refusal::busy, "x"}};
  BOOST_TEST(decode(encode(e)).has_value());
  for (const int value : {0, static_cast<int>(enum_max(refusal{})) + 1, 255}) {
    std::get<refused>(e.body).reason = static_cast<refusal>(value);
    BOOST_TEST(!decode(encode(e)).has_value());
  }
}

BOOST_AUTO_TEST_CASE(an_unknown_tag_is_refused) {
  const auto e = envelope{{}, {}, {}, {}, rollout_started{}};
  auto frame = encode(e);
  const auto tag = frame.size() - 3; // [..., tag, [rollout]]
  BOOST_REQUIRE_EQUAL(static_cast<int>(frame[tag]),
                      static_cast<int>(wire_tag<rollout_started>::value));
  frame[tag] = 127;
  BOOST_TEST(!decode(frame).has_value());
}

BOOST_AUTO_TEST_CASE(a_huge_declared_array_is_refused_before_memory_is_taken) {
  std::string frame = "\xdd\xff\xff\xff\xff"; // array of 2^32 - 1
  BOOST_TEST(!decode(frame).has_value());
}

BOOST_AUTO_TEST_CASE(deep_nesting_is_refused) {
  BOOST_TEST(!decode(std::string(10'000, '\x91')).has_value());
}

BOOST_AUTO_TEST_CASE(a_message_prints_its_fields) {
  std::ostringstream os;
  os << any_message{settled{epoch_id{7}, true}};
  BOOST_TEST(os.str() == "settled{epoch 7, detached 1}");
}

BOOST_AUTO_TEST_CASE(names_of_messages_are_unique) {
  std::set<std::string_view> names;
  std::size_t count = 0;
#define X(n, T)                                                                                    \
  names.insert(T::type_name);                                                                      \
  ++count;
  ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
  BOOST_TEST(names.size() == count);
}
