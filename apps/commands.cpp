#include "apps/commands.hpp"

#include <algorithm>
#include <iostream>

namespace adafloor {
namespace {

/// Levenshtein distance, two rows.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::size_t> above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j)
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
    std::swap(above, row);
  }
  return above[b.size()];
}

} // namespace

int print_error(const error& what) {
  std::cerr << "adafloor: error: " << what.text << std::endl;
  if (what.code == error_code::bad_input) return 2;
  return what.code == error_code::peer_lost ? 3 : 1;
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = word.size() / 3 + 2;
  for (const auto& candidate : known) {
    const auto distance = edits(word, candidate);
    if (distance >= least) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

} // namespace adafloor
