// The trainer takes a job up that ended in the middle: from books.jsonl, responses.jsonl and
// tokens.log (see step_books.hpp).
#include "actors/response_log.hpp"
#include "actors/trainer.hpp"

#include <sstream>

namespace adafloor {

result<void> trainer::load_earlier() {
  if (!steps_over_.continues()) return {};
  const auto& line = steps_over_.earlier();
  earlier_.emplace();
  earlier_->next = line.next;
  rollouts_ = line.rollouts;
  if (auto r = load_earlier_responses(); !r) return r;
  if (!tokens_file_ || is_emulated(task_)) return {}; // What an emulated rank says is made up anew.
  const rollout_id interrupted(rollouts_ + 1);
  auto log = read_token_log(tokens_file_->path(), interrupted);
  if (!log) return tl::unexpected(log.error());
  if (const auto found = log->find(interrupted); found != log->end())
    earlier_->tokens = std::move(found->second);
  return {};
}

result<void> trainer::load_earlier_responses() {
  std::map<std::string, std::size_t> prompts;
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    prompts.emplace(prompts_[i].id, i);
  std::istringstream lines(responses_file_->take_earlier());
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto place = responses_file_->path() + ":" + std::to_string(++number);
    auto read = read_response_line(line, task_.arms, place);
    if (!read) return tl::unexpected(read.error());
    auto& [head, response] = *read;
    const auto prompt = prompts.find(head.prompt_id);
    if (prompt == prompts.end())
      return bad_input(place + ": prompt \"" + head.prompt_id + "\" is not in " + task_.prompts
                       + "; was that file changed?");
    if (!is_past(head.at.arm))
      earlier_->responses[head.at][{prompt->second, head.sample}] = std::move(response);
  }
  return {};
}

bool trainer::is_past(std::uint32_t arm) const {
  const bool needed = task_.guard.enabled || !task_.sidecar.score_with.empty();
  return earlier_ && arm < earlier_->next.arm && !needed;
}

result<void> trainer::open_books(std::uint32_t arm) {
  books_ = {};
  recent_ = {};
  books_.arm = task_.arms[arm];
  books_.world_size = task_.world_size;
  const auto options = arm_options(task_, books_.arm, around_.capacities);
  if (!options) return tl::unexpected(options.error());
  books_.floor = books_.arm == "vanilla" ? task_.world_size : task_.ep.floor;
  books_.residency = options->residency;
  books_.migrate = options->migrate;
  units_before_ = lent_->counts();
  if (is_over({arm, task_.epochs, 0})) return {};
  if (earlier_ && earlier_->next.arm == arm) {
    const auto& line = steps_over_.earlier();
    static_cast<arm_sums&>(books_) = line.sums;
    static_cast<arm_lists&>(books_) = line.added;
    units_before_ = line.units_before;
    return {};
  }
  recent_.quarantined = quarantined_;
  recent_.lost = lost_;
  if (auto r = write_books({arm, 0, 0}); !r) return r;
  events_.emit(
      "arm_begin",
      {{"arm", books_.arm},
       {"seconds",
        events_.seconds(booked(task_, std::chrono::duration_cast<microseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())))}});
  return {};
}

result<void> trainer::take_kept(const job_point& at, const rollout_step& plan) {
  auto& kept = earlier_->responses[at];
  for (const auto& p : plan.prompts)
    for (std::uint32_t sample = 0; sample < task_.n; ++sample) {
      const auto found = kept.find({p.prompt, sample});
      if (found == kept.end())
        return bad_input(responses_file_->path() + ": has no response to prompt \""
                         + prompts_[p.prompt].id + "\", sample " + std::to_string(sample)
                         + ", of arm " + books_.arm + ", epoch " + std::to_string(at.epoch)
                         + ", step " + std::to_string(at.step)
                         + ", which is over; start the job anew in another folder");
      const bool cut = found->second.stop == finish_reason::guard;
      if (earlier_->next.arm > at.arm && cut) ++books_.truncated_by_guard;
      queue_score(at, found->first, found->second);
    }
  books_.epoch.merge(kept);
  earlier_->responses.erase(at);
  return {};
}

result<begin_rollout> trainer::take_up(const job_point& at, const rollout_step& plan) {
  resumption done{at.epoch, at.step, 0, 0, steps_over_.seconds_since_newest()};
  step_->kept = std::move(earlier_->responses[at]);
  auto order = make_rollout(plan);
  for (const auto& [key, r] : step_->kept) {
    step_->tokens += r.tokens.size();
    queue_score(at, key, r);
  }
  for (const auto& request : order.requests) {
    const auto found = earlier_->tokens.find(request.id);
    if (found == earlier_->tokens.end() || !(found->second.spec == request)) continue;
    auto& known = found->second;
    if (known.tokens.empty()) continue;
    done.tokens += known.tokens.size();
    order.resumed.push_back({request.id, 0, std::move(known.tokens), std::move(known.logprobs)});
  }
  done.responses = step_->kept.size();
  earlier_.reset();
  json fields{{"arm", books_.arm}};
  fields.update(resumption_json(done));
  events_.emit("resumed", std::move(fields));
  recent_.resumptions.push_back(done);
  if (auto r = write_books(at); !r) return tl::unexpected(r.error());
  return order;
}

result<void> trainer::write_books(const job_point& next) {
  books_line line;
  line.next = next;
  line.rollouts = rollouts_;
  line.units_before = units_before_;
  line.sums = books_;
  line.added = recent_;
  if (auto r = steps_over_.append(std::move(line)); !r) return r;
  books_.append(std::exchange(recent_, {}));
  return task_.output.fsync == "never" ? result<void>{} : steps_over_.sync();
}

} // namespace adafloor
