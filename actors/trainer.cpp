#include "actors/trainer.hpp"

#include "gpu/engine.hpp"

#include <algorithm>

namespace adafloor {
namespace {

microseconds now() {
  return std::chrono::duration_cast<microseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

constexpr microseconds poll_every{100'000}; ///< for interruption while no message comes

} // namespace

trainer::trainer(const job& task, event_stream& events, step_books books, surroundings around)
  : task_(task), events_(events), around_(std::move(around)), steps_over_(std::move(books)) {}

result<std::unique_ptr<trainer>> trainer::make(const job& task, event_stream& events,
                                               step_books books, surroundings around) {
  std::unique_ptr<trainer> t(new trainer(task, events, std::move(books), std::move(around)));
  if (auto r = t->load(); !r) return tl::unexpected(r.error());
  return t;
}

void trainer::push(const envelope& e) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(e);
  }
  wake_.notify_one();
}

void trainer::tell(role_kind from, role_kind to, any_message message) {
  envelope e;
  e.from = {rank_id(0), from};
  e.to = {rank_id(0), to};
  e.body = std::move(message);
  around_.post(std::move(e));
}

result<void> trainer::run() {
  for (auto& message : lent_->opening())
    tell(role_kind::trainer, role_kind::broker, std::move(message));
  const auto held_until = now() + microseconds(static_cast<std::int64_t>(task_.hold_seconds * 1e6));
  if (auto r = pump_until([&] { return now() >= held_until; }, microseconds::max()); !r) return r;
  for (std::uint32_t arm = 0; arm < task_.arms.size(); ++arm)
    if (!is_past(arm))
      if (auto r = run_arm(arm); !r) return r;
  compare_work();
  events_.emit("done", json::object());
  return {};
}

const std::string& trainer::policy_of(std::uint32_t epoch) const {
  return task_.models[std::min<std::size_t>(epoch, task_.models.size() - 1)];
}

result<void> trainer::run_epoch(std::uint32_t arm, std::uint32_t epoch, finished_arm& past) {
  const auto plan = plan_rollouts(task_, books_.arm, prompts_, history_, around_.capacities);
  if (!plan) return tl::unexpected(plan.error());
  for (std::uint32_t s = 0; s < plan->size(); ++s) {
    const job_point at{arm, epoch, s};
    if (is_over(at)) {
      if (auto r = take_kept(at, (*plan)[s]); !r) return r;
      continue;
    }
    if (auto r = load_policy(policy_of(epoch)); !r) return r;
    if (auto r = run_step(at, (*plan)[s]); !r) return r;
  }
  learn_lengths(books_.epoch);
  if (task_.guard.enabled) remember_epoch(past, *plan);
  return {};
}

result<void> trainer::run_arm(std::uint32_t number) {
  if (auto r = open_books(number); !r) return r;
  const auto history_before = history_;
  finished_arm past{books_.arm, {}, {}, 0};
  for (std::uint32_t epoch = 0; epoch < task_.epochs; ++epoch) {
    if (auto r = run_epoch(number, epoch, past); !r) return r;
    books_.end_epoch(prompts_);
  }
  history_ = history_before; // Each arm starts from what was known before the run.
  past.truncated_by_guard = books_.truncated_by_guard;
  finished_.push_back(std::move(past));
  if (is_over({number, task_.epochs, 0})) return {}; // Its result was told by the earlier try.
  const auto duplicates = lent_->duplicates();
  if (!duplicates) return tl::unexpected(duplicates.error());
  books_.units = lent_->counts() - units_before_;
  books_.units_duplicate = *duplicates;
  books_.behind_seconds = seconds_of(around_.behind->load());
  books_.append(std::move(recent_));
  events_.emit("arm_end", {{"number", number}, {"result", books_.to_json()}});
  return {};
}

void trainer::remember_epoch(finished_arm& past, const std::vector<rollout_step>& plan) const {
  past.epochs.push_back(plan);
  auto& tokens = past.tokens.emplace_back();
  for (const auto& [key, r] : books_.epoch)
    tokens[key] = static_cast<std::int32_t>(r.tokens.size());
}

/// Tells, for each arm whose responses the guard cut, what the whole work would have taken.
void trainer::compare_work() {
  const auto full = std::find_if(finished_.begin(), finished_.end(),
                                 [](const auto& arm) { return arm.truncated_by_guard == 0; });
  if (full == finished_.end()) return;
  for (const auto& arm : finished_) {
    const auto options = arm_options(task_, arm.arm, around_.capacities);
    if (arm.truncated_by_guard == 0 || !options) continue;
    if (const auto ratio = equal_work_ratio(arm, *full, *options))
      events_.emit("equal_work", {{"arm", arm.arm},
                                  {"lengths_of", full->arm},
                                  {"generated_tokens", full->generated_tokens()},
                                  {"time_ratio", *ratio}});
  }
}

/// The ranks start with the first model; another folder is a policy update.
result<void> trainer::load_policy(const std::string& dir) {
  if (policy_dir_.empty()) policy_dir_ = task_.models.front();
  if (dir == policy_dir_) return {};
  updated_.reset();
  refused_.reset();
  update_weights order{weights_id(++policies_ + 1), dir, 0, 0};
  if (!is_emulated(task_)) {
    const auto expected = checkpoint_tensors(dir);
    if (!expected) return tl::unexpected(expected.error());
    order.tensors = expected->tensors;
    order.digest = expected->digest;
  }
  tell(role_kind::trainer, role_kind::planner, order);
  auto r = pump_until([&] { return updated_ || refused_; }, microseconds{660'000'000});
  if (!r) return r;
  if (refused_)
    return fail(error_code::refused, "policy " + dir + " was not loaded: " + refused_->text);
  policy_dir_ = dir;
  events_.emit("weights", {{"arm", books_.arm},
                           {"version", updated_->version.value},
                           {"source", dir},
                           {"tensors", updated_->tensors + updated_->expert_tensors}});
  return {};
}

begin_rollout trainer::make_rollout(const rollout_step& plan) {
  begin_rollout out;
  out.rollout = step_->rollout;
  out.exits = plan.exits;
  out.predicted_tail = plan.predicted_tail;
  out.rules = plan.rules;
  const auto& how = task_.rollout;
  const auto versions = static_cast<std::uint32_t>(task_.models.size());
  const auto pass = books_.epochs < versions ? 0 : books_.epochs + 1 - versions;
  step_->cap = plan.response_cap > 0 ? std::min(plan.response_cap, how.max_response_length)
                                     : how.max_response_length;
  for (std::uint32_t i = 0; i < plan.prompts.size(); ++i)
    for (std::uint32_t sample = 0; sample < task_.n; ++sample) {
      const auto& p = plan.prompts[i];
      rollout_request r;
      r.id = request_id(step_->keys.size());
      step_->keys.emplace_back(p.prompt, sample);
      if (step_->kept.count(step_->keys.back()) != 0) continue;
      r.random_key = sample_key(how.seed + pass, prompts_[p.prompt].id, sample);
      r.prompt = prompts_[p.prompt].tokens;
      r.max_tokens = step_->cap;
      if (is_emulated(task_))
        r.max_tokens =
            std::min(r.max_tokens, static_cast<std::uint32_t>(recorded_[p.prompt][sample]));
      r.how = {how.temperature, how.top_p, how.top_k};
      out.requests.push_back(std::move(r));
      out.homes.push_back(p.home);
      out.rules.prompts.push_back(i);
    }
  return out;
}

result<void> trainer::run_step(const job_point& at, const rollout_step& plan) {
  at_ = at;
  step_.emplace();
  step_->rollout = rollout_id(rollouts_ + 1);
  step_->number = at.step;
  step_->group_size = task_.world_size;
  auto order = earlier_ ? take_up(at, plan) : result<begin_rollout>(make_rollout(plan));
  if (!order) return tl::unexpected(order.error());
  json exits = json::array();
  for (const auto& x : plan.exits)
    exits.push_back({{"at", x.at}, {"to", x.to}});
  events_.emit("step_begin", {{"arm", books_.arm},
                              {"step", at.step},
                              {"rollout", step_->rollout.value},
                              {"prompts", plan.prompts.size()},
                              {"responses", step_->keys.size()},
                              {"floor", plan.floor},
                              {"exits", exits},
                              {"tail", plan.predicted_tail}});
  if (order->requests.empty()) { // Only the end of the step was missing.
    step_->done.emplace();
    step_->done->began_at = step_->done->ended_at = booked(task_, now());
    return close_step();
  }
  if (tokens_file_)
    if (auto r = tokens_file_->begin(*order); !r) return r;
  ++rollouts_run_;
  tell(role_kind::trainer, role_kind::planner, std::move(*order));
  const auto done = [&] { return step_->done || step_->failed; };
  if (auto r = pump_until(done, microseconds::max()); !r) return r;
  if (step_->failed)
    return fail(step_->failed->peer_lost ? error_code::peer_lost : error_code::internal,
                step_->failed->text);
  return close_step();
}

/// At the end of a step.
result<void> trainer::sync_files() {
  if (task_.output.fsync == "never") return {};
  if (auto r = responses_file_->sync(); !r) return r;
  if (tokens_file_)
    if (auto r = tokens_file_->sync(); !r) return r;
  return lent_->sync();
}

/// On the emulated device a step has a fixed time after its last token, in which the world is
/// restored and results are kept. What is later than that is this machine's doing, and idle.
result<void> trainer::pass_fixed_time() {
  if (!is_emulated(task_)) return {};
  const auto options = arm_options(task_, books_.arm, around_.capacities);
  if (!options) return tl::unexpected(options.error());
  const auto& costs = options->costs;
  auto& done = *step_->done;
  auto decoded_at = done.began_at;
  for (const auto& [rank, report] : step_->reports)
    for (const auto& i : report.intervals)
      if (i.state == rank_state::busy || i.state == rank_state::dummy)
        decoded_at = std::max(decoded_at, i.end);
  const bool shrank = !done.transitions.empty();
  const auto fixed = shrank ? costs.fixed_shrunk_seconds : costs.fixed_seconds;
  const auto restore = shrank ? std::min(costs.restore_seconds, fixed) : 0;
  const auto after = [&](double seconds) {
    return decoded_at + microseconds(static_cast<std::int64_t>(seconds * 1e6));
  };
  if (auto r =
          pump_until([&] { return booked(task_, now()) >= after(fixed); }, microseconds::max());
      !r)
    return r;
  done.ended_at = std::max(done.ended_at, after(fixed));
  book_fixed_time(step_->reports, decoded_at, after(restore), done.ended_at);
  return {};
}

result<void> trainer::close_step() {
  if (auto r = pass_fixed_time(); !r) return r;
  const auto& done = *step_->done;
  if (auto r = sync_files(); !r) return r;
  auto ledger = ledger_of(step_->reports, done.began_at, done.ended_at);
  if (!ledger) return tl::unexpected(ledger.error());
  double reward = 0;
  std::uint64_t rewarded = 0;
  for (const auto& [key, r] : step_->kept) {
    if (prompts_[key.first].answer.empty()) continue;
    ++rewarded;
    reward += reward_of(key, r);
  }
  const auto seconds = seconds_of(done.ended_at - done.began_at);
  auto& changes = recent_.transitions;
  changes.insert(changes.end(), done.transitions.begin(), done.transitions.end());
  books_.rollout_seconds += seconds;
  books_.generated_tokens += step_->tokens;
  books_.responses += step_->kept.size();
  books_.rewarded += rewarded;
  books_.reward_sum += reward;
  books_.ledger.add(*ledger);
  for (const auto& [key, r] : step_->kept)
    books_.truncated_by_guard += r.stop == finish_reason::guard ? 1 : 0;
  ++rollouts_;
  if (auto r = write_books({at_.arm, at_.epoch, at_.step + 1}); !r) return r;
  for (const auto& [rank, report] : step_->reports)
    for (const auto& i : report.intervals)
      events_.emit("interval", {{"arm", books_.arm},
                                {"step", step_->number},
                                {"rank", rank.value},
                                {"state", name_of(i.state)},
                                {"begin", events_.seconds(i.begin)},
                                {"end", events_.seconds(i.end)}});
  events_.emit("step_end",
               {{"arm", books_.arm},
                {"step", step_->number},
                {"rollout_seconds", seconds},
                {"generated_tokens", step_->tokens},
                {"responses", step_->kept.size()},
                {"mean_reward", rewarded > 0 ? json(reward / double(rewarded)) : json()},
                {"aborted_transitions", done.aborted_transitions},
                {"ledger", ledger->to_json()}});
  books_.epoch.merge(step_->kept);
  step_.reset();
  constexpr double gap_max = 0.001;
  if (books_.ledger.gap() > gap_max)
    return fail(error_code::internal, "the ledger of arm " + books_.arm + " does not close");
  return {};
}

double trainer::reward_of(const response_key& key, const kept_response& r) const {
  return r.tokens == prompts_[key.first].answer ? 1 : 0;
}

/// What an epoch produced is history for the next one.
void trainer::learn_lengths(const std::map<response_key, kept_response>& responses) {
  const auto epoch = begin_run_epoch(history_);
  for (const auto& [key, r] : responses) {
    length_row row;
    row.epoch = epoch;
    row.prompt = history_.prompt_index(prompts_[key.first].id);
    row.position = static_cast<std::int32_t>(key.first);
    row.sample = static_cast<std::int32_t>(key.second);
    row.prompt_tokens = static_cast<std::int32_t>(prompts_[key.first].tokens.size());
    row.response_tokens = static_cast<std::int32_t>(r.tokens.size());
    row.truncated = r.stop == finish_reason::length || r.stop == finish_reason::guard;
    history_.rows.push_back(row);
  }
}

result<void> trainer::pump_until(const std::function<bool()>& ready, microseconds deadline) {
  const auto began = now();
  while (!ready()) {
    take_messages();
    if (disk_error_) return tl::unexpected(*disk_error_);
    if (around_.interrupted->load() && !world_stopped_)
      return fail(error_code::aborted, "interrupted; what was finished is kept");
    if (now() - began > deadline) return fail(error_code::timed_out, "no answer from the planner");
  }
  return {};
}

void trainer::stop_world(const std::string& reason) {
  tell(role_kind::trainer, role_kind::planner, stop{reason});
  const auto began = now();
  constexpr microseconds patience{5'000'000};
  while (!world_stopped_ && now() - began < patience)
    take_messages();
}

/// Handles what is queued; waits for a moment if that is nothing.
void trainer::take_messages() {
  std::deque<envelope> taken;
  {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, poll_every, [&] { return !queue_.empty(); });
    taken.swap(queue_);
  }
  for (const auto& e : taken)
    handle(e);
}

} // namespace adafloor
