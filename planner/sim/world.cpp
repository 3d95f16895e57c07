// How a simulated world is built from its scenario, and its loop.
#include "planner/sim/world.hpp"

#include "messages/printing.hpp"
#include "planner/protocol/expert_placement.hpp"
#include "planner/sim/checkers.hpp"

namespace adafloor::sim {

static fence first_fence() {
  return fence{term_id{1}, epoch_id{1}, weights_id{1}};
}

static planner_config planner_settings(const scenario& s) {
  planner_config c;
  c.world_size = s.world_size;
  c.experts = s.experts;
  c.part_requests_max = 4;
  c.weighing.max_num_seqs = s.places;
  c.weighing.kv.max_response_length = static_cast<std::int32_t>(s.max_tokens);
  c.transition.prepare_max = microseconds{1'500'000};
  c.transition.abort_max = c.transition.settle_max = microseconds{40'000'000};
  return c;
}

static broker_config broker_settings(const scenario& s) {
  broker_config c;
  c.duration = microseconds{400'000};
  c.renew = microseconds{100'000};
  c.grace = microseconds{300'000};
  c.window_min = microseconds{0};
  c.unit_attempts_max = 2; // So that it happens.
  c.return_margin = microseconds{s.unkillable ? 3'000'000 : 20'000'000};
  c.pace = s.pace;
  return c;
}

world::world(scenario s)
  : what(std::move(s)), current_faults(what.faults),
    planner(planner_settings(what), first_fence(), now),
    broker(broker_settings(what), first_fence().term),
    membership({rank_id{0}, what.world_size, microseconds{3'000'000}}, first_fence().term, now) {
  rng = random_stream(what.seed);
  chaos = random_stream(what.seed ^ 0xfa017);
  trainer.group_size = what.world_size;
  bug = what.bug;
  for (std::uint32_t r = 0; r < what.world_size; ++r) {
    const incarnation_id incarnation{rng.next() | 1};
    const auto skew = r == 0 ? microseconds{0} : rng.delay(0, 5'000'000'000);
    rank_config rank;
    rank.self = rank_id{r};
    rank.world_size = what.world_size;
    rank.incarnation = incarnation;
    rank.response_window = 2;
    rank.handoff.copy_max = microseconds{300'000};
    rank.token_window = 2;
    sidecar_config sidecar;
    sidecar.self = rank_id{r};
    sidecar.kill_max = microseconds{500'000};
    nodes.push_back(
        {rank_machine(rank, first_fence(), now + skew), sidecar_machine(sidecar, first_fence()),
         engine_model(*this, rank_id{r}, what.world_size, what.experts, first_fence().epoch),
         worker_model(*this, rank_id{r}), incarnation, skew, time_point{}, false});
    nodes.back().heard_at = now;
    if (rng.chance(0.15)) nodes.back().engine.step_us *= 4;
  }
  if (what.unkillable) nodes[*what.unkillable].worker.unkillable = true;
  for (std::uint32_t r = 0; r < what.world_size; ++r)
    after(r, microseconds{static_cast<std::int64_t>(rng.below(10'000))},
          [this, r] { tick_node(r); });
}

void world::run() {
  begin();
  while (trainer.now_in != trainer_model::stage::stopped) {
    demand(advance(), "I10", "nothing will ever happen again");
    demand(now - began_at < what.time_limit, "I10", "the job did not end in time");
  }
  check_end(*this);
}

void world::begin() {
  after(0, microseconds{0}, [this] { next_order(); });
  for (const auto& death : what.deaths)
    after(death.rank, death.at, [this, death] { die(death); });
}

time_point world::next_at() const {
  return queue_.empty() ? time_point::max() : time_point{microseconds{queue_.top().at}};
}

bool world::advance() {
  while (!queue_.empty()) {
    auto next = std::move(const_cast<event&>(queue_.top()));
    queue_.pop();
    auto& node = nodes[next.node];
    if (node.crashed) continue;
    if (const auto until = node.paused_until.time_since_epoch().count(); next.at < until) {
      next.at = until; // keeps its number: order within the node stays
      queue_.push(std::move(next));
      continue;
    }
    now = std::max(now, time_point{microseconds{next.at}});
    if (now - began_at > what.faults_end) current_faults = {};
    ++events;
    next.work();
    check_node(*this, next.node);
    if (now < node.slow_until) node.paused_until = now + chaos.delay(100, 2'000);
    if (!fault_struck_ && now - began_at >= what.fault_at) strike(next.node);
    return true;
  }
  return false;
}

void world::after(std::uint32_t n, microseconds delay, std::function<void()> work) {
  queue_.push({(now + delay).time_since_epoch().count(), next_number_++, n, std::move(work)});
}

void world::tell(envelope message, microseconds delay) {
  const auto n = message.to.rank.value;
  auto& last = told_at_[{n, message.from.role}];
  last = std::max(last, now + delay);
  after(n, last - now, [this, m = std::move(message)] { deliver(m); });
}

void world::tick_node(std::uint32_t n) {
  effects out;
  tick(nodes[n].rank, local(n), out);
  tick(nodes[n].sidecar, local(n), out);
  if (n == 0) {
    tick(membership, now, out);
    tick(planner, now, out);
    if (what.moves > 0 && rng.chance(what.moves)) order_some_move(out);
    if (what.slow_leases > 0 && rng.chance(what.slow_leases)) slow_down(out);
    tick(broker, now, out);
  }
  route(n, out);
  strike_by_chance(n);
  after(n, microseconds{10'000}, [this, n] { tick_node(n); });
}

/// As if steps with leases took twice as long as those without.
void world::slow_down(effects& out) {
  const microseconds step{broker.pace.lending ? 2 : 1};
  const decode_pace pace{planner.who.stamp.epoch, 1, 1, 1, step};
  post(planner.who, role_at(rank_id{0}, role_kind::broker), pace, out);
}

/// Any request, to any rank: the planner decides whether that makes sense.
void world::order_some_move(effects& out) {
  const request_id request{rng.below(what.requests)};
  const rank_id to{static_cast<std::uint32_t>(rng.below(what.world_size))};
  if (bug == mutant::leaver_takes_requests) return order_moves_to_leavers(out);
  order_move(planner, request, to, now, out);
}

/// The bytes are read at one moment and arrive at a later one.
void world::fetch_round(rank_id by, rank_id from, const kv_ready& round,
                        std::function<void(std::optional<kv_blob>)> done) {
  const bool fails = rng.chance(current_faults.pull_failure);
  after(by.value, rng.delay(10, 3'000), [this, by, from, round, fails, done] {
    const auto& source = nodes[from.value];
    auto blob =
        fails || source.crashed || apart(by, from) ? std::nullopt : source.engine.shelved(round);
    after(by.value, rng.delay(10, 3'000), [blob = std::move(blob), done] { done(blob); });
  });
}

void world::note_token(rank_id rank, rollout_id rollout, request_id request, std::size_t index) {
  if (planner.lost.count(rank)) return; // Nobody hears of it.
  auto& have = tokens[{rollout, request}];
  std::uint32_t dead = 0;
  for (std::uint32_t r = 0; r < nodes.size(); ++r)
    dead += is_dead(rank_id{r});
  // What died with a rank comes again, once for each that died.
  const bool again = index < have.count && have.times_rebuilt < dead;
  if (index != have.count && !again)
    throw violation("I6: rank " + std::to_string(rank.value) + " generates token "
                    + std::to_string(index) + " of request " + std::to_string(request.value)
                    + ", which has " + std::to_string(have.count));
  have.times_rebuilt += again;
  have.count = index + 1;
}

void world::exchange(const step_header& own, const std::vector<rank_id>& members,
                     std::function<void(const step_headers&)> read) {
  demand(std::binary_search(members.begin(), members.end(), own.rank), "I1",
         "rank " + std::to_string(own.rank.value) + " joins a collective of another group");
  auto& c = collectives_[{own.epoch, own.step}];
  if (c.headers.empty()) c.members = members;
  demand(c.members == members, "I1", "two groups run the same epoch");
  c.headers.push_back(own);
  c.readers.emplace_back(own.rank, std::move(read));
  finish_if_complete({own.epoch, own.step});
}

/// Every member's header is there, and can be read by every other.
void world::finish_if_complete(const std::pair<epoch_id, std::uint64_t>& key) {
  auto& c = collectives_.at(key);
  if (c.headers.size() < c.members.size()) return;
  for (const auto member : c.members)
    if (apart(member, c.members.front())) return;
  const auto all = std::make_shared<step_headers>(std::move(c.headers));
  for (auto& [rank, reader] : c.readers)
    after(rank.value, rng.delay(20, 400), [all, reader = std::move(reader)] { reader(*all); });
  collectives_.erase(key);
}

void world::note_switch(rank_id rank, epoch_id epoch, const std::vector<rank_id>& members,
                        const std::vector<rank_id>& owners) {
  if (is_lost(rank)) return; // Nobody hears of it.
  const auto meant = std::pair(members, expert_map_hash(owners));
  const auto [known, fresh] = groups.emplace(epoch, meant);
  demand(fresh || known->second == meant, "I1",
         "rank " + std::to_string(rank.value) + " means another group by epoch "
             + std::to_string(epoch.value));
  demand(!fresh || groups.size() < 2 || std::prev(groups.end())->first == epoch, "I7",
         "an epoch number falls");
}

} // namespace adafloor::sim
