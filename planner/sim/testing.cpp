#include "planner/sim/adafloor/testing.hpp"

#include "planner/sim/checkers.hpp"
#include "planner/sim/world.hpp"

#include <algorithm>

namespace adafloor::testing {
namespace {

sim::scenario scenario_of(const job& j) {
  if (j.ranks < 2)
    throw std::invalid_argument("job.ranks is " + std::to_string(j.ranks) + ": needs 2 or more");
  sim::scenario s;
  s.seed = j.seed;
  s.world_size = j.ranks;
  s.experts = 2 * j.ranks;
  s.rollouts = j.rollouts;
  s.requests = j.requests;
  s.max_tokens = j.max_tokens;
  s.exits = j.exits;
  s.units = j.units;
  s.moves = j.moves;
  s.pace.max_slowdown = 0; // lends at once
  s.faults.loss = j.loss;
  s.faults.doubling = j.doubling;
  s.faults.late = j.late;
  return s;
}

protocol_step step_named(const std::string& name) {
  if (const auto step = named_member<protocol_step>(name)) return *step;
  throw std::invalid_argument("'" + name + "' is no step of the protocols; see world::steps()");
}

/// An invariant that breaks leaves as the exception that users know.
template <class F>
auto guarded(F work) {
  try {
    return work();
  } catch (const sim::violation& broken) {
    throw violation(broken.what());
  }
}

} // namespace

job eight_ranks::settings() {
  job j;
  j.ranks = 8;
  j.requests = 48;
  j.max_tokens = 160;
  j.exits = {4, 2};
  j.units = 40;
  return j;
}

world::world(const job& what) : world_(std::make_unique<sim::world>(scenario_of(what))) {
  world_->begin();
}

world::~world() = default;

bool world::step() {
  return guarded([&] {
    const bool more = world_->advance();
    if (more && after_event) after_event();
    return more;
  });
}

microseconds world::now() const {
  return world_->now - world_->began_at;
}

void world::play(microseconds time) {
  const auto until = world_->now + time;
  while (world_->next_at() <= until && step()) {
  }
  world_->now = std::max(world_->now, until);
}

bool world::play_until(const std::function<bool()>& done, microseconds limit) {
  const auto until = world_->now + limit;
  while (!done()) {
    if (world_->next_at() > until || !step()) return false;
  }
  return true;
}

bool world::play_to(const std::string& step, std::optional<rank> who) {
  const auto number = static_cast<std::size_t>(step_named(step));
  return play_until([&] {
           for (rank r = 0; r < world_->nodes.size(); ++r)
             if ((!who || *who == r) && world_->steps_at(r)[number]) return true;
           return stopped();
         })
         && !stopped();
}

void world::play_to_end() {
  const auto limit = world_->what.time_limit;
  while (!stopped()) {
    if (!step() || now() > limit)
      throw violation("I10: the job did not end within " + std::to_string(limit.count() / 1'000'000)
                      + " s of virtual time");
  }
  guarded([&] { sim::check_end(*world_); });
}

std::vector<std::string> world::steps() {
  std::vector<std::string> names;
  for (std::size_t s = 1; s <= fault_coverage::steps; ++s)
    names.emplace_back(name_of(static_cast<protocol_step>(s)));
  return names;
}

// --- barriers

void world::close(const std::string& name, const std::string& message, std::optional<rank> at) {
  if (!is_between_processes(message))
    throw std::invalid_argument("barrier " + name + ": '" + message
                                + "' is no message between processes");
  auto& door = world_->doors[name];
  door.message = message;
  door.closed = true;
  door.at.reset();
  if (at) door.at = rank_id{*at};
}

std::size_t world::waiting(const std::string& name) const {
  const auto found = world_->doors.find(name);
  return found == world_->doors.end() ? 0 : found->second.waiting.size();
}

void world::open(const std::string& name) {
  guarded([&] { world_->open(name); });
}

// --- what goes wrong

void world::cut_off(const std::vector<rank>& away) {
  std::vector<rank_id> ranks;
  for (const auto r : away)
    ranks.emplace_back(r);
  world_->cut_off(ranks);
}

void world::heal() {
  world_->heal();
}

void world::freeze(rank who, microseconds time) {
  world_->note_fault(fault_kind::freeze, rank_id{who});
  world_->nodes.at(who).paused_until = world_->now + time;
}

void world::slow(rank who, microseconds time) {
  world_->note_fault(fault_kind::slow, rank_id{who});
  world_->nodes.at(who).slow_until = world_->now + time;
}

void world::crash(rank who) {
  if (who == 0) throw std::invalid_argument("crash(0): rank 0 runs the planner, the job would end");
  world_->strike_at(who, fault_kind::crash);
}

void world::fill_disk() {
  guarded([&] { world_->strike_at(0, fault_kind::disk_full); });
}

void world::tolerate_failure() {
  world_->what.may_fail = true;
}

// --- what can be seen

bool world::stopped() const {
  return world_->trainer.now_in == sim::trainer_model::stage::stopped;
}

std::string world::failure() const {
  const auto& failed = world_->trainer.failed;
  if (world_->recorder.disk_full) return "no space left on device";
  return failed.empty() ? std::string{} : failed.front().text;
}

std::uint32_t world::rollouts_done() const {
  return static_cast<std::uint32_t>(world_->trainer.done.size());
}

std::uint64_t world::epoch(rank who) const {
  return world_->nodes.at(who).engine.epoch().value;
}

bool world::in_group(rank who) const {
  return world_->nodes.at(who).engine.in_group();
}

bool world::decodes(rank who) const {
  return !world_->nodes.at(who).engine.quiescent();
}

bool world::lent(rank who) const {
  const auto& n = world_->nodes.at(who);
  return n.sidecar.now_in != sidecar_machine::phase::idle || n.worker.active();
}

bool world::declared_dead(rank who) const {
  const auto found = world_->membership.peers.find(rank_id{who});
  return found != world_->membership.peers.end() && found->second.lost;
}

std::vector<std::string> world::steps_of(rank who) const {
  std::vector<std::string> names;
  const auto in = world_->steps_at(who);
  for (std::size_t s = 1; s <= fault_coverage::steps; ++s)
    if (in[s]) names.emplace_back(name_of(static_cast<protocol_step>(s)));
  return names;
}

std::map<std::uint64_t, std::vector<rank>> world::committed_groups() const {
  std::map<std::uint64_t, std::vector<rank>> groups;
  for (const auto& [epoch, group] : world_->groups)
    for (const auto member : group.first)
      groups[epoch.value].push_back(member.value);
  return groups;
}

std::uint32_t world::times_ended(std::uint32_t rollout, std::uint32_t request) const {
  const auto found = world_->recorder.written.find({rollout_id{rollout}, request_id{request}});
  return found == world_->recorder.written.end() ? 0 : found->second;
}

std::vector<std::int32_t> world::tokens(std::uint32_t rollout, std::uint32_t request) const {
  const auto found = world_->recorder.responses.find({rollout_id{rollout}, request_id{request}});
  return found == world_->recorder.responses.end() ? std::vector<std::int32_t>{} : found->second;
}

std::vector<std::int32_t> world::true_tokens(std::uint32_t rollout, std::uint32_t request) const {
  return sim::true_tokens(world_->request_of(rollout_id{rollout}, request));
}

void world::trace_to(std::ostream* lines) {
  world_->trace = lines;
}

} // namespace adafloor::testing
