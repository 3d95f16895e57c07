// How messages travel in a simulated world, who acts on them, and what the trainer does.
#include "messages/printing.hpp"
#include "planner/sim/checkers.hpp"
#include "planner/sim/world.hpp"

#include <fmt/format.h>

#include <sstream>

namespace adafloor::sim {

void world::route(std::uint32_t from, effects& out) {
  for (auto& message : out) {
    if (message.incarnation == incarnation_id{}) message.incarnation = nodes[from].incarnation;
    if (message.to.rank.value == from)
      local_.push_back(std::move(message));
    else
      send(std::move(message));
  }
  out.clear();
  if (draining_) return;
  draining_ = true;
  while (!local_.empty()) {
    const auto message = std::move(local_.front());
    local_.pop_front();
    deliver(message);
  }
  draining_ = false;
}

void world::send(envelope message) {
  if (const auto* plan = std::get_if<prepare_transition>(&message.body))
    kinds_[plan->epoch] = plan->kind;
  const auto step = step_of(message.body, kind_of(message.body));
  if (!step) throw violation("a message between processes that belongs to no step");
  if (apart(message.from.rank, message.to.rank))
    return note_strike(fault_kind::partition, *step, message, "lost between two sides");
  auto& line = lines_[{message.from.rank, message.to.rank}];
  const auto number = ++line.sent;
  const auto copies = fate(current_faults, rng);
  if (copies.empty()) note_strike(fault_kind::drop, *step, message, "lost");
  if (copies.size() > 1) note_strike(fault_kind::duplicate, *step, message, "doubled");
  for (const auto copy : copies) {
    if (chaos.chance(current_faults.corruption)) {
      std::string how;
      demand(damage_is_noticed(message, chaos.next(), &how), "I6", "a damaged frame is taken");
      note_strike(fault_kind::corrupt, *step, message, "damaged, dropped for its " + how);
      continue;
    }
    if (copy.late)
      note_strike(fault_kind::delay, *step, message,
                  std::to_string(copy.delay.count()) + " us late");
    auto delay = copy.delay;
    if (current_faults.in_order) {
      line.due_at = std::max(line.due_at, now + delay);
      delay = line.due_at - now;
    }
    after(message.to.rank.value, delay,
          [this, message, step = *step, number] { arrive(message, step, number); });
  }
}

void world::arrive(const envelope& message, protocol_step step, std::uint64_t number) {
  for (auto& [name, door] : doors)
    if (door.closed && door.message == name_of(message.body)
        && (!door.at || *door.at == message.to.rank))
      return door.waiting.push_back(message);
  if (step == protocol_step::membership && message.to.role == role_kind::membership) {
    auto& sender = nodes[message.from.rank.value];
    sender.silence_max = std::max(sender.silence_max, now - sender.heard_at);
    sender.heard_at = now;
  }
  auto& line = lines_[{message.from.rank, message.to.rank}];
  if (number < line.arrived) note_strike(fault_kind::reorder, step, message, "overtaken");
  line.arrived = std::max(line.arrived, number);
  deliver(message);
}

void world::deliver(const envelope& message) {
  const auto n = message.to.rank.value;
  note_delivery(message);
  check_delivery(*this, message);
  effects out;
  plant_before(message);
  note_refusal(message);
  switch (message.to.role) {
  case role_kind::engine:
  case role_kind::worker:
  case role_kind::recorder:
  case role_kind::trainer:
    to_model(message);
    break;
  default:
    to_machine(message, local(n), out);
  }
  plant(message, out);
  route(n, out);
}

void world::to_machine(const envelope& message, time_point local_now, effects& out) {
  auto& n = nodes[message.to.rank.value];
  switch (message.to.role) {
  case role_kind::rank:
    return step(n.rank, message, local_now, out);
  case role_kind::sidecar:
    if (std::get_if<lease_grant>(&message.body) && n.sidecar.now_in == sidecar_machine::phase::idle
        && chaos.chance(current_faults.lease_refusal)) {
      const auto no = *refusal_of(message.body, "planted refusal of a lease");
      return out.push_back({message.to, message.from, {}, n.sidecar.who.stamp, no});
    }
    return step(n.sidecar, message, local_now, out);
  case role_kind::planner:
    return step(planner, message, local_now, out);
  case role_kind::broker:
    return step(broker, message, local_now, out);
  case role_kind::membership:
    return step(membership, message, local_now, out);
  default:
    throw violation("a message to a role that is no machine");
  }
}

void world::to_model(const envelope& message) {
  auto& n = nodes[message.to.rank.value];
  switch (message.to.role) {
  case role_kind::engine:
    return n.engine.handle(message.body);
  case role_kind::worker:
    return n.worker.handle(message.body);
  case role_kind::recorder:
    return recorder.handle(message);
  default:
    return to_trainer(message);
  }
}

template <class T>
struct is_named : std::false_type {};
template <class R, class Tag>
struct is_named<named<R, Tag>> : std::true_type {};

template <class T>
std::uint64_t digest_of(std::uint64_t h, const T& x) {
  if constexpr (reflect::has_fields_v<T>) {
    reflect::for_each_field(x, [&](std::string_view, const auto& f) { h = digest_of(h, f); });
  } else if constexpr (is_named<T>::value) {
    h = mix(h, x.value);
  } else if constexpr (std::is_same_v<T, microseconds>) {
    h = mix(h, static_cast<std::uint64_t>(x.count()));
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    h = mix(h, static_cast<std::uint64_t>(x));
  } else {
    for (const auto& element : x)
      h = digest_of(h, element);
    h = mix(h, x.size());
  }
  return h;
}

void world::note_delivery(const envelope& m) {
  hash = mix(hash, static_cast<std::uint64_t>(now.time_since_epoch().count()));
  hash = digest_of(digest_of(hash, m.from), m.to);
  hash = digest_of(mix(digest_of(hash, m.stamp), m.body.index()), m.incarnation);
  std::visit([&](const auto& body) { hash = digest_of(hash, body); }, m.body);
  write_trace("", m);
}

void world::write_trace(const std::string& line) {
  constexpr std::size_t columns_max = 240;
  const auto us = (now.time_since_epoch() - microseconds{1'000'000}).count();
  if (trace) *trace << fmt::format("{:10.6f} {:.{}}\n", us * 1e-6, line, columns_max);
}

void world::write_trace(const std::string& what_happened, const envelope& m) {
  if (!trace) return;
  std::ostringstream line;
  line << what_happened << m;
  write_trace(line.str());
}

// --- the trainer

rollout_request world::request_of(rollout_id rollout, std::uint32_t number) const {
  rollout_request r;
  r.id = request_id{number};
  r.random_key = mix(what.seed, rollout.value * 10'000ull + number);
  r.prompt = {1, 2, 3};
  r.max_tokens = what.max_tokens;
  return r;
}

/// All ranks of the job were started again: what the log has of a response is its beginning.
void world::resume_some(begin_rollout& order) {
  random_stream chance(mix(what.seed ^ 0x5e5, order.rollout.value));
  for (const auto& r : order.requests) {
    if (!chance.chance(what.resumed)) continue;
    auto begun = true_tokens(r);
    begun.resize(1 + chance.below(begun.size()));
    tokens[{order.rollout, r.id}].count = begun.size();
    auto& log = recorder.tokens[{order.rollout, r.id}];
    for (std::uint32_t i = 0; i < begun.size(); ++i)
      log.emplace(i, begun[i]);
    std::vector<float> logprobs(begun.size());
    order.resumed.push_back({r.id, 0, std::move(begun), std::move(logprobs)});
  }
}

void world::order_rollout() {
  auto& t = trainer;
  t.order = {};
  t.order.rollout = rollout_id{t.next_rollout};
  t.order.rules = what.rules;
  for (std::uint32_t i = 0; i < what.requests; ++i) {
    const auto r = request_of(t.order.rollout, i);
    t.order.requests.push_back(r);
    t.order.homes.emplace_back(static_cast<std::uint32_t>(rng.below(what.world_size)));
    t.order.rules.prompts.push_back(i);
    const auto length = static_cast<std::int32_t>(1 + r.random_key % what.max_tokens);
    t.order.rules.forecasts.push_back({3, true, {length}, {length, length / 2}});
  }
  for (auto to : what.exits)
    t.order.exits.push_back({what.max_tokens / 2, to});
  t.order.predicted_tail = what.max_tokens;
  resume_some(t.order);
  t.reports.clear();
  local_.push_back({role_at(rank_id{0}, role_kind::trainer),
                    role_at(rank_id{0}, role_kind::planner),
                    {},
                    {},
                    t.order});
}

void world::next_order() {
  auto& t = trainer;
  if (t.now_in >= trainer_model::stage::stopping) return;
  refused_restoring_ = false;
  const auto self = role_at(rank_id{0}, role_kind::trainer);
  const auto to_planner = role_at(rank_id{0}, role_kind::planner);
  if (t.next_rollout == 1 && t.version == 1) {
    const auto to_broker = role_at(rank_id{0}, role_kind::broker);
    for (const auto& queue : what.queues)
      local_.push_back({self, to_broker, {}, {}, queue});
    queue_work work;
    for (std::uint32_t i = 0; i < what.units; ++i)
      work.units.push_back({i + 1, std::vector<token_id>(i % 5 + 1, 7), 4,
                            i % std::max<std::uint32_t>(1, what.queues.size())});
    local_.push_back({self, to_broker, {}, {}, work});
  }
  const bool update_due = what.update_weights && t.version < t.next_rollout;
  const bool broken = planner.now_in == planner_machine::phase::failed;
  if (broken || t.next_rollout > what.rollouts) {
    t.now_in = trainer_model::stage::stopping;
    local_.push_back({self, to_planner, {}, {}, stop{"done"}});
  } else if (update_due) {
    t.now_in = trainer_model::stage::weights;
    local_.push_back(
        {self,
         to_planner,
         {},
         {},
         update_weights{weights_id{t.version + 1}, "v", 10 + what.experts,
                        mix(t.version + 1, 99) + what.experts * (what.experts - 1) / 2}});
  } else {
    t.now_in = trainer_model::stage::rollout;
    order_rollout();
  }
  effects none;
  route(0, none);
}

void world::to_trainer(const envelope& message) {
  auto& t = trainer;
  const auto go_on = [this] { after(0, rng.delay(0, 100'000), [this] { next_order(); }); };
  if (auto* report = std::get_if<rollout_report>(&message.body)) {
    t.reports[message.from.rank] = *report;
  } else if (auto* done = std::get_if<rollout_done>(&message.body)) {
    t.done.push_back(*done);
    check_rollout_done(*this, *done);
    t.group_size = static_cast<std::uint32_t>(planner.world.size());
    t.lost_before = t.lost.size();
    t.quarantined_before = t.quarantined.size();
    ++t.next_rollout;
    go_on();
  } else if (auto* failed = std::get_if<rollout_failed>(&message.body)) {
    t.failed.push_back(*failed);
    go_on();
  } else if (auto* updated = std::get_if<weights_updated>(&message.body)) {
    t.version = updated->version.value;
    go_on();
  } else if (std::get_if<weights_refused>(&message.body)) {
    go_on();
  } else if (auto* lease = std::get_if<lease_record>(&message.body)) {
    t.leases.push_back(*lease);
  } else if (auto* away = std::get_if<rank_quarantined>(&message.body)) {
    check_quarantine(*this, *away);
    t.quarantined.push_back(*away);
  } else if (auto* lost = std::get_if<rank_lost>(&message.body)) {
    t.lost.push_back(*lost);
  } else if (auto* recovery = std::get_if<recovery_record>(&message.body)) {
    t.recoveries.push_back(*recovery);
  } else if (auto* moved = std::get_if<request_moved>(&message.body)) {
    t.moves.push_back(*moved);
  } else if (std::get_if<stopped>(&message.body)) {
    t.now_in = trainer_model::stage::stopped;
  }
}

} // namespace adafloor::sim
