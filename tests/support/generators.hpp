#pragma once
// Random messages for property tests, derived from the field lists.
#include "messages/catalog.hpp"

#include <rapidcheck.h>

namespace rc {
template <class R, class Tag>
struct Arbitrary<adafloor::named<R, Tag>> {
  static Gen<adafloor::named<R, Tag>> arbitrary() {
    return gen::map(gen::arbitrary<R>(), [](R v) { return adafloor::named<R, Tag>{v}; });
  }
};
template <>
struct Arbitrary<adafloor::microseconds> {
  static Gen<adafloor::microseconds> arbitrary() {
    return gen::map(gen::arbitrary<std::int64_t>(),
                    [](std::int64_t v) { return adafloor::microseconds{v}; });
  }
};
} // namespace rc

namespace adafloor::testing {

template <class T>
T arbitrary_value();

template <class T>
struct arbitrary_of {
  static T get() {
    if constexpr (reflect::has_fields_v<T>) {
      T x{};
      reflect::for_each_field(
          x, [](std::string_view, auto& f) { f = arbitrary_value<std::decay_t<decltype(f)>>(); });
      return x;
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(*rc::gen::inRange(1, static_cast<int>(enum_max(T{})) + 1));
    } else {
      return *rc::gen::arbitrary<T>();
    }
  }
};
template <class T>
struct arbitrary_of<std::vector<T>> {
  static std::vector<T> get() {
    std::vector<T> xs(*rc::gen::inRange<std::size_t>(0, 6));
    for (auto& x : xs)
      x = arbitrary_value<T>();
    return xs;
  }
};
template <class T>
T arbitrary_value() {
  return arbitrary_of<T>::get();
}

/// An envelope with a body of type `T`, everything else random, too.
template <class T>
envelope arbitrary_envelope() {
  return {arbitrary_value<address>(), arbitrary_value<address>(), arbitrary_value<incarnation_id>(),
          arbitrary_value<fence>(), arbitrary_value<T>()};
}

} // namespace adafloor::testing
