#pragma once
// One line per message struct, `FIELDS(type, a, b, c)`, is all the reflection this
// project has. Serialization (codec.hpp), logging, equality and test generators
// are derived from it; nothing else may list the fields of a message.
#include <boost/preprocessor/seq/enum.hpp>
#include <boost/preprocessor/seq/for_each.hpp>
#include <boost/preprocessor/seq/transform.hpp>
#include <boost/preprocessor/stringize.hpp>
#include <boost/preprocessor/variadic/size.hpp>
#include <boost/preprocessor/variadic/to_seq.hpp>

#include <array>
#include <ostream>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace adafloor::reflect {

struct any_value {
  template <class T>
  constexpr operator T() const;
};

template <class T, class Seq, class = void>
struct constructible_from : std::false_type {};
template <class T, std::size_t... I>
struct constructible_from<T, std::index_sequence<I...>,
                          std::void_t<decltype(T{(static_cast<void>(I), any_value{})...})>>
  : std::true_type {};

/// Number of fields of aggregate `T`, found without help from FIELDS.
template <class T, std::size_t N = 24>
constexpr std::size_t arity() {
  if constexpr (N == 0 || constructible_from<T, std::make_index_sequence<N>>::value)
    return N;
  else
    return arity<T, N - 1>();
}

/// Calls `f(name, field)` for each field, in declaration order.
template <class T, class F>
constexpr void for_each_field(T&& x, F&& f) {
  constexpr auto& names = std::decay_t<T>::field_names;
  std::apply(
      [&](auto&... field) {
        std::size_t i = 0;
        (f(names[i++], field), ...);
      },
      x.fields());
}

template <class T, class = void>
struct has_fields : std::false_type {};
template <class T>
struct has_fields<T, std::void_t<decltype(T::field_names)>> : std::true_type {};
template <class T>
constexpr bool has_fields_v = has_fields<T>::value;

} // namespace adafloor::reflect

#define FIELDS_NAME_(s, d, f) BOOST_PP_STRINGIZE(f)
#define FIELDS(type, ...)                                                                          \
  static constexpr std::string_view type_name = #type;                                             \
  static constexpr std::array<std::string_view, BOOST_PP_VARIADIC_SIZE(__VA_ARGS__)> field_names = \
      {BOOST_PP_SEQ_ENUM(                                                                          \
          BOOST_PP_SEQ_TRANSFORM(FIELDS_NAME_, ~, BOOST_PP_VARIADIC_TO_SEQ(__VA_ARGS__)))};        \
  auto fields() {                                                                                  \
    return std::tie(__VA_ARGS__);                                                                  \
  }                                                                                                \
  auto fields() const {                                                                            \
    return std::tie(__VA_ARGS__);                                                                  \
  }                                                                                                \
  friend bool operator==(const type& x, const type& y) {                                           \
    return x.fields() == y.fields();                                                               \
  }                                                                                                \
  friend bool operator!=(const type& x, const type& y) {                                           \
    return !(x == y);                                                                              \
  }
