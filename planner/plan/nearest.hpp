#pragma once
// "Did you mean": the known name that is closest to a wrong one.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

/// Edit distance (Levenshtein).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      auto above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// The nearest of `known`, or an empty string if there are none.
inline std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  auto best =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(name, a) < edit_distance(name, b);
      });
  return best == known.end() ? std::string{} : *best;
}

} // namespace adafloor
