#include "actors/lease_queues.hpp"

#include "actors/aux_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace adafloor {
namespace {

constexpr std::size_t queue_part = 256; ///< units in one queue_work

result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || !in.is_open())
    return bad_input("cannot read " + path + "; check that the file exists");
  return text.str();
}

std::vector<std::string> shell(const std::string& text) {
  return {"/bin/sh", "-c", text};
}

struct result_line {
  std::uint64_t unit = 0;
  bool correct = false, failed = false;
};

/// What a result line says, if it is one.
std::optional<result_line> read_result(const std::string& line) {
  const auto parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("unit") || !parsed["unit"].is_number_unsigned())
    return {};
  const auto correct = parsed.find("correct");
  return result_line{parsed["unit"].get<std::uint64_t>(),
                     correct != parsed.end() && correct->is_boolean() && correct->get<bool>(),
                     parsed.contains("error")};
}

} // namespace

result<std::vector<std::vector<std::string>>> load_commands(const std::string& file) {
  auto text = read_text(file);
  if (!text) return tl::unexpected(text.error());
  std::vector<std::vector<std::string>> commands;
  std::istringstream lines(*text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto parsed = json::parse(line, nullptr, false);
    const auto command = parsed.is_object() ? parsed.value("command", json()) : json();
    const bool words = command.is_array() && !command.empty()
                       && std::all_of(command.begin(), command.end(),
                                      [](const json& word) { return word.is_string(); });
    if (words)
      commands.push_back(command.get<std::vector<std::string>>());
    else if (command.is_string())
      commands.push_back(shell(command.get<std::string>()));
    else
      return bad_input(fmt::format("{}:{}: must be {{\"command\": \"text for /bin/sh\"}} or "
                                   "{{\"command\": [\"program\", \"argument\", ...]}}",
                                   file, number));
  }
  if (commands.empty()) return bad_input(file + ": has no command");
  return commands;
}

result<std::vector<std::string>> load_inputs(const std::string& file) {
  auto text = read_text(file);
  if (!text) return tl::unexpected(text.error());
  std::vector<std::string> inputs;
  std::istringstream lines(*text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line.size() > aux_work::text_bytes_max)
      return bad_input(fmt::format("{}:{}: has {} bytes, at most {}; put more into a file and its "
                                   "name here",
                                   file, number, line.size(), aux_work::text_bytes_max));
    inputs.push_back(std::move(line));
  }
  if (inputs.empty()) return bad_input(file + ": has no line");
  return inputs;
}

result<lease_queues> lease_queues::open(const job& task) {
  lease_queues q(task);
  const auto& s = task.sidecar;
  if (!s.model.empty()) {
    auto queries = load_prompts(s.queries, std::numeric_limits<std::uint32_t>::max());
    if (!queries) return tl::unexpected(queries.error());
    q.queries_ = std::move(*queries);
    if (auto r = q.open_file(work_kind::generate, "sidecar.jsonl", s.generate); !r)
      return tl::unexpected(r.error());
  }
  if (!s.score_with.empty())
    if (auto r = q.open_file(work_kind::score, "scores.jsonl", s.score); !r)
      return tl::unexpected(r.error());
  if (auto r = q.read_commands(); !r) return tl::unexpected(r.error());
  if (!q.commands_.empty())
    if (auto r = q.open_file(work_kind::exec, "exec.jsonl", s.exec_queue); !r)
      return tl::unexpected(r.error());
  if (!s.callback.empty()) {
    auto inputs = load_inputs(s.callback_file);
    if (!inputs) return tl::unexpected(inputs.error());
    q.inputs_ = std::move(*inputs);
    if (auto r = q.open_file(work_kind::callback, "callback.jsonl", s.callback_queue); !r)
      return tl::unexpected(r.error());
  }
  return q;
}

result<void> lease_queues::read_commands() {
  const auto& s = task_->sidecar;
  if (!s.exec_file.empty()) {
    auto commands = load_commands(s.exec_file);
    if (!commands) return tl::unexpected(commands.error());
    commands_ = std::move(*commands);
  }
  if (!s.exec.empty()) commands_.insert(commands_.end(), s.exec_count, shell(s.exec));
  return {};
}

result<void> lease_queues::open_file(work_kind kind, const char* name,
                                     const queue_settings& served) {
  auto file = durable_file::open(task_->out_dir + "/" + name);
  if (!file) return tl::unexpected(file.error());
  auto& q = of(kind);
  std::istringstream earlier(file->take_earlier());
  for (std::string line; std::getline(earlier, line);)
    if (const auto done = read_result(line); done && q.kept.insert(done->unit).second)
      count(kind, done->correct, done->failed);
  q.file = std::move(*file);
  q.served = served;
  return {};
}

void lease_queues::count(work_kind kind, bool correct, bool failed) {
  switch (kind) {
  case work_kind::generate:
    ++counts_.completed;
    counts_.correct += correct ? 1 : 0;
    break;
  case work_kind::score:
    ++counts_.scored;
    break;
  case work_kind::exec:
    ++counts_.executed;
    break;
  case work_kind::callback:
    ++counts_.called;
    break;
  }
  counts_.failed += failed ? 1 : 0;
}

std::vector<work_unit> lease_queues::units() const {
  std::vector<work_unit> units;
  const auto add = [&](work_kind kind, std::uint64_t place) -> work_unit* {
    if (of(kind).kept.count(place) != 0) return nullptr;
    auto& unit = units.emplace_back();
    unit.unit = unit_number(kind, place);
    unit.queue = queue_of(kind);
    unit.kind = kind;
    return &unit;
  };
  for (std::size_t i = 0; i < queries_.size(); ++i)
    if (auto* unit = add(work_kind::generate, i)) {
      constexpr std::size_t least = 8;
      unit->prompt = queries_[i].tokens;
      unit->max_tokens = static_cast<std::uint32_t>(std::max(queries_[i].answer.size() + 1, least));
      unit->model = task_->sidecar.model;
    }
  for (std::size_t i = 0; i < commands_.size(); ++i)
    if (auto* unit = add(work_kind::exec, i)) unit->command = commands_[i];
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    if (auto* unit = add(work_kind::callback, i))
      unit->command = {task_->sidecar.callback, inputs_[i]};
  return units;
}

std::vector<any_message> lease_queues::opening() const {
  std::vector<any_message> out;
  for (std::uint32_t i = 0; i < queues_.size(); ++i)
    if (queues_[i].file)
      out.emplace_back(
          queue_policy{i, queues_[i].served.priority, queues_[i].served.weight, {}, {}});
  auto all = units();
  for (std::size_t from = 0; from < all.size(); from += queue_part) {
    const auto to = std::min(all.size(), from + queue_part);
    queue_work part;
    for (auto i = from; i < to; ++i)
      part.units.push_back(std::move(all[i]));
    out.emplace_back(std::move(part));
  }
  return out;
}

std::optional<work_unit> lease_queues::score(scored_response who,
                                             const std::vector<token_id>& prompt,
                                             const std::vector<token_id>& response,
                                             const std::string& model) {
  const auto& q = of(work_kind::score);
  if (!q.file || response.empty()) return {};
  constexpr std::uint64_t prompts_max = 1U << 20;
  const std::uint64_t pass = std::uint64_t{who.arm} * task_->epochs + who.epoch;
  const auto place = (pass * prompts_max + who.prompt) * task_->n + who.sample;
  if (q.kept.count(place) != 0) return {};
  scored_[place] = std::move(who);
  work_unit unit;
  unit.unit = unit_number(work_kind::score, place);
  unit.prompt = prompt;
  unit.max_tokens = static_cast<std::uint32_t>(response.size());
  unit.queue = queue_of(work_kind::score);
  unit.kind = work_kind::score;
  unit.response = response;
  unit.model = task_->sidecar.score_with == "self" ? model : task_->sidecar.score_with;
  return unit;
}

/// None for a unit that is not known.
std::optional<std::string> lease_queues::line_of(const work_result& done, const fence& stamp,
                                                 bool& correct) {
  const auto place = index_of_unit(done.unit);
  json head{{"unit", place},
            {"lease", {done.lease.epoch.value, done.lease.counter}},
            {"fence",
             {{"term", stamp.term.value},
              {"epoch", stamp.epoch.value},
              {"weights_version", stamp.weights.value}}}};
  const auto kind = kind_of_unit(done.unit);
  const bool failed = !done.error.empty();
  if (!done.text.empty()) head["text"] = done.text;
  if (failed) head["error"] = done.error;
  // What others wrote may be any bytes.
  const auto dump = [&] { return head.dump(-1, ' ', false, json::error_handler_t::replace); };
  switch (kind) {
  case work_kind::generate: {
    if (place >= queries_.size()) return {};
    const auto& query = queries_[place];
    correct = !failed && done.tokens == query.answer;
    head.update({{"prompt_id", query.id}, {"tokens", done.tokens}, {"correct", correct}});
    return dump();
  }
  case work_kind::score: {
    const auto found = scored_.find(place);
    if (found == scored_.end()) return {};
    const auto& r = found->second;
    head.update({{"arm", task_->arms[r.arm]},
                 {"epoch", r.epoch},
                 {"step", r.step},
                 {"prompt_id", r.prompt_id},
                 {"sample", r.sample}});
    auto line = dump();
    line.pop_back();
    append_list(line, "logprobs", done.logprobs);
    scored_.erase(found);
    return line + '}';
  }
  case work_kind::exec:
    if (place >= commands_.size()) return {};
    correct = !failed && done.exit_code == 0;
    head["exit_code"] = failed ? json() : json(done.exit_code);
    return dump();
  case work_kind::callback:
    if (place >= inputs_.size()) return {};
    correct = !failed;
    return dump();
  }
  return {};
}

result<bool> lease_queues::keep(const work_result& done, const fence& stamp) {
  const auto kind = kind_of_unit(done.unit);
  if (queue_of(kind) >= queues_.size() || !of(kind).file) return false;
  auto& q = of(kind);
  const auto place = index_of_unit(done.unit);
  if (q.kept.count(place) != 0) return true;
  bool correct = false;
  const auto line = line_of(done, stamp, correct);
  if (!line) return false;
  if (auto r = q.file->append(*line); !r) return tl::unexpected(r.error());
  q.kept.insert(place);
  count(kind, correct, !done.error.empty());
  return true;
}

result<void> lease_queues::sync() {
  for (auto& q : queues_)
    if (q.file)
      if (auto r = q.file->sync(); !r) return r;
  return {};
}

result<std::uint64_t> lease_queues::duplicates() const {
  std::uint64_t found = 0;
  for (const auto& q : queues_) {
    if (!q.file) continue;
    auto text = read_text(q.file->path());
    if (!text) return tl::unexpected(text.error());
    std::set<std::uint64_t> seen;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      const auto done = read_result(line);
      if (!done) return fail(error_code::internal, "a torn line in " + q.file->path());
      found += seen.insert(done->unit).second ? 0 : 1;
    }
  }
  return found;
}

} // namespace adafloor
