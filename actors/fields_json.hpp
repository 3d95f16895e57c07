#pragma once
// Structs with FIELDS as JSON objects, and back. Strict: every field must be there, with a value of
// its type, and no other.
#include "messages/reflect.hpp"
#include "messages/types.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

namespace adafloor {

template <class T>
nlohmann::ordered_json fields_to_json(const T& x);

namespace fields_json {

using tree = nlohmann::ordered_json;

template <class T>
struct is_id : std::false_type {};
template <class Rep, class Tag>
struct is_id<named<Rep, Tag>> : std::true_type {};

/// Reads values; keeps the first complaint, as later ones are usually consequences of it.
struct reader {
  std::string place;
  std::string complaint{};

  void complain(const std::string& key, std::string_view what) {
    if (complaint.empty()) complaint = fmt::format("{}: \"{}\" {}", place, key, what);
  }

  void read(const tree& from, const std::string& key, std::string& to) {
    if (!from.is_string()) return complain(key, "must be a string");
    to = from.get<std::string>();
  }
  void read(const tree& from, const std::string& key, bool& to) {
    if (!from.is_boolean()) return complain(key, "must be true or false");
    to = from.get<bool>();
  }
  void read(const tree& from, const std::string& key, double& to) {
    if (!from.is_number()) return complain(key, "must be a number");
    to = from.get<double>();
  }
  void read(const tree& from, const std::string& key, std::int32_t& to) {
    if (!from.is_number_integer()) return complain(key, "must be a whole number");
    to = from.get<std::int32_t>();
  }
  void read(const tree& from, const std::string& key, microseconds& to) {
    if (!from.is_number_integer()) return complain(key, "must be a whole number");
    to = microseconds{from.get<std::int64_t>()};
  }
  template <class T>
  auto read(const tree& from, const std::string& key, T& to)
      -> std::enable_if_t<std::is_unsigned_v<T>> {
    const auto max = std::numeric_limits<T>::max();
    if (!from.is_number_unsigned() || from.get<std::uint64_t>() > max)
      return complain(key, fmt::format("must be a whole number from 0 to {}", max));
    to = from.get<T>();
  }
  template <class Rep, class Tag>
  void read(const tree& from, const std::string& key, named<Rep, Tag>& to) {
    read(from, key, to.value);
  }
  template <class T>
  auto read(const tree& from, const std::string& key, T& to)
      -> std::enable_if_t<std::is_enum_v<T>> {
    const auto max = static_cast<std::uint64_t>(enum_max(T{}));
    if (!from.is_number_unsigned() || from.get<std::uint64_t>() > max)
      return complain(key, fmt::format("must be a whole number from 0 to {}", max));
    to = static_cast<T>(from.get<std::uint64_t>());
  }
  template <class T>
  void read(const tree& from, const std::string& key, std::vector<T>& to) {
    if (!from.is_array()) return complain(key, "must be a list");
    to.resize(from.size());
    for (std::size_t i = 0; i < to.size(); ++i)
      read(from[i], fmt::format("{}[{}]", key, i), to[i]);
  }
  template <class T, std::size_t N>
  void read(const tree& from, const std::string& key, std::array<T, N>& to) {
    if (!from.is_array() || from.size() != N)
      return complain(key, fmt::format("must be a list of {}", N));
    for (std::size_t i = 0; i < N; ++i)
      read(from[i], fmt::format("{}[{}]", key, i), to[i]);
  }
  template <class T>
  auto read(const tree& from, const std::string& key, T& to)
      -> std::enable_if_t<reflect::has_fields_v<T>> {
    if (!from.is_object()) return complain(key, "must be an object");
    const auto prefix = key.empty() ? std::string{} : key + ".";
    reflect::for_each_field(to, [&](std::string_view name, auto& field) {
      const auto found = from.find(std::string{name});
      if (found == from.end()) return complain(prefix + std::string{name}, "is missing");
      read(*found, prefix + std::string{name}, field);
    });
    for (const auto& [name, value] : from.items()) {
      const auto& known = T::field_names;
      if (std::find(known.begin(), known.end(), name) == known.end())
        complain(prefix + name, fmt::format("is not a field of a {}", T::type_name));
    }
  }
};

template <class T>
tree list_to_json(const T& xs) {
  auto out = tree::array();
  for (const auto& x : xs)
    out.push_back(fields_to_json(x));
  return out;
}
template <class T>
tree value_to_json(const std::vector<T>& xs) {
  return list_to_json(xs);
}
template <class T, std::size_t N>
tree value_to_json(const std::array<T, N>& xs) {
  return list_to_json(xs);
}
template <class T>
tree value_to_json(const T& x) {
  if constexpr (is_id<T>::value)
    return tree(x.value);
  else if constexpr (std::is_same_v<T, microseconds>)
    return tree(x.count());
  else if constexpr (std::is_enum_v<T>)
    return tree(static_cast<std::uint64_t>(x));
  else
    return tree(x);
}

} // namespace fields_json

/// Ids and enums are numbers, times whole microseconds.
template <class T>
nlohmann::ordered_json fields_to_json(const T& x) {
  if constexpr (reflect::has_fields_v<T>) {
    auto out = nlohmann::ordered_json::object();
    reflect::for_each_field(x, [&](std::string_view name, const auto& field) {
      out[std::string{name}] = fields_to_json(field);
    });
    return out;
  } else {
    return fields_json::value_to_json(x);
  }
}

/// Reads what `fields_to_json` wrote into `to`. Empty, or what is wrong, named with `place`.
template <class T>
std::string fields_from_json(const nlohmann::ordered_json& from, const std::string& place, T& to) {
  fields_json::reader in{place};
  in.read(from, "", to);
  return in.complaint;
}

} // namespace adafloor
