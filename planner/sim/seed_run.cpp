#include "planner/sim/seed_run.hpp"

#include <fmt/format.h>

#include <sstream>

namespace adafloor::sim {

std::set<fault_kind> world_choice::all_kinds() {
  std::set<fault_kind> all;
  for (int k = 1; k <= static_cast<int>(enum_max(fault_kind{})); ++k)
    all.insert(static_cast<fault_kind>(k));
  return all;
}

scenario scenario_of(std::uint64_t seed, const world_choice& choice) {
  auto s = choice.leases   ? lease_scenario_of(seed, choice.ranks)
           : choice.deaths ? death_scenario_of(seed, choice.ranks)
                           : scenario_of(seed, choice.ranks);
  keep_only(s, choice.kinds);
  s.rollouts = choice.rollouts.value_or(s.rollouts);
  s.requests = choice.requests.value_or(s.requests);
  s.units = choice.units.value_or(s.units);
  s.bug = choice.bug;
  if (s.bug == mutant::none) return s;
  s.moves = choice.leases || s.bug < mutant::source_frees_before_commit ? 0 : 0.3;
  s.rules = {};
  s.time_limit = microseconds{60'000'000};
  return s;
}

std::string replay_command(std::uint64_t seed, const world_choice& choice) {
  auto text = fmt::format("adafloor faults run --seeds {0}..{0}", seed);
  if (choice.leases) text += " --leases";
  if (choice.deaths) text += " --deaths";
  if (choice.ranks > 0) text += fmt::format(" --ranks {}", choice.ranks);
  if (choice.kinds.empty()) text += " --kinds none";
  if (!choice.kinds.empty() && choice.kinds != world_choice::all_kinds()) {
    const char* separator = " --kinds ";
    for (const auto kind : choice.kinds)
      text += std::exchange(separator, ",") + std::string(name_of(kind));
  }
  if (choice.rollouts) text += fmt::format(" --rollouts {}", *choice.rollouts);
  if (choice.requests) text += fmt::format(" --requests {}", *choice.requests);
  if (choice.units) text += fmt::format(" --units {}", *choice.units);
  if (choice.bug != mutant::none) text += fmt::format(" --mutant {}", name_of(choice.bug));
  return text + " --trace";
}

world_choice choice_for(mutant bug) {
  world_choice choice;
  choice.bug = bug;
  choice.deaths = bug > mutant::unit_given_out_twice;
  choice.leases =
      !choice.deaths
      && (bug > mutant::held_requests_do_not_count || bug == mutant::gate_forgets_ended_leases);
  return choice;
}

void world_figures::add(const world& w) {
  ++worlds;
  events += w.events;
  rollouts += w.trainer.done.size();
  for (const auto& done : w.trainer.done) {
    aborted += done.aborted_transitions;
    for (const auto& t : done.transitions)
      ++(t.kind == transition_kind::restore    ? restorations
         : t.kind == transition_kind::contract ? contractions
                                               : recoveries);
  }
  leases += w.trainer.leases.size();
  for (const auto& lease : w.trainer.leases) {
    forced += lease.forced;
    unclean += !lease.clean;
    unfinished += lease.units_done == 0;
  }
  cuts += w.broker.pace.cuts;
  quarantined += w.trainer.quarantined.size();
  units += w.recorder.answers.size();
  failures += w.trainer.failed.size();
  lost += w.trainer.lost.size();
  for (const auto& recovery : w.trainer.recoveries) {
    rebuilt += recovery.requests;
    tokens_rebuilt += recovery.tokens;
  }
  for (auto rank : w.planner.lost)
    fenced += w.nodes[rank.value].rank.stopping;
  for (const auto& move : w.trainer.moves)
    ++moves[move.outcome];
  for (const auto& n : w.nodes)
    stale += n.rank.drops.stale_epoch + n.rank.drops.stale_lease + n.rank.drops.stale_rollout;
  struck.add(w.struck);
}

void world_figures::add(const world_figures& o) {
  for (const auto count :
       {&world_figures::worlds,         &world_figures::events,       &world_figures::rollouts,
        &world_figures::contractions,   &world_figures::restorations, &world_figures::aborted,
        &world_figures::leases,         &world_figures::forced,       &world_figures::unclean,
        &world_figures::unfinished,     &world_figures::cuts,         &world_figures::quarantined,
        &world_figures::units,          &world_figures::failures,     &world_figures::stale,
        &world_figures::lost,           &world_figures::recoveries,   &world_figures::rebuilt,
        &world_figures::tokens_rebuilt, &world_figures::fenced})
    this->*count += o.*count;
  for (const auto& [how, count] : o.moves)
    moves[how] += count;
  struck.add(o.struck);
}

std::string world_figures::text() const {
  auto line = fmt::format(
      "{} worlds, {} events: {} rollouts, {} contractions, {} restorations, {} aborted "
      "transitions, {} leases ({} forced, {} unclean, {} without a result), {} units, {} cuts, {} "
      "ranks in quarantine, {} ranks lost ({} woke and ended), {} recoveries ({} requests rebuilt "
      "from {} tokens), {} clear failures, {} stale messages dropped",
      worlds, events, rollouts, contractions, restorations, aborted, leases, forced, unclean,
      unfinished, units, cuts, quarantined, lost, fenced, recoveries, rebuilt, tokens_rebuilt,
      failures, stale);
  const char* separator = "; orders to move: ";
  for (const auto& [how, count] : moves)
    line += std::exchange(separator, ", ") + fmt::format("{} {}", count, name_of(how));
  return line;
}

world_outcome play(const scenario& s, std::ostream* trace, world_figures* figures) {
  world w(s);
  w.trace = trace;
  world_outcome outcome;
  try {
    w.run();
  } catch (const violation& broken) {
    outcome.broken = broken.what();
  }
  outcome.hash = w.hash;
  if (figures) figures->add(w);
  return outcome;
}

world_choice smallest(std::uint64_t seed, const world_choice& from, const std::string& broken) {
  const auto invariant = broken.substr(0, broken.find(':'));
  auto best = from;
  const auto accept = [&](const world_choice& smaller) {
    const auto seen = play(scenario_of(seed, smaller)).broken;
    const bool same = seen.substr(0, seen.find(':')) == invariant;
    if (same) best = smaller;
    return same;
  };
  const auto leave_out_kinds = [&] {
    for (const auto kind : std::set(best.kinds)) {
      auto smaller = best;
      smaller.kinds.erase(kind);
      accept(smaller);
    }
  };
  leave_out_kinds();
  const auto drawn = scenario_of(seed, from);
  const auto reduce = [&](auto count, std::uint32_t now, std::uint32_t least) {
    auto smaller = best;
    for (auto to = least; to < now; to = to * 2 + 1) {
      smaller.*count = to;
      if (accept(smaller)) return;
    }
  };
  reduce(&world_choice::rollouts, drawn.rollouts, 1);
  reduce(&world_choice::units, drawn.units, 0);
  reduce(&world_choice::requests, drawn.requests, 1);
  leave_out_kinds(); // some were needed for the larger world only
  return best;
}

std::string last_events(const scenario& s, std::size_t lines_max) {
  std::ostringstream all;
  const auto broken = play(s, &all).broken;
  constexpr std::size_t time_columns = 11;
  constexpr int times_max = 2; // what is said again and again hides what happens
  std::map<std::string, int> said;
  std::deque<std::string> kept;
  std::istringstream lines(all.str());
  for (std::string line; std::getline(lines, line);) {
    const auto has = [&](const char* word) { return line.find(word) != std::string::npos; };
    if (has("heartbeat") || has("token_batch{") || has("tokens_kept{") || has("engine_state{"))
      continue;
    if (++said[line.substr(std::min(line.size(), time_columns))] > times_max) continue;
    kept.push_back(line);
    if (kept.size() > lines_max) kept.pop_front();
  }
  std::string text;
  for (const auto& line : kept)
    text += line + '\n';
  return text + (broken.empty() ? "nothing is broken" : "broken: " + broken) + '\n';
}

} // namespace adafloor::sim
