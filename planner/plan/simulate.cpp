#include "planner/plan/simulate.hpp"

#include "planner/plan/group_sim.hpp"

#include <algorithm>
#include <limits>

namespace adafloor {

group_sim::group_sim(const step_plan& plan, const std::vector<prompt_lengths>& truth,
                     const std::vector<predicted_prompt>& predicted, const plan_options& options,
                     const sim_controls& controls)
  : plan_(plan), truth_(truth), predicted_(predicted), options_(options), controls_(controls),
    ranks_(static_cast<std::size_t>(options.world)) {
  for (int r = 0; r < options.world; ++r)
    members_.emplace_back(static_cast<std::uint32_t>(r));
  load(controls.apply_guard_cap);
}

void group_sim::load(bool apply_cap) {
  auto add = [&](std::size_t prompt, std::int32_t length, std::size_t rank) {
    sim_request request;
    request.prompt = prompt;
    request.length = std::min(length, options_.kv.max_response_length);
    if (plan_.guard_cap > 0 && request.length > plan_.guard_cap && apply_cap) {
      request.length = plan_.guard_cap;
      ++result_.truncated_by_guard;
    }
    request.held_prompt = options_.kv.count_prompt_tokens ? truth_[prompt].prompt_tokens : 0;
    request.rank = static_cast<int>(rank);
    result_.generated_tokens += request.length;
    ++result_.responses;
    if (request.length <= 0) {
      request.rank = -1;
    } else {
      ranks_[rank].waiting.push_back(static_cast<int>(requests_.size()));
      ++unfinished_;
    }
    requests_.push_back(request);
  };
  std::size_t next = 0;
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r)
    for (auto prompt : plan_.ranks[r])
      for (auto length : truth_[prompt].lengths)
        add(prompt, length, controls_.stripe ? next++ % ranks_.size() : r);
}

std::int64_t group_sim::resident(int rank) const {
  const auto& r = ranks_[static_cast<std::size_t>(rank)];
  return static_cast<std::int64_t>(r.live.size()) * step_ + r.base;
}

std::int64_t group_sim::capacity() const {
  if (!options_.resize_pool) return plan_.capacity_tokens;
  return capacity_at(options_.capacities, static_cast<int>(members_.size()), options_.experts);
}

void group_sim::refresh(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  r.next_finish = std::numeric_limits<std::int64_t>::max();
  for (int i : r.live) {
    const auto& request = requests_[static_cast<std::size_t>(i)];
    r.next_finish = std::min(r.next_finish, request.offset + request.length);
  }
}

void group_sim::start(int rank, int index) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  auto& request = requests_[static_cast<std::size_t>(index)];
  request.rank = rank;
  r.live.push_back(index);
  r.base += request.held_prompt - request.offset;
  r.next_finish = r.live.size() == 1 ? request.offset + request.length
                                     : std::min(r.next_finish, request.offset + request.length);
  ++live_;
}

void group_sim::stop(int rank, int index) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  const auto& request = requests_[static_cast<std::size_t>(index)];
  r.live.erase(std::find(r.live.begin(), r.live.end(), index));
  r.base -= request.held_prompt - request.offset;
  --live_;
}

// Starts waiting requests while there is room; a preempted one pays the prefill of what it had.
void group_sim::admit(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  while (!r.waiting.empty() && static_cast<int>(r.live.size()) < options_.max_num_seqs) {
    auto& request = requests_[static_cast<std::size_t>(r.waiting.front())];
    auto had = request.started ? -request.offset : 0; // see preempt()
    bool fits = resident(rank) + had + request.held_prompt + 1 <= capacity();
    if (!fits && !r.live.empty()) return; // an empty rank takes one whatever happens
    request.offset = step_ - had;
    if (request.started && options_.costs.prefill_tokens_per_second > 0)
      spend(static_cast<double>(had + request.held_prompt)
                / options_.costs.prefill_tokens_per_second,
            true);
    request.started = true;
    int index = r.waiting.front();
    r.waiting.pop_front();
    start(rank, index);
  }
}

// The youngest request gives its memory back and waits; its tokens are kept in -offset.
void group_sim::preempt(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  int youngest = r.live.front();
  for (int i : r.live)
    if (std::pair(requests_[static_cast<std::size_t>(i)].offset, i)
        > std::pair(requests_[static_cast<std::size_t>(youngest)].offset, youngest))
      youngest = i;
  stop(rank, youngest);
  auto& request = requests_[static_cast<std::size_t>(youngest)];
  request.offset = request.offset - step_;
  r.waiting.push_front(youngest);
  refresh(rank);
  ++result_.preemptions;
}

// Moves the request with most tokens left to the member with most room for it, if migration is on.
bool group_sim::unload(int rank, std::int64_t room_step) {
  if (options_.migrate == migrate_kind::off || options_.policy != plan_policy::adaptive)
    return false;
  int target = -1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (auto member : members_) {
    int m = static_cast<int>(member.value);
    const auto& r = ranks_[static_cast<std::size_t>(m)];
    if (m == rank || static_cast<int>(r.live.size()) >= options_.max_num_seqs) continue;
    auto then = resident(m) + static_cast<std::int64_t>(r.live.size()) * room_step;
    if (then < least) {
      least = then;
      target = m;
    }
  }
  if (target < 0) return false;
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  int chosen = r.live.front();
  for (int i : r.live)
    if (requests_[static_cast<std::size_t>(i)].offset
        < requests_[static_cast<std::size_t>(chosen)].offset)
      chosen = i;
  auto& request = requests_[static_cast<std::size_t>(chosen)];
  auto tokens = step_ - request.offset + request.held_prompt;
  if (least + tokens + room_step > capacity()) return false;
  stop(rank, chosen);
  start(target, chosen);
  refresh(rank);
  ++result_.migrations;
  result_.migrated_tokens += static_cast<double>(tokens);
  double blackout =
      options_.costs.blackout_seconds + copy_seconds(options_.costs, static_cast<double>(tokens));
  result_.longest_copy_seconds = std::max(result_.longest_copy_seconds, blackout);
  pause(blackout);
  return true;
}

// Makes room on a rank whose next step would exceed the pool; false if nothing had to be done.
bool group_sim::relieve(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  if (r.live.size() < 2 || resident(rank) + static_cast<std::int64_t>(r.live.size()) <= capacity())
    return false;
  if (!unload(rank, 256)) preempt(rank);
  return true;
}

// The step until which nothing changes: the next finish, overflow or change of the fullest rank.
std::int64_t group_sim::horizon(int* widest) const {
  auto until = std::numeric_limits<std::int64_t>::max();
  *widest = -1;
  std::int64_t most = -1;
  for (auto member : members_) {
    int m = static_cast<int>(member.value);
    const auto& r = ranks_[member.value];
    if (r.live.empty()) continue;
    auto n = static_cast<std::int64_t>(r.live.size());
    until = std::min(until, r.next_finish);
    auto held = resident(m);
    if (n > 1) until = std::min(until, step_ + std::max<std::int64_t>((capacity() - held) / n, 1));
    if (held > most
        || (held == most
            && r.live.size() > ranks_[static_cast<std::size_t>(*widest)].live.size())) {
      most = held;
      *widest = m;
    }
  }
  if (*widest < 0) return until;
  const auto& top = ranks_[static_cast<std::size_t>(*widest)];
  for (auto member : members_) {
    const auto& r = ranks_[member.value];
    if (r.live.size() <= top.live.size()) continue;
    auto faster = static_cast<std::int64_t>(r.live.size() - top.live.size());
    auto gap = most - resident(static_cast<int>(member.value));
    until = std::min(until, step_ + gap / faster + 1);
  }
  return until;
}

void group_sim::draw(int rank, rank_span::kind_type kind, double from, double to) {
  if (!controls_.record_spans || to <= from) return;
  for (auto last = result_.spans.rbegin(); last != result_.spans.rend(); ++last) {
    if (last->rank != rank) continue;
    if (last->kind != kind || last->to_seconds < from - 1e-9) break;
    last->to_seconds = to;
    return;
  }
  result_.spans.push_back({kind, rank, from, to});
}

// Time passes for every rank: members decode or wait, the others are leased.
void group_sim::spend(double seconds, bool decoding) {
  if (seconds <= 0) return;
  auto& ledger = result_.ledger;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    auto kind = rank_span::leased;
    if (ranks_[r].member) {
      kind = rank_span::transition;
      if (decoding) kind = ranks_[r].live.empty() ? rank_span::dummy : rank_span::busy;
    }
    switch (kind) {
    case rank_span::busy:
      ledger.busy += seconds;
      break;
    case rank_span::dummy:
      ledger.dummy += seconds;
      break;
    case rank_span::leased:
      ledger.leased += seconds;
      break;
    default:
      ledger.transition += seconds;
      break;
    }
    draw(static_cast<int>(r), kind, now_, now_ + seconds);
  }
  now_ += seconds;
}

void group_sim::pause(double seconds) {
  spend(seconds, false);
}

void group_sim::decode(std::int64_t until, int widest) {
  int batch = 0, working = 0;
  for (auto member : members_) {
    auto size = static_cast<int>(ranks_[member.value].live.size());
    batch = std::max(batch, size);
    working += size > 0 ? 1 : 0;
  }
  auto cost = decode_cost(options_.costs, static_cast<int>(members_.size()), working, batch, live_);
  auto n = static_cast<double>(until - step_);
  auto slope = static_cast<double>(ranks_[static_cast<std::size_t>(widest)].live.size());
  double kv_sum = n * static_cast<double>(resident(widest)) + slope * n * (n + 1) / 2;
  spend((n * cost.constant_ms + cost.per_max_kv_ms * kv_sum) / 1000, true);
  step_ = until;
}

void group_sim::finish_due() {
  for (auto member : members_) {
    int m = static_cast<int>(member.value);
    auto& r = ranks_[member.value];
    if (r.live.empty() || r.next_finish > step_) continue;
    std::vector<int> done;
    for (int i : r.live) {
      const auto& request = requests_[static_cast<std::size_t>(i)];
      if (request.offset + request.length <= step_) done.push_back(i);
    }
    for (int i : done) {
      stop(m, i);
      requests_[static_cast<std::size_t>(i)].rank = -1;
      --unfinished_;
    }
    refresh(m);
    admit(m);
  }
}

// Exits of a script, in order. One that cannot be taken at its moment blocks those after it.
void group_sim::follow_script() {
  while (scripted_done_ < controls_.script.size() && unfinished_ > 0) {
    const auto& next = controls_.script[scripted_done_];
    std::vector<rank_id> unfinished;
    for (auto member : members_)
      if (!ranks_[member.value].live.empty()) unfinished.push_back(member);
    bool due = static_cast<double>(step_) >= next.at;
    if (!due || next.to >= static_cast<int>(members_.size())) return;
    auto survivors = survivors_for(unfinished, members_, next.to);
    if (!survivors) return;
    ++scripted_done_;
    apply({next.to, std::move(*survivors), {}});
  }
}

void group_sim::consider_exit() {
  if (controls_.scripted) return follow_script();
  for (;;) {
    std::vector<int> counts;
    for (auto member : members_)
      counts.push_back(
          static_cast<int>(ranks_[member.value].live.size() + ranks_[member.value].waiting.size()));
    if (unfinished_ == 0 || !may_exit(plan_, options_, counts, memory_)) return;
    exit_view view;
    view.members = members_;
    view.step = static_cast<double>(step_);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const auto& request = requests_[i];
      if (request.rank < 0) continue;
      bool waiting = std::find(ranks_[static_cast<std::size_t>(request.rank)].waiting.begin(),
                               ranks_[static_cast<std::size_t>(request.rank)].waiting.end(),
                               static_cast<int>(i))
                     != ranks_[static_cast<std::size_t>(request.rank)].waiting.end();
      auto tokens = waiting ? (request.started ? -request.offset : 0) : step_ - request.offset;
      view.live.push_back({i, request.prompt, rank_id{static_cast<std::uint32_t>(request.rank)},
                           static_cast<double>(tokens), static_cast<double>(request.held_prompt)});
    }
    auto choice = decide_exit(plan_, options_, predicted_, view, memory_);
    if (!choice) return;
    apply(*choice);
  }
}

void group_sim::apply(const exit_choice& choice) {
  sim_transition transition;
  transition.from = static_cast<int>(members_.size());
  transition.to = choice.to;
  transition.at_step = static_cast<double>(step_);
  transition.at_seconds = now_;
  transition.moved = static_cast<int>(choice.moves.size());
  std::vector<double> received(ranks_.size(), 0);
  for (const auto& move : choice.moves) {
    int index = static_cast<int>(move.request);
    auto& request = requests_[move.request];
    auto& from = ranks_[move.from.value];
    int to = static_cast<int>(move.to.value);
    auto waiting = std::find(from.waiting.begin(), from.waiting.end(), index);
    if (waiting != from.waiting.end()) {
      from.waiting.erase(waiting);
      ranks_[move.to.value].waiting.push_back(index);
      request.rank = to;
    } else {
      stop(static_cast<int>(move.from.value), index);
      start(to, index);
      auto tokens = static_cast<double>(step_ - request.offset + request.held_prompt);
      received[move.to.value] += tokens;
      transition.moved_tokens += tokens;
      result_.migrated_tokens += tokens;
    }
    ++result_.migrations;
  }
  double copy = 0;
  for (double tokens : received)
    copy = std::max(copy, copy_seconds(options_.costs, tokens));
  bool leaves = transition.to < transition.from;
  double blackout = choice.moves.empty() ? 0 : options_.costs.blackout_seconds + copy;
  result_.longest_copy_seconds = std::max(result_.longest_copy_seconds, blackout);
  if (leaves)
    transition.pause_seconds = exit_seconds(options_.costs, transition.from, transition.to)
                               + options_.costs.lease_start_seconds;
  transition.pause_seconds += blackout;
  pause(transition.pause_seconds);
  members_ = choice.survivors;
  for (auto& r : ranks_)
    r.member = false;
  for (auto member : members_) {
    ranks_[member.value].member = true;
    refresh(static_cast<int>(member.value));
    admit(static_cast<int>(member.value));
  }
  if (leaves) result_.transitions.push_back(transition);
}

step_result group_sim::run() {
  if (controls_.oracle) {
    // Draws that are never outlived: the truth.
    memory_.finals.assign(static_cast<std::size_t>(std::max(5, options_.scenarios)), {});
    for (auto& finals : memory_.finals)
      for (const auto& request : requests_)
        finals.push_back(request.length);
  }
  for (auto member : members_)
    admit(static_cast<int>(member.value));
  consider_exit();
  while (unfinished_ > 0) {
    bool relieved = true;
    while (relieved) {
      relieved = false;
      for (auto member : members_)
        relieved |= relieve(static_cast<int>(member.value));
    }
    int widest = -1;
    auto until = horizon(&widest);
    decode(until, widest);
    finish_due();
    consider_exit();
  }
  const auto& costs = options_.costs;
  bool shrunk = static_cast<int>(members_.size()) < options_.world;
  result_.restored = shrunk;
  result_.steps = static_cast<double>(step_);
  double fixed = shrunk ? costs.fixed_shrunk_seconds : costs.fixed_seconds;
  double restore = shrunk ? std::min(costs.restore_seconds, fixed) : 0;
  for (auto& r : ranks_)
    r.member = true;
  result_.restore_seconds = restore;
  pause(restore);
  for (int r = 0; r < options_.world; ++r)
    draw(r, rank_span::idle, now_, now_ + fixed - restore);
  now_ += fixed - restore;
  result_.ledger.idle = options_.world * (fixed - restore);
  result_.seconds = now_;
  result_.ledger.rank_seconds = options_.world * now_;
  assert_exact(result_.ledger);
  return std::move(result_);
}

step_result simulate_step(const step_plan& plan, const std::vector<prompt_lengths>& truth,
                          const std::vector<predicted_prompt>& predicted,
                          const plan_options& options, const sim_controls& controls) {
  return group_sim{plan, truth, predicted, options, controls}.run();
}

} // namespace adafloor
