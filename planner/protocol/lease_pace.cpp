#include "planner/protocol/lease_pace.hpp"

#include <algorithm>
#include <vector>

namespace adafloor {
namespace {

/// Loads within a power of two are alike.
std::uint32_t load_class(std::uint32_t live) {
  std::uint32_t bits = 0;
  for (; live > 0; live /= 2)
    ++bits;
  return bits;
}

double median(const std::deque<microseconds>& samples) {
  std::vector<microseconds> all(samples.begin(), samples.end());
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return static_cast<double>(middle->count());
}

microseconds part(microseconds whole, double share) {
  return microseconds{static_cast<std::int64_t>(static_cast<double>(whole.count()) * share)};
}

bool enough_alone(const lease_pace& p, std::uint32_t members) {
  for (const auto& [key, s] : p.seen)
    if (key.first == members && s.alone.size() >= p.config.samples_min) return true;
  return false;
}

} // namespace

void note_lent(lease_pace& p, std::uint32_t lent, time_point now) {
  if (p.lending == (lent > 0)) return;
  if (p.lending) p.lent_for += now - p.changed_at;
  p.lending = lent > 0;
  p.changed_at = now;
}

void note_stage(lease_pace& p, std::uint32_t members, microseconds window, time_point now) {
  if (p.config.max_slowdown <= 0 || p.lending || p.measure_until) return;
  const auto times = p.stages[members]++;
  if (enough_alone(p, members) && times % p.config.measure_every != 0) return;
  const auto pause = std::min({p.config.measure_max, part(window, p.config.window_share),
                               part(p.lent_for, p.config.measure_share) - p.measured_for});
  if (pause < p.config.measure_min) return;
  p.measured_for += pause;
  p.measure_until = now + pause;
}

void note_pace(lease_pace& p, const decode_pace& pace, time_point now) {
  if (pace.steps == 0 || now - pace.elapsed < p.changed_at) return;
  auto& s = p.seen[{pace.members, load_class(pace.live)}];
  auto& samples = p.lending ? s.lent : s.alone;
  samples.push_back(pace.elapsed / pace.steps);
  if (samples.size() > lease_pace::samples_max) samples.pop_front();
  (p.lending ? p.steps_lent : p.steps_alone) += pace.steps;
  if (p.lending) ++p.lent_since_cut;
}

bool measuring(lease_pace& p, time_point now) {
  if (p.measure_until && now >= *p.measure_until) p.measure_until.reset();
  return p.measure_until.has_value();
}

std::optional<double> slowdown(const lease_pace& p) {
  double with = 0, without = 0;
  for (const auto& [key, s] : p.seen) {
    if (s.alone.size() < p.config.samples_min || s.lent.size() < p.config.samples_min) continue;
    const auto weight = static_cast<double>(s.lent.size());
    with += weight * median(s.lent);
    without += weight * median(s.alone);
  }
  if (without <= 0) return std::nullopt;
  return with / without - 1;
}

bool adapt(lease_pace& p, std::uint32_t lent, time_point now) {
  if (p.config.max_slowdown <= 0) return false;
  const auto slow = slowdown(p);
  if (slow && *slow > p.config.max_slowdown && p.lending
      && p.lent_since_cut >= p.config.cut_samples_min) {
    p.ranks_max = lent / 2;
    p.cut_at = now;
    ++p.cuts;
    p.lent_since_cut = 0;
    for (auto& [key, s] : p.seen)
      s.lent.clear(); // They tell of more leases than there will be.
    return true;
  }
  if (p.ranks_max && now - p.cut_at >= p.config.rest) {
    p.ranks_max = std::max(*p.ranks_max * 2, *p.ranks_max + 1);
    p.cut_at = now;
  }
  return false;
}

} // namespace adafloor
