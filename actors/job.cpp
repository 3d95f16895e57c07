#include "actors/job.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace adafloor {
namespace {

using json = nlohmann::ordered_json;

template <class T>
json encode(const T& x) {
  if constexpr (reflect::has_fields_v<T>) {
    json out = json::object();
    reflect::for_each_field(x, [&](std::string_view name, const auto& field) {
      out[std::string{name}] = encode(field);
    });
    return out;
  } else {
    return json(x);
  }
}

/// Collects the first complaint; later ones are usually consequences of it.
struct reader {
  std::string place;
  std::string complaint{};

  void complain(const std::string& key, std::string_view what) {
    if (complaint.empty()) complaint = fmt::format("{}: \"{}\" {}", place, key, what);
  }

  void read(const json& from, const std::string& key, std::string& to) {
    if (!from.is_string()) return complain(key, "must be a string");
    to = from.get<std::string>();
  }
  void read(const json& from, const std::string& key, bool& to) {
    if (!from.is_boolean()) return complain(key, "must be true or false");
    to = from.get<bool>();
  }
  void read(const json& from, const std::string& key, double& to) {
    if (!from.is_number()) return complain(key, "must be a number");
    to = from.get<double>();
  }
  template <class T, class = std::enable_if_t<std::is_unsigned_v<T>>>
  void read(const json& from, const std::string& key, T& to) {
    const auto max = std::numeric_limits<T>::max();
    if (!from.is_number_unsigned() || from.get<std::uint64_t>() > max)
      return complain(key, fmt::format("must be a whole number from 0 to {}", max));
    to = from.get<T>();
  }
  template <class T>
  void read(const json& from, const std::string& key, std::vector<T>& to) {
    if (!from.is_array()) return complain(key, "must be a list");
    to.resize(from.size());
    for (std::size_t i = 0; i < to.size(); ++i)
      read(from[i], fmt::format("{}[{}]", key, i), to[i]);
  }
  template <class T>
  auto read(const json& from, const std::string& key, T& to)
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
        complain(prefix + name, "is not a field of a job");
    }
  }
};

} // namespace

std::string to_json_text(const job& task) {
  return encode(task).dump(2) + "\n";
}

result<job> parse_job(const std::string& text, const std::string& place) {
  const auto tree = json::parse(text, nullptr, false);
  if (tree.is_discarded()) return bad_input(fmt::format("{}: not JSON; write it anew", place));
  job task;
  reader in{place};
  in.read(tree, "", task);
  if (!in.complaint.empty()) return bad_input(in.complaint);
  return task;
}

result<job> load_job(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return fail(error_code::io, fmt::format("{}: cannot be read; is it there?", path));
  return parse_job(text.str(), path);
}

} // namespace adafloor
