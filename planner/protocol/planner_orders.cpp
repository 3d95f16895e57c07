#include "planner/protocol/planner_parts.hpp"

namespace adafloor::planner_parts {
namespace {

void refuse_weights(planner_machine& m, weights_id version, const std::string& text, effects& out) {
  post(m.who, local(m, role_kind::trainer),
       weights_refused{version, "weights " + std::to_string(version.value) + ": " + text}, out);
}

std::string objection_to(const planner_machine& m, const update_weights& order) {
  if (m.now_in == phase::failed) return m.failure;
  if (m.stopping) return "the job is being stopped";
  if (m.rollout) return "rollout " + std::to_string(m.rollout->id.value) + " is running";
  if (m.weights)
    return "the update to " + std::to_string(m.weights->order.version.value) + " is running";
  if (order.version <= m.who.stamp.weights)
    return "not newer than the loaded " + std::to_string(m.who.stamp.weights.value);
  return {};
}

void complain(planner_machine& m, const std::string& text) {
  auto& all = m.weights->refusals;
  all += (all.empty() ? "" : "; ") + text;
}

/// What all ranks hold together: the dense tensors once, and everybody's experts.
weights_updated sum_of(const std::map<rank_id, weights_updated>& updated) {
  auto sum = updated.begin()->second;
  sum.expert_tensors = 0;
  sum.expert_digest = 0;
  for (const auto& [rank, x] : updated) {
    sum.expert_tensors += x.expert_tensors;
    sum.expert_digest += x.expert_digest;
  }
  return sum;
}

/// Dense tensors by comparing ranks, experts by counting and adding up: each has one owner.
void verify_weights(planner_machine& m) {
  const auto& w = *m.weights;
  const auto& first = w.updated.begin()->second;
  for (const auto& [rank, x] : w.updated)
    if (x.digest != first.digest || x.tensors != first.tensors)
      complain(m, "rank " + std::to_string(rank.value) + " loaded other bytes than rank "
                      + std::to_string(w.updated.begin()->first.value));
  if (!w.refusals.empty() || w.order.tensors == 0) return;
  const auto sum = sum_of(w.updated);
  const auto tensors = sum.tensors + sum.expert_tensors;
  if (tensors != w.order.tensors)
    complain(m, "the ranks together loaded " + std::to_string(tensors) + " tensors, "
                    + w.order.source + " has " + std::to_string(w.order.tensors));
  else if (sum.digest + sum.expert_digest != w.order.digest)
    complain(m, "the ranks together loaded other bytes than " + w.order.source
                    + " held when the update was ordered; is it being written, or another folder "
                      "on another machine?");
}

/// All ranks have answered: all hold the same, or the world is mixed until the next update.
void conclude_weights(planner_machine& m, effects& out) {
  auto& w = *m.weights;
  if (!w.updated.empty()) verify_weights(m);
  m.weights_mixed = !w.refusals.empty() && (m.weights_mixed || !w.updated.empty());
  if (w.refusals.empty()) {
    m.who.stamp.weights = w.order.version;
    m.last_weights = sum_of(w.updated);
    post(m.who, local(m, role_kind::trainer), *m.last_weights, out);
  } else {
    refuse_weights(m, w.order.version, w.refusals, out);
  }
  m.weights.reset();
}

void conclude_stop(planner_machine& m, effects& out) {
  if (m.stop_done) return;
  m.stop_done = true;
  post(m.who, local(m, role_kind::trainer), stopped{}, out);
}

} // namespace

void begin_weights(planner_machine& m, const update_weights& order, time_point now, effects& out) {
  if (m.weights && m.weights->order == order) return;
  if (m.last_weights && !m.weights && m.last_weights->version == order.version
      && m.who.stamp.weights == order.version)
    return post(m.who, local(m, role_kind::trainer), *m.last_weights, out);
  if (auto text = objection_to(m, order); !text.empty())
    return refuse_weights(m, order.version, text, out);
  m.weights.emplace();
  m.weights->order = order;
  m.weights->began_at = now;
  for (auto rank : m.world) {
    m.weights->waiting[rank] = now;
    post(m.who, role_at(rank, role_kind::rank), order, out);
  }
}

void hear_weights(planner_machine& m, rank_id rank, const weights_updated& done, effects& out) {
  if (!m.weights || m.weights->order.version != done.version || m.weights->waiting.erase(rank) == 0)
    return;
  m.weights->updated[rank] = done;
  if (m.weights->waiting.empty()) conclude_weights(m, out);
}

void hear_weights(planner_machine& m, rank_id rank, const weights_refused& no, effects& out) {
  if (!m.weights || m.weights->order.version != no.version || m.weights->waiting.erase(rank) == 0)
    return;
  m.weights->refusals += (m.weights->refusals.empty() ? "" : "; ") + no.text;
  if (m.weights->waiting.empty()) conclude_weights(m, out);
}

void begin_stop(planner_machine& m, const stop& order, time_point now, effects& out) {
  if (m.stopping) return;
  m.stopping.emplace();
  m.stopping->order = order;
  m.stopping->began_at = now;
  for (std::uint32_t r = 0; r < m.config.world_size; ++r) {
    const rank_id rank{r};
    if (m.lost.count(rank)) continue;
    m.stopping->waiting[rank] = now;
    post(m.who, role_at(rank, role_kind::rank), order, out);
  }
  if (m.stopping->waiting.empty()) conclude_stop(m, out);
}

void hear_stopped(planner_machine& m, rank_id rank, effects& out) {
  if (!m.stopping) return;
  m.stopping->waiting.erase(rank);
  if (m.stopping->waiting.empty()) conclude_stop(m, out);
}

void tick_orders(planner_machine& m, time_point now, effects& out) {
  if (m.stopping) {
    if (now - m.stopping->began_at > m.config.stop_max) return conclude_stop(m, out);
    for (auto& [rank, sent_at] : m.stopping->waiting)
      if (due(sent_at, now, m.config.resend))
        post(m.who, role_at(rank, role_kind::rank), m.stopping->order, out);
    return;
  }
  if (!m.weights) return;
  if (now - m.weights->began_at > m.config.weights_max) {
    std::vector<rank_id> late;
    for (const auto& [rank, sent_at] : m.weights->waiting)
      late.push_back(rank);
    m.weights_mixed = true;
    refuse_weights(m, m.weights->order.version,
                   name_ranks(late) + " did not answer within "
                       + std::to_string(m.config.weights_max.count() / 1000) + " ms",
                   out);
    m.weights.reset();
    return;
  }
  for (auto& [rank, sent_at] : m.weights->waiting)
    if (due(sent_at, now, m.config.resend))
      post(m.who, role_at(rank, role_kind::rank), m.weights->order, out);
}

} // namespace adafloor::planner_parts
