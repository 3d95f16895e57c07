#include "planner/plan/guard.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {
namespace {

// max(1, realised / predicted) of each prompt of epoch `index` that earlier epochs knew.
std::vector<double> ratios_of(const epoch_list& past, std::size_t index,
                              const prediction_options& prediction) {
  epoch_list before(past.begin(), past.begin() + static_cast<std::ptrdiff_t>(index));
  auto predicted = predict(before, past[index], prediction);
  std::vector<double> out;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const auto& lengths = past[index][i].lengths;
    if (!predicted[i].known || lengths.empty() || predicted[i].tail <= 0) continue;
    double realised = *std::max_element(lengths.begin(), lengths.end());
    out.push_back(std::max(1.0, realised / predicted[i].tail));
  }
  return out;
}

} // namespace

double upper_quantile(std::vector<double> values, double q) {
  if (values.empty()) return 1;
  std::sort(values.begin(), values.end());
  auto rank = std::ceil(q * static_cast<double>(values.size()) - 1e-9);
  auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

guard_fit fit_guard(const epoch_list& past, const prediction_options& prediction,
                    const guard_options& options) {
  guard_fit fit;
  fit.ratio = options.default_ratio;
  if (past.size() < 2) return fit;
  std::vector<double> all, earlier, newest;
  auto first =
      past.size() - std::min(past.size() - 1, static_cast<std::size_t>(options.transitions));
  for (std::size_t e = first; e < past.size(); ++e) {
    auto ratios = ratios_of(past, e, prediction);
    all.insert(all.end(), ratios.begin(), ratios.end());
    auto& part = e + 1 == past.size() ? newest : earlier;
    part.insert(part.end(), ratios.begin(), ratios.end());
    ++fit.transitions;
  }
  if (all.empty()) return fit;
  fit.ratio = upper_quantile(all, options.quantile);
  if (newest.empty()) return fit;
  double without =
      earlier.empty() ? options.default_ratio : upper_quantile(earlier, options.quantile);
  auto n = static_cast<double>(newest.size());
  auto inside = std::count_if(newest.begin(), newest.end(), [&](double r) { return r <= without; });
  fit.coverage = static_cast<double>(inside) / n;
  fit.has_coverage = true;
  double error = std::sqrt(options.quantile * (1 - options.quantile) / n);
  double own = upper_quantile(newest, options.quantile);
  if (fit.coverage < options.quantile - 2 * error && own > fit.ratio) {
    fit.ratio = own;
    fit.widened = true;
  }
  return fit;
}

std::int32_t guard_cap(double ratio, double step_exit, std::int32_t max_response_length,
                       const guard_options& options) {
  double steps = std::ceil(ratio * step_exit / options.step_tokens - 1e-9);
  double cap = std::max<double>(steps * options.step_tokens, options.least_cap);
  return cap < max_response_length ? static_cast<std::int32_t>(cap) : 0;
}

} // namespace adafloor
