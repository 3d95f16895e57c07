// The trainer's input: files at the start, messages while the job runs.
#include "actors/trainer.hpp"

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

} // namespace

result<void> trainer::load() {
  auto prompts = load_prompts(task_.prompts, around_.vocabulary);
  if (!prompts) return tl::unexpected(prompts.error());
  prompts_ = std::move(*prompts);
  if (!task_.history.empty()) {
    auto text = read_text(task_.history);
    if (!text) return tl::unexpected(text.error());
    auto history = parse_history(*text, task_.history);
    if (!history) return tl::unexpected(history.error());
    history_ = std::move(*history);
  }
  auto file = durable_file::open(task_.out_dir + "/responses.jsonl");
  if (!file) return tl::unexpected(file.error());
  responses_file_ = std::move(*file);
  if (task_.sidecar.model.empty()) return {};
  auto queries = load_prompts(task_.sidecar.queries, std::numeric_limits<std::uint32_t>::max());
  if (!queries) return tl::unexpected(queries.error());
  queries_ = std::move(*queries);
  auto results = durable_file::open(task_.out_dir + "/sidecar.jsonl");
  if (!results) return tl::unexpected(results.error());
  std::istringstream earlier(results->earlier());
  for (std::string line; std::getline(earlier, line);) {
    const auto parsed = json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.contains("unit") && parsed["unit"].is_number_unsigned())
      units_kept_.insert(parsed["unit"].get<std::uint64_t>());
  }
  sidecar_file_ = std::move(*results);
  return {};
}

/// Read back from the file, so that it tells what a user of the results would find.
result<std::uint64_t> trainer::count_duplicates() const {
  if (!sidecar_file_) return 0;
  auto text = read_text(sidecar_file_->path());
  if (!text) return tl::unexpected(text.error());
  std::set<std::uint64_t> seen;
  std::uint64_t duplicates = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = json::parse(line, nullptr, false);
    if (parsed.is_discarded())
      return fail(error_code::internal, "a torn line in " + sidecar_file_->path());
    duplicates += seen.insert(parsed["unit"].get<std::uint64_t>()).second ? 0 : 1;
  }
  return duplicates;
}

void trainer::handle(const envelope& e) {
  std::visit([&](const auto& m) { on(m, e); }, e.body);
}

/// As recorder: durable first, then acknowledged.
void trainer::on(const response& m, const envelope&) {
  if (!step_ || m.rollout != step_->rollout || m.request.value >= step_->keys.size()) return;
  const auto key = step_->keys[m.request.value];
  // The engine knows only the limit that it was given; here it is known who set it.
  const bool capped = step_->cap < task_.rollout.max_response_length;
  const auto stop = capped && m.stop == finish_reason::length ? finish_reason::guard : m.stop;
  if (step_->kept.count(key) == 0) {
    const json line{{"arm", books_.arm},     {"epoch", books_.epochs.size() - 1},
                    {"step", step_->number}, {"prompt_id", prompts_[key.first].id},
                    {"sample", key.second},  {"stop", name_of(stop)},
                    {"tokens", m.tokens},    {"logprobs", m.logprobs}};
    if (auto r = responses_file_->append(line.dump()); !r) {
      disk_error_ = r.error();
      return;
    }
    step_->kept[key] = {m.tokens, m.logprobs, stop};
    step_->tokens += m.tokens.size();
    tell_progress();
  }
  tell(role_kind::recorder, role_kind::planner, response_kept{m.rollout, m.request});
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
  if (step_ && m.rollout == step_->rollout) step_->reports[e.from.rank] = m;
}

void trainer::on(const rollout_done& m, const envelope&) {
  if (step_ && m.rollout == step_->rollout) step_->done = m;
}

void trainer::on(const rollout_failed& m, const envelope&) {
  if (step_) step_->failed = m;
}

/// As recorder: a unit's result is written once, whatever comes twice.
void trainer::on(const work_result& m, const envelope&) {
  if (!sidecar_file_ || m.unit >= queries_.size()) return;
  const auto& query = queries_[m.unit];
  if (units_kept_.count(m.unit) == 0) {
    const bool correct = m.tokens == query.answer;
    const json line{{"unit", m.unit},
                    {"prompt_id", query.id},
                    {"lease", {m.lease.epoch.value, m.lease.counter}},
                    {"tokens", m.tokens},
                    {"correct", correct}};
    if (auto r = sidecar_file_->append(line.dump()); !r) {
      disk_error_ = r.error();
      return;
    }
    units_kept_.insert(m.unit);
    ++books_.units_completed;
    books_.units_correct += correct ? 1 : 0;
  }
  tell(role_kind::recorder, role_kind::broker, work_kept{m.lease, m.unit});
}

void trainer::on(const lease_record& m, const envelope&) {
  books_.leases.push_back(m);
  ++books_.leases_granted;
  const auto revoke = m.revoked_at.count() > 0 ? seconds_of(m.returned_at - m.revoked_at) : 0;
  events_.emit("lease", {{"arm", books_.arm},
                         {"step", step_ ? json(step_->number) : json()},
                         {"rank", m.rank.value},
                         {"lease", {m.lease.epoch.value, m.lease.counter}},
                         {"state", m.forced ? "forced" : "returned"},
                         {"seconds", seconds_of(m.returned_at - m.granted_at)},
                         {"units", m.units_done},
                         {"revoke_seconds", revoke}});
}

void trainer::on(const request_moved& m, const envelope& e) {
  if (!step_ || m.key.rollout != step_->rollout) return;
  books_.moves.push_back(m);
  json fields{{"arm", books_.arm}, {"step", step_->number}};
  fields.update(move_json(m, e.from.rank));
  events_.emit("move", std::move(fields));
}

void trainer::on(const transition_record& m, const envelope&) {
  if (!step_) return;
  step_->group_size = m.to;
  json fields{{"arm", books_.arm}, {"step", step_->number}};
  fields.update(transition_json(m));
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
