#include "planner/plan/calibration.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace adafloor {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Solves the normal equations of the chosen columns (1, active, max_kv) by Gaussian elimination
// with pivoting; a column without a pivot gets 0.
std::array<double, 3> solve(const std::vector<step_sample>& samples, std::array<bool, 3> use) {
  // Columns are scaled so that tokens and ranks are of the same order.
  double kv_scale = 1;
  for (const auto& s : samples)
    kv_scale = std::max(kv_scale, s.max_kv);
  double a[3][4] = {};
  for (const auto& s : samples) {
    double x[3] = {1, s.active, s.max_kv / kv_scale};
    for (int i = 0; i < 3; ++i) {
      if (!use[static_cast<std::size_t>(i)]) continue;
      for (int j = 0; j < 3; ++j)
        if (use[static_cast<std::size_t>(j)]) a[i][j] += x[i] * x[j];
      a[i][3] += x[i] * s.seconds * 1000;
    }
  }
  std::array<int, 3> row_of{-1, -1, -1};
  std::array<bool, 3> taken{};
  for (int c = 0; c < 3; ++c) {
    int pivot = -1;
    for (int r = 0; r < 3; ++r)
      if (!taken[static_cast<std::size_t>(r)]
          && (pivot < 0 || std::abs(a[r][c]) > std::abs(a[pivot][c])))
        pivot = r;
    if (pivot < 0 || std::abs(a[pivot][c]) < 1e-9 * static_cast<double>(samples.size())) continue;
    taken[static_cast<std::size_t>(pivot)] = true;
    row_of[static_cast<std::size_t>(c)] = pivot;
    for (int r = 0; r < 3; ++r) {
      if (r == pivot) continue;
      double factor = a[r][c] / a[pivot][c];
      for (int k = 0; k < 4; ++k)
        a[r][k] -= factor * a[pivot][k];
    }
  }
  std::array<double, 3> out{};
  for (int c = 0; c < 3; ++c) {
    int r = row_of[static_cast<std::size_t>(c)];
    if (r >= 0) out[static_cast<std::size_t>(c)] = a[r][3] / a[r][c];
  }
  out[2] /= kv_scale;
  return out;
}

bool varies(const std::vector<step_sample>& samples, double step_sample::*field) {
  auto [low, high] = std::minmax_element(
      samples.begin(), samples.end(),
      [&](const step_sample& a, const step_sample& b) { return a.*field < b.*field; });
  return (*high).*field > (*low).*field;
}

law_fit fit_one(int size, const std::vector<step_sample>& samples) {
  std::array<bool, 3> use{true, varies(samples, &step_sample::active),
                          varies(samples, &step_sample::max_kv)};
  auto x = solve(samples, use);
  for (bool again = true; again;) {
    again = false;
    for (std::size_t i = 1; i < 3; ++i)
      if (use[i] && x[i] < 0) {
        use[i] = false;
        again = true;
        x = solve(samples, use);
        break;
      }
  }
  law_fit fit;
  fit.samples = samples.size();
  fit.law = {size, std::max(x[0], 0.0), x[1], x[2], 0, true};
  double mean = 0, total = 0, left = 0;
  for (const auto& s : samples)
    mean += s.seconds * 1000 / static_cast<double>(samples.size());
  std::vector<double> errors;
  for (const auto& s : samples) {
    double predicted = fit.law.base_ms + x[1] * s.active + x[2] * s.max_kv, ms = s.seconds * 1000;
    total += (ms - mean) * (ms - mean);
    left += (ms - predicted) * (ms - predicted);
    if (ms > 0) errors.push_back(std::abs(ms - predicted) / ms);
  }
  fit.r_squared = total > 0 ? 1 - left / total : 1;
  fit.median_error = median(std::move(errors));
  return fit;
}

} // namespace

std::vector<law_fit> fit_laws(const std::vector<step_sample>& samples, std::size_t samples_min) {
  std::map<int, std::vector<step_sample>> by_size;
  for (const auto& s : samples)
    by_size[s.group_size].push_back(s);
  std::vector<law_fit> out;
  for (const auto& [size, list] : by_size)
    if (list.size() >= samples_min) out.push_back(fit_one(size, list));
  return out;
}

result<cost_model> calibrate(const std::vector<step_sample>& steps,
                             const std::vector<exit_sample>& exits, const std::string& name) {
  constexpr std::size_t samples_min = 8;
  auto laws = fit_laws(steps, samples_min);
  if (laws.empty())
    return bad_input("calibrate: " + std::to_string(steps.size())
                     + " decode steps, and no group size with at least "
                     + std::to_string(samples_min) + "; run longer");
  cost_model costs;
  costs.name = name;
  costs.laws.clear();
  costs.notes = "fitted on " + std::to_string(steps.size()) + " decode steps";
  for (const auto& fit : laws)
    costs.laws.push_back(fit.law);
  std::map<std::pair<int, int>, std::vector<double>> pauses;
  std::vector<double> restores;
  for (const auto& exit : exits)
    (exit.to > exit.from ? restores : pauses[{exit.from, exit.to}]).push_back(exit.pause_seconds);
  for (auto& [stage, seconds] : pauses) {
    if (seconds.empty()) continue;
    costs.exits.push_back({stage.first, stage.second, median(seconds)});
    costs.default_exit_seconds = std::max(costs.default_exit_seconds, costs.exits.back().seconds);
  }
  costs.restore_seconds = costs.fixed_shrunk_seconds = median(restores);
  return costs;
}

} // namespace adafloor
