#include "actors/router.hpp"

#include "actors/ucx_link.hpp"
#include "messages/codec.hpp"

namespace adafloor {

router::router(rank_id self, incarnation_id incarnation) : self_(self), incarnation_(incarnation) {}

void router::attach(role_kind role, role_actor actor) {
  attach(role, [this, actor](const envelope& e) {
    if (e.from.rank != self_) unread_.fetch_add(1, std::memory_order_relaxed);
    caf::anon_send(actor, e);
  });
}

void router::attach(role_kind role, handler h) {
  std::unique_lock lock(roles_mutex_);
  roles_[static_cast<std::size_t>(role)] = std::move(h);
}

void router::detach_all() {
  std::unique_lock lock(roles_mutex_);
  for (auto& h : roles_)
    h = nullptr;
}

void router::attach_link(ucx_link* link) {
  link_ = link;
}

void router::post(envelope e) {
  e.incarnation = incarnation_;
  if (e.to.rank == self_)
    deliver(e);
  else
    send_remote(e);
}

void router::inject_faults(const std::vector<fault_rule>& rules) {
  if (rules.empty()) return;
  faults_ = std::make_unique<fault_injector>(
      self_, rules, [this](const envelope& e) { hand_over(e); },
      [this](const envelope& e) { post(e); });
}

void router::deliver(const envelope& e) {
  if (faults_)
    faults_->pass(e);
  else
    hand_over(e);
}

void router::hand_over(const envelope& e) {
  std::shared_lock lock(roles_mutex_);
  const auto& h = roles_[static_cast<std::size_t>(e.to.role)];
  if (!h) {
    misdirected_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (e.from.rank == self_) local_.fetch_add(1, std::memory_order_relaxed);
  h(e);
}

void router::send_remote(const envelope& e) {
  if (!link_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto frame = encode(e);
  std::lock_guard lock(overflow_mutex_);
  auto& waiting = overflow_[e.to.rank];
  if (waiting.empty()) {
    switch (link_->post(e.to.rank, frame)) {
    case post_status::accepted:
      sent_.fetch_add(1, std::memory_order_relaxed);
      return;
    case post_status::busy:
      break;
    default:
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  if (waiting.size() < overflow_frames_max)
    waiting.push_back(std::move(frame));
  else
    dropped_.fetch_add(1, std::memory_order_relaxed);
}

void router::space(rank_id to) {
  std::lock_guard lock(overflow_mutex_);
  auto& waiting = overflow_[to];
  while (!waiting.empty()) {
    const auto status = link_->post(to, waiting.front());
    if (status == post_status::busy) return;
    (status == post_status::accepted ? sent_ : dropped_).fetch_add(1, std::memory_order_relaxed);
    waiting.pop_front();
  }
}

bool router::receive(rank_id from, std::string_view frame) {
  if (unread_.load(std::memory_order_relaxed) >= unread_max) return false;
  const auto e = decode(frame);
  if (!e)
    undecodable_.fetch_add(1, std::memory_order_relaxed);
  else if (e->from.rank != from || e->to.rank != self_)
    misdirected_.fetch_add(1, std::memory_order_relaxed);
  else {
    received_.fetch_add(1, std::memory_order_relaxed);
    deliver(*e);
  }
  return true;
}

void router::consumed(const envelope& e) {
  if (e.from.rank != self_) unread_.fetch_sub(1, std::memory_order_relaxed);
}

void router::count_misdirected(const envelope&) {
  misdirected_.fetch_add(1, std::memory_order_relaxed);
}

router_stats router::stats() const {
  return {local_, sent_, received_, undecodable_, misdirected_, dropped_};
}

} // namespace adafloor
