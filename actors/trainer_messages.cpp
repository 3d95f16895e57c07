// The trainer's input: files at the start, messages while the job runs.
#include "actors/response_log.hpp"
#include "actors/trainer.hpp"
#include "gpu/engine.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace adafloor {
namespace {

result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return bad_input("cannot read " + path + "; check that the file exists");
  return text.str();
}

result<length_history> read_history(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  return parse_history(*text, path);
}

} // namespace

/// The longest request must fit a rank of the full world, or nobody could ever admit it.
result<void> trainer::check_budget() const {
  if (task_.kv.rank_memory_bytes == 0 || around_.capacities.empty()) return {};
  std::uint64_t longest = 0;
  for (const auto& p : prompts_)
    longest = std::max<std::uint64_t>(longest, p.tokens.size() + task_.rollout.max_response_length);
  const auto room = static_cast<std::uint64_t>(around_.capacities.front().tokens);
  if (longest <= room / kv_page_tokens * kv_page_tokens) return {};
  return bad_input("--rank-memory-bytes " + std::to_string(task_.kv.rank_memory_bytes)
                   + ": leaves room for " + std::to_string(room)
                   + " KV tokens beside a rank's weights; one request needs "
                   + std::to_string(longest) + "; raise it or lower --max-response-length");
}

result<void> trainer::load() {
  if (auto r = load_work(); !r) return r;
  if (auto r = check_budget(); !r) return r;
  if (!task_.history.empty()) {
    auto history = read_history(task_.history);
    if (!history) return tl::unexpected(history.error());
    history_ = std::move(*history);
  }
  auto file = durable_file::open(task_.out_dir + "/responses.jsonl");
  if (!file) return tl::unexpected(file.error());
  responses_file_ = std::move(*file);
  if (task_.output.token_log) {
    auto log = token_log::open(task_.out_dir + "/tokens.log");
    if (!log) return tl::unexpected(log.error());
    tokens_file_ = std::move(*log);
  }
  auto lent = lease_queues::open(task_);
  if (!lent) return tl::unexpected(lent.error());
  lent_ = std::move(*lent);
  return load_earlier();
}

/// The prompts; for a replay with the lengths of their responses.
result<void> trainer::load_work() {
  if (!is_emulated(task_)) {
    auto prompts = load_prompts(task_.prompts, around_.vocabulary);
    if (!prompts) return tl::unexpected(prompts.error());
    prompts_ = std::move(*prompts);
    return {};
  }
  auto workload = read_history(task_.workload);
  if (!workload) return tl::unexpected(workload.error());
  auto epoch = recorded_epoch_of(task_, *workload);
  if (!epoch) return tl::unexpected(epoch.error());
  prompts_ = std::move(epoch->prompts);
  recorded_ = std::move(epoch->lengths);
  return {};
}

void trainer::handle(const envelope& e) {
  std::visit([&](const auto& m) { on(m, e); }, e.body);
}

bool trainer::on_disk(const result<void>& done) {
  if (!done) disk_error_ = done.error();
  return done.has_value();
}

/// As recorder: durable first, then acknowledged.
void trainer::on(const response& m, const envelope&) {
  if (!step_ || m.rollout != step_->rollout || m.request.value >= step_->keys.size()) return;
  const auto key = step_->keys[m.request.value];
  // The engine knows only the limit that it was given; here it is known who set it.
  const auto stop = m.stop == finish_reason::length ? reason_of_limit(key) : m.stop;
  if (step_->kept.count(key) == 0) {
    kept_response r{m.tokens, m.logprobs, stop};
    const response_head head{at_, books_.arm, prompts_[key.first].id, key.second};
    if (!on_disk(responses_file_->append(response_line(head, r)))) return;
    const auto& policy = task_.output.fsync;
    if ((policy == "response" || policy == "batch") && !on_disk(responses_file_->sync())) return;
    step_->tokens += m.tokens.size();
    queue_score(at_, key, step_->kept[key] = std::move(r));
    tell_progress();
  }
  tell(role_kind::recorder, role_kind::planner, response_kept{m.rollout, m.request});
}

/// As recorder: the planner passes each batch on once and in order.
void trainer::on(const token_batch& m, const envelope& e) {
  if (!tokens_file_ || !on_disk(tokens_file_->append(e))) return;
  if (task_.output.fsync == "batch" && !on_disk(tokens_file_->sync())) return;
  tell(role_kind::recorder, role_kind::planner, tokens_kept{m.rollout, e.from.rank, m.sequence});
}

finish_reason trainer::reason_of_limit(const response_key& key) const {
  const auto longest = task_.rollout.max_response_length;
  if (is_emulated(task_)) {
    const auto recorded = static_cast<std::uint32_t>(recorded_[key.first][key.second]);
    if (recorded <= step_->cap && recorded < longest) return finish_reason::eos;
  }
  return step_->cap < longest ? finish_reason::guard : finish_reason::length;
}

void trainer::tell_progress() {
  constexpr microseconds progress_every{250'000};
  const auto at =
      std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch());
  const bool last = step_->kept.size() == step_->keys.size();
  if (!last && at - step_->progress_at < progress_every) return;
  step_->progress_at = at;
  events_.emit("progress", {{"arm", books_.arm},
                            {"step", step_->number},
                            {"finished", step_->kept.size()},
                            {"total", step_->keys.size()},
                            {"generated_tokens", step_->tokens},
                            {"group_size", step_->group_size}});
}

void trainer::on(const rollout_report& m, const envelope& e) {
  if (!step_ || m.rollout != step_->rollout) return;
  auto& report = step_->reports[e.from.rank] = m;
  for (auto& i : report.intervals)
    i = {i.state, booked(task_, i.begin), booked(task_, i.end)};
}

transition_record trainer::in_books(transition_record t) const {
  t.began_at = booked(task_, t.began_at);
  t.settled_at = booked(task_, t.settled_at);
  t.pause_max = booked(task_, t.pause_max);
  return t;
}

void trainer::on(const rollout_done& m, const envelope&) {
  if (!step_ || m.rollout != step_->rollout) return;
  auto& done = step_->done.emplace(m);
  done.began_at = booked(task_, m.began_at);
  done.ended_at = booked(task_, m.ended_at);
  for (auto& t : done.transitions)
    t = in_books(std::move(t));
}

void trainer::on(const rollout_failed& m, const envelope&) {
  if (step_) step_->failed = m;
}

/// As recorder: a unit's result is written once, whatever comes twice.
void trainer::on(const work_result& m, const envelope& e) {
  const auto kept = lent_->keep(m, e.stamp);
  if (!kept) disk_error_ = kept.error();
  if (kept && *kept) tell(role_kind::recorder, role_kind::broker, work_kept{m.lease, m.unit});
}

void trainer::queue_score(const job_point& at, const response_key& key, const kept_response& r) {
  const auto& prompt = prompts_[key.first];
  auto unit = lent_->score({at.arm, at.epoch, at.step, key.first, prompt.id, key.second},
                           prompt.tokens, r.tokens, policy_of(at.epoch));
  if (unit) tell(role_kind::trainer, role_kind::broker, queue_work{{std::move(*unit)}});
}

void trainer::on(const lease_record& told, const envelope&) {
  auto m = told;
  for (auto* at : {&m.window, &m.granted_at, &m.working_at, &m.revoked_at, &m.returned_at})
    *at = booked(task_, *at);
  recent_.leases.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_ ? json(step_->number) : json()}};
  fields.update(lease_json(m));
  events_.emit("lease", std::move(fields));
}

void trainer::on(const lending_state& m, const envelope&) {
  books_.lending = m;
}

/// The job goes on with fewer ranks: nobody may overlook that.
void trainer::on(const rank_quarantined& m, const envelope&) {
  quarantined_.push_back(m);
  recent_.quarantined.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_ ? json(step_->number) : json()}};
  fields.update(quarantine_json(m));
  events_.emit("quarantine", std::move(fields));
}

void trainer::on(const rank_lost& m, const envelope&) {
  lost_.push_back(m);
  recent_.lost.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_ ? json(step_->number) : json()}};
  fields.update(lost_json(m));
  events_.emit("rank_lost", std::move(fields));
}

void trainer::on(const recovery_record& m, const envelope&) {
  recent_.recoveries.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_ ? json(step_->number) : json()}};
  fields.update(recovery_json(m));
  events_.emit("recovery", std::move(fields));
}

void trainer::on(const request_moved& m, const envelope& e) {
  if (!step_ || m.key.rollout != step_->rollout) return;
  recent_.moves.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_->number}};
  fields.update(move_json(m, e.from.rank));
  events_.emit("move", std::move(fields));
}

void trainer::on(const transition_record& m, const envelope&) {
  if (!step_) return;
  step_->group_size = m.to;
  json fields{{"arm", books_.arm}, {"step", step_->number}};
  fields.update(transition_json(in_books(m)));
  events_.emit("transition", std::move(fields));
}

void trainer::on(const weights_updated& m, const envelope&) {
  updated_ = m;
}

void trainer::on(const weights_refused& m, const envelope&) {
  refused_ = m;
}

void trainer::on(const stopped&, const envelope&) {
  world_stopped_ = true;
}

} // namespace adafloor
