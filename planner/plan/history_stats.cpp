#include "planner/plan/history_stats.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace adafloor {
namespace {

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i;
    while (j < order.size() && values[order[j]] == values[order[i]])
      ++j;
    for (std::size_t k = i; k < j; ++k)
      ranks[order[k]] = (static_cast<double>(i) + static_cast<double>(j) - 1) / 2;
    i = j;
  }
  return ranks;
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0)
                              / static_cast<double>(values.size());
}

double mean_length(const prompt_lengths& p) {
  return mean_of({p.lengths.begin(), p.lengths.end()});
}

epoch_link link(const epoch_list& epochs, std::size_t to, const prediction_options& prediction) {
  std::unordered_map<std::string_view, const prompt_lengths*> before; // looked up only
  for (const auto& p : epochs[to - 1])
    before.emplace(p.id, &p);
  epoch_link out;
  std::vector<double> means_a, means_b, tails_a, tails_b, ratios;
  auto predicted = predict({epochs.begin(), epochs.begin() + static_cast<std::ptrdiff_t>(to)},
                           epochs[to], prediction);
  for (std::size_t i = 0; i < epochs[to].size(); ++i) {
    const auto& p = epochs[to][i];
    auto place = before.find(p.id);
    if (place == before.end()) continue;
    double tail = *std::max_element(p.lengths.begin(), p.lengths.end());
    means_a.push_back(mean_length(*place->second));
    means_b.push_back(mean_length(p));
    tails_a.push_back(
        *std::max_element(place->second->lengths.begin(), place->second->lengths.end()));
    tails_b.push_back(tail);
    if (predicted[i].tail > 0) ratios.push_back(std::max(1.0, tail / predicted[i].tail));
  }
  out.shared = means_a.size();
  out.rank_correlation_means = rank_correlation(means_a, means_b);
  out.rank_correlation_tails = rank_correlation(tails_a, tails_b);
  out.ratio_q95 = upper_quantile(ratios, 0.95);
  if (mean_of(means_a) > 0) out.mean_change = mean_of(means_b) / mean_of(means_a) - 1;
  return out;
}

} // namespace

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.size() < 2) return 0;
  auto x = ranks_of(a), y = ranks_of(b);
  double mean = (static_cast<double>(a.size()) - 1) / 2, xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

history_stats describe(const length_history& history, const prediction_options& prediction,
                       const guard_options& guard) {
  history_stats out;
  epoch_list epochs;
  for (std::uint32_t e = 0; e < history.epochs.size(); ++e)
    epochs.push_back(epoch_prompts(history, e));
  std::vector<std::size_t> truncated(epochs.size(), 0);
  for (const auto& row : history.rows)
    truncated[row.epoch] += row.truncated ? 1U : 0U;
  for (std::size_t e = 0; e < epochs.size(); ++e) {
    epoch_stats s;
    s.epoch = history.epochs[e];
    s.prompts = epochs[e].size();
    s.truncated = truncated[e];
    std::vector<double> all;
    for (const auto& p : epochs[e]) {
      all.insert(all.end(), p.lengths.begin(), p.lengths.end());
      double mean = mean_length(p);
      if (mean > 0)
        s.tail_over_mean += *std::max_element(p.lengths.begin(), p.lengths.end()) / mean
                            / static_cast<double>(s.prompts);
    }
    s.responses = all.size();
    s.mean = mean_of(all);
    if (!all.empty()) {
      s.p50 = upper_quantile(all, 0.5);
      s.p90 = upper_quantile(all, 0.9);
      s.p99 = upper_quantile(all, 0.99);
      s.longest = *std::max_element(all.begin(), all.end());
    }
    out.epochs.push_back(s);
    if (e > 0) out.links.push_back(link(epochs, e, prediction));
  }
  out.guard = fit_guard(epochs, prediction, guard);
  return out;
}

} // namespace adafloor
