#pragma once
// Reading fields of results and event lines that may be missing, null or of another type.
#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace adafloor {

/// The number at `key`; none where there is no number.
inline std::optional<double> number_at(const nlohmann::json& from, const char* key) {
  if (!from.is_object()) return std::nullopt;
  const auto at = from.find(key);
  if (at == from.end() || !at->is_number()) return std::nullopt;
  return at->get<double>();
}

inline double number_or_zero(const nlohmann::json& from, const char* key) {
  return number_at(from, key).value_or(0.0);
}

/// The text at `key`; `otherwise` where there is none.
inline std::string text_at(const nlohmann::json& from, const char* key,
                           const char* otherwise = "") {
  if (!from.is_object()) return otherwise;
  const auto at = from.find(key);
  return at != from.end() && at->is_string() ? at->get<std::string>() : otherwise;
}

/// The object at `key`; an empty one where there is none.
inline nlohmann::json object_at(const nlohmann::json& from, const char* key) {
  if (!from.is_object()) return nlohmann::json::object();
  const auto at = from.find(key);
  return at != from.end() && at->is_object() ? *at : nlohmann::json::object();
}

/// The list at `key`; an empty one where there is none.
inline nlohmann::json list_at(const nlohmann::json& from, const char* key) {
  if (!from.is_object()) return nlohmann::json::array();
  const auto at = from.find(key);
  return at != from.end() && at->is_array() ? *at : nlohmann::json::array();
}

} // namespace adafloor
