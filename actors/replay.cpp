#include "actors/replay.hpp"

#include "planner/plan/cost_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace adafloor {

result<recorded_epoch> recorded_epoch_of(const job& task, const length_history& history) {
  const auto epoch = history.find_epoch(task.workload_epoch);
  if (epoch < 0)
    return bad_input(fmt::format("--workload-epoch {}: {} has the epochs {}", task.workload_epoch,
                                 task.workload, fmt::join(history.epochs, ", ")));
  recorded_epoch out;
  for (auto& recorded : epoch_prompts(history, static_cast<std::uint32_t>(epoch))) {
    prompt p;
    p.id = recorded.id;
    const auto number = out.prompts.size();
    for (std::int32_t i = 0; i < std::max(recorded.prompt_tokens, 1); ++i)
      p.tokens.push_back(static_cast<token_id>((number + static_cast<std::size_t>(i) * (number + 1))
                                               % emulated_vocabulary));
    for (auto& length : recorded.lengths)
      length = std::max(length, 1);
    if (recorded.lengths.empty()
        || (number > 0 && recorded.lengths.size() != out.lengths.front().size()))
      return bad_input(fmt::format(
          "--workload {}: prompt \"{}\" of epoch {} has {} samples, the others have {}; each "
          "prompt needs the same number, at least one",
          task.workload, p.id, task.workload_epoch, recorded.lengths.size(),
          number > 0 ? out.lengths.front().size() : 0));
    out.prompts.push_back(std::move(p));
    out.lengths.push_back(std::move(recorded.lengths));
  }
  return out;
}

result<std::shared_ptr<const emulation>> emulation_of(const job& task) {
  auto read = parse_cost_model(task.ep.cost_model, "ep.cost_model");
  if (!read) return tl::unexpected(read.error());
  const auto model = std::make_shared<const cost_model>(std::move(*read));
  auto out = std::make_shared<emulation>();
  out->experts = task.emulation.experts;
  out->expert_bytes = task.emulation.expert_bytes;
  out->kv_page_bytes = task.emulation.kv_page_bytes;
  out->time_scale = task.emulation.time_scale;
  auto& costs = out->costs;
  costs.decode_step = [model](const group_load& load) {
    const auto cost = decode_cost(*model, load.ranks, load.active, load.batch, load.live);
    return (cost.constant_ms + cost.per_max_kv_ms * load.max_kv_tokens) / 1000;
  };
  costs.exit = [model](int from, int to) {
    return exit_seconds(*model, from, to) + model->lease_start_seconds;
  };
  costs.copy = [model](double tokens) {
    return model->blackout_seconds + copy_seconds(*model, tokens);
  };
  costs.restore_seconds = std::min(model->restore_seconds, model->fixed_shrunk_seconds);
  costs.recompute_per_second = model->prefill_tokens_per_second;
  costs.count_prompt_tokens = task.kv.count_prompt_tokens;
  return out;
}

std::uint32_t emulated_kv_pages(const job& task) {
  const std::uint64_t uncounted =
      kv_page_tokens + (task.kv.count_prompt_tokens ? 0 : task.rollout.max_prompt_length);
  const auto tokens = task.kv.capacity_tokens + uncounted * task.rollout.max_num_seqs;
  return static_cast<std::uint32_t>((tokens + kv_page_tokens - 1) / kv_page_tokens);
}

void book_fixed_time(std::map<rank_id, rollout_report>& reports, microseconds decoded_at,
                     microseconds restored_at, microseconds ended_at) {
  for (auto& [rank, report] : reports) {
    auto& line = report.intervals;
    while (!line.empty() && line.back().begin >= decoded_at)
      line.pop_back();
    if (!line.empty()) line.back().end = std::min(line.back().end, decoded_at);
    if (restored_at > decoded_at) line.push_back({rank_state::transition, decoded_at, restored_at});
    if (ended_at > restored_at) line.push_back({rank_state::idle, restored_at, ended_at});
  }
}

} // namespace adafloor
