#include "planner/protocol/timeline.hpp"

#include <algorithm>

namespace adafloor {
namespace {

void become(timeline& t, microseconds at) {
  const auto next = t.leased ? rank_state::leased : t.engine;
  if (next == t.current) return;
  if (t.running) {
    at = std::max(at, t.changed_at);
    if (t.intervals.size() >= timeline_intervals_max) return;
    t.intervals.push_back({t.current, t.changed_at, at});
    t.changed_at = at;
  }
  t.current = next;
}

} // namespace

void begin(timeline& t, microseconds at) {
  t.running = true;
  t.began_at = t.changed_at = at;
  t.intervals.clear();
  t.current = t.leased ? rank_state::leased : t.engine;
}

void note_engine(timeline& t, rank_state state, microseconds at) {
  t.engine = state;
  become(t, at);
}

void note_lease(timeline& t, bool leased, microseconds at) {
  t.leased = leased;
  become(t, at);
}

std::vector<interval> finish(timeline& t, microseconds planner_began, microseconds planner_ended,
                             microseconds shift) {
  planner_ended = std::max(planner_began, planner_ended);
  t.intervals.push_back({t.current, t.changed_at, t.changed_at});
  std::vector<interval> out;
  auto begin_at = planner_began;
  for (std::size_t i = 0; i < t.intervals.size(); ++i) {
    const bool last = i + 1 == t.intervals.size();
    const auto wanted = last ? planner_ended : t.intervals[i].end + shift;
    const auto end_at = std::clamp(wanted, begin_at, planner_ended);
    if (end_at == begin_at) continue;
    if (!out.empty() && out.back().state == t.intervals[i].state)
      out.back().end = end_at;
    else
      out.push_back({t.intervals[i].state, begin_at, end_at});
    begin_at = end_at;
  }
  t.running = false;
  t.intervals.clear();
  return out;
}

} // namespace adafloor
