#pragma once
// Every message prints its fields: `heartbeat{incarnation 7, epoch 2, step 14}`.
#include "messages/catalog.hpp"

#include <ostream>

namespace adafloor {

template <class T, class = std::enable_if_t<reflect::has_fields_v<T>>>
std::ostream& operator<<(std::ostream& os, const T& x);

namespace detail {
template <class T>
std::ostream& print(std::ostream& os, const T& x);

/// Long lists are cut: a trace line stays readable.
template <class T>
std::ostream& print(std::ostream& os, const std::vector<T>& xs) {
  constexpr std::size_t shown_max = 16;
  os << '[';
  for (std::size_t i = 0; i < xs.size() && i < shown_max; ++i)
    print(os << (i ? " " : ""), xs[i]);
  if (xs.size() > shown_max) os << " ... " << xs.size() << " in all";
  return os << ']';
}
template <class T>
std::ostream& print(std::ostream& os, const T& x) {
  if constexpr (std::is_same_v<T, microseconds>)
    return os << x.count() << "us";
  else if constexpr (std::is_enum_v<T>)
    return os << name_of(x);
  else
    return os << x;
}
} // namespace detail

template <class T, class>
std::ostream& operator<<(std::ostream& os, const T& x) {
  os << T::type_name << '{';
  const char* separator = "";
  reflect::for_each_field(x, [&](std::string_view name, const auto& field) {
    os << separator << name << ' ';
    detail::print(os, field);
    separator = ", ";
  });
  return os << '}';
}

std::ostream& operator<<(std::ostream& os, const any_message&);
std::ostream& operator<<(std::ostream& os, const envelope&);

} // namespace adafloor
