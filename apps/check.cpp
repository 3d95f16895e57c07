#include "apps/check.hpp"

#include "actors/aux_work.hpp"
#include "actors/fault_injection.hpp"
#include "actors/lease_queues.hpp"
#include "actors/prompts.hpp"
#include "actors/rollout_plan.hpp"
#include "gpu/engine.hpp"
#include "gpu/plugin.hpp"
#include "gpu/qwen3_weights.hpp"
#include "planner/plan/history.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t lease_memory_min = 16U << 20;

template <class... Args>
result<void> unless(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (holds) return {};
  return bad_input(fmt::format(text, std::forward<Args>(args)...));
}

/// The first failure of a list of checks, all of which are cheap enough to make.
result<void> first_failure(std::initializer_list<result<void>> checks) {
  for (const auto& check : checks)
    if (!check) return check;
  return {};
}

result<void> check_group_sizes(const job& task) {
  const auto& sizes = task.ep.group_sizes;
  const auto shown = fmt::format("{}", fmt::join(sizes, ","));
  if (sizes.empty() || sizes.front() != task.world_size)
    return bad_input(fmt::format("--group-sizes {}: must begin with the {} ranks of the full world",
                                 shown, task.world_size));
  for (std::size_t i = 1; i < sizes.size(); ++i)
    if (sizes[i] >= sizes[i - 1])
      return bad_input(fmt::format("--group-sizes {}: must fall from one to the next", shown));
  return unless(sizes.back() >= task.ep.floor,
                "--group-sizes {}: {} is below the floor of {} ranks", shown, sizes.back(),
                task.ep.floor);
}

result<void> check_arms(const job& task) {
  const auto known = run_arm_names();
  const auto shown = fmt::format("{}", fmt::join(known, ", "));
  if (task.arms.empty()) return bad_input(fmt::format("--arms: name at least one of {}", shown));
  for (std::size_t i = 0; i < task.arms.size(); ++i) {
    const auto& arm = task.arms[i];
    if (std::find(known.begin(), known.end(), arm) == known.end())
      return bad_input(fmt::format("--arms {}: unknown arm; there are {}", arm, shown));
    if (std::count(task.arms.begin(), task.arms.end(), arm) > 1)
      return bad_input(fmt::format("--arms: {} stands there twice; once is enough", arm));
  }
  return {};
}

result<void> check_sampling(const job& task) {
  const auto& r = task.rollout;
  return first_failure({
      unless(task.steps >= 1, "--steps 0: at least 1"),
      unless(task.epochs >= task.models.size(),
             "--epochs {}: fewer than the {} models; each serves an epoch", task.epochs,
             task.models.size()),
      unless(task.n >= 1, "--n 0: at least 1 sample per prompt"),
      unless(task.prompts_per_step >= task.world_size
                 && task.prompts_per_step % task.world_size == 0,
             "--prompts-per-step {}: must be a multiple of the {} ranks", task.prompts_per_step,
             task.world_size),
      unless(r.max_num_seqs >= 1, "--max-num-seqs 0: at least 1"),
      unless(r.max_prompt_length >= 1, "--max-prompt-length 0: at least 1"),
      unless(r.prefill_tokens >= 1, "--prefill-tokens 0: at least 1"),
      unless(r.temperature >= 0, "--temperature {}: 0 (greedy) or more", r.temperature),
      unless(r.top_p > 0 && r.top_p <= 1, "--top-p {}: above 0, at most 1", r.top_p),
  });
}

result<void> check_emulation(const job& task) {
  if (!is_emulated(task)) return {};
  const auto& e = task.emulation;
  return first_failure({
      unless(e.time_scale > 0 && e.time_scale <= 1, "--time-scale {}: above 0, at most 1",
             e.time_scale),
      unless(e.experts >= 1 && e.experts % task.world_size == 0,
             "--emulated-experts {}: must be a multiple of the {} ranks", e.experts,
             task.world_size),
      unless(e.expert_bytes >= 192, "--emulated-expert-bytes {}: at least 192", e.expert_bytes),
      unless(e.kv_page_bytes >= 64, "--emulated-kv-page-bytes {}: at least 64", e.kv_page_bytes),
  });
}

result<void> check_faults(const job& task) {
  for (const auto& text : task.faults) {
    const auto rule = parse_fault(text);
    if (!rule) return tl::make_unexpected(rule.error());
    for (const auto& rank : {rule->rank, rule->from})
      if (rank && rank->value >= task.world_size)
        return bad_input(fmt::format("--fault \"{}\": rank {}: there are ranks 0 to {}", text,
                                     rank->value, task.world_size - 1));
  }
  return {};
}

result<void> check_device(const job& task) {
  if (task.device == "cpu" || is_emulated(task)) return {};
  if (task.device != "cuda")
    return bad_input(fmt::format("--device {}: there are cpu, cuda, emulated", task.device));
  const auto found = find_cuda();
  if (!found) return bad_input("--device cuda: " + found.error().text + "; or use --device cpu");
  if (found->devices > 0) return {};
  return bad_input("--device cuda: there is no GPU to use: " + found->text
                   + "; `adafloor doctor` says more, --device cpu works everywhere");
}

std::uint32_t ranks_here(const job& task) {
  return all_local(task) ? task.world_size : task.transport.local_ranks;
}

/// Why the ranks cannot use NCCL, or nothing.
std::optional<std::string> objection_to_nccl(const job& task) {
  if (is_emulated(task)) return "--device emulated has no GPU memory";
  const auto found = find_nccl();
  if (!found) return found.error().text;
  if (found->devices == 0) return "there is no GPU: " + found->text;
  if (ranks_here(task) > found->devices)
    return fmt::format("{} ranks here need a GPU each, and there are {} GPUs", ranks_here(task),
                       found->devices);
  return std::nullopt;
}

result<void> check_collective(const job& task) {
  const auto& given = task.transport.collective;
  if (given == "ucx" || given == "auto") return {};
  if (given != "nccl")
    return bad_input(fmt::format("--collective {}: there are ucx, nccl, auto", given));
  const auto objection = objection_to_nccl(task);
  if (!objection) return {};
  return bad_input(fmt::format(
      "--collective nccl: {}; `adafloor doctor` says more, --collective ucx works everywhere",
      *objection));
}

result<void> check_kv_dtype(const job& task) {
  const auto type = parse_kv_dtype(task.kv.dtype);
  if (!type) return bad_input("--kv-dtype " + type.error().text);
  return unless(!is_emulated(task) || *type == kv_dtype::float32,
                "--kv-dtype {}: --device emulated computes nothing; its pages have the size of "
                "--emulated-kv-page-bytes",
                task.kv.dtype);
}

result<void> check_runtime(const job& task) {
  in_addr address{};
  const auto& r = task.runtime;
  return first_failure({
      check_device(task),
      check_emulation(task),
      check_faults(task),
      check_kv_dtype(task),
      check_collective(task),
      unless(task.ep.residency == "natural" || task.ep.residency == "planned",
             "--residency {}: there are natural, planned", task.ep.residency),
      unless(task.ep.migrate == "off" || task.ep.migrate == "stragglers"
                 || task.ep.migrate == "consolidate",
             "--migrate {}: there are off, stragglers, consolidate", task.ep.migrate),
      unless(task.guard.ratio == 0 || task.guard.ratio >= 1,
             "--guard-ratio {}: at least 1, or 0 for fitted", task.guard.ratio),
      unless(task.guard.quantile > 0 && task.guard.quantile < 1,
             "--guard-quantile {}: between 0 and 1", task.guard.quantile),
      unless(task.guard.step_tokens >= 1 && task.guard.least_cap >= 1,
             "--guard-step-tokens {}, --guard-least-cap {}: at least 1", task.guard.step_tokens,
             task.guard.least_cap),
      unless(task.kv.margin >= 1, "--kv-margin {}: at least 1", task.kv.margin),
      unless(task.kv.page_tokens == kv_page_tokens, "--kv-page-tokens {}: the engine has {}",
             task.kv.page_tokens, kv_page_tokens),
      unless(task.sidecar.grace_seconds >= 0, "--lease-grace-seconds {}: 0 or more",
             task.sidecar.grace_seconds),
      unless(task.sidecar.memory_bytes == 0 || task.sidecar.memory_bytes >= lease_memory_min,
             "--lease-memory-bytes {}: at least {}, which a worker takes by itself, or "
             "0 for no limit",
             task.sidecar.memory_bytes, lease_memory_min),
      unless(task.sidecar.min_window_seconds >= 0, "--lease-min-window-seconds {}: 0 or more",
             task.sidecar.min_window_seconds),
      unless(task.sidecar.max_slowdown >= 0, "--lease-max-slowdown {}: 0 or more",
             task.sidecar.max_slowdown),
      unless(inet_pton(AF_INET, task.transport.bind.c_str(), &address) == 1,
             "--bind {}: must be an IPv4 address such as 127.0.0.1", task.transport.bind),
      unless(task.transport.local_ranks <= task.world_size,
             "--local-ranks {}: there are {} ranks in all", task.transport.local_ranks,
             task.world_size),
      unless(all_local(task) || !task.transport.token_file.empty(),
             "--local-ranks {}: ranks on other hosts need --token-file, the same on all hosts",
             task.transport.local_ranks),
      unless(task.output.token_log_lag_ms >= 1, "--token-log-lag-ms 0: at least 1"),
      unless(task.output.fsync == "never" || task.output.fsync == "step"
                 || task.output.fsync == "response" || task.output.fsync == "batch",
             "--fsync {}: there are never, step, response and batch", task.output.fsync),
      unless(r.heartbeat_ms >= 1, "--heartbeat-ms 0: at least 1"),
      unless(r.failure_ms >= 2 * r.heartbeat_ms,
             "--failure-ms {}: at least twice the heartbeat of {} ms, or every hiccup is a failure",
             r.failure_ms, r.heartbeat_ms),
      unless(r.deadline_ms >= 1 && r.start_ms >= 1 && r.exchange_ms >= 1,
             "--deadline-ms, --start-ms, --exchange-ms: at least 1"),
  });
}

/// The nearest folder above `path` that exists must be one that this user may write to.
result<void> check_out_dir(const std::string& path) {
  std::error_code none;
  fs::path place{path};
  while (!fs::exists(place, none) && place.has_parent_path() && place != place.parent_path())
    place = place.parent_path();
  return first_failure({
      unless(fs::is_directory(place, none), "--out {}: {} is not a folder; choose another", path,
             place.string()),
      unless(access(place.c_str(), W_OK) == 0, "--out {}: {} may not be written to; choose another",
             path, place.string()),
  });
}

result<model_config> check_models(const job& task) {
  auto first = read_checkpoint_config(task.models.front());
  if (!first) return first;
  if (first->num_experts == 0)
    return bad_input(fmt::format("--model {}: a dense model has no experts to spread; give a "
                                 "Qwen3MoeForCausalLM folder",
                                 task.models.front()));
  if (first->num_experts % task.world_size != 0) {
    std::vector<std::uint32_t> allowed;
    for (std::uint32_t ranks = 1; ranks <= first->num_experts; ++ranks)
      if (first->num_experts % ranks == 0) allowed.push_back(ranks);
    return bad_input(fmt::format("--ranks {}: does not divide the {} experts of {}; allowed: {}",
                                 task.world_size, first->num_experts, task.models.front(),
                                 fmt::join(allowed, ", ")));
  }
  for (std::size_t i = 1; i < task.models.size(); ++i) {
    const auto next = read_checkpoint_config(task.models[i]);
    if (!next) return next;
    if (!next->same_architecture(*first))
      return bad_input(fmt::format("--model {}: not the architecture of {}, or experts of another "
                                   "type; policy versions differ in weights only",
                                   task.models[i], task.models.front()));
  }
  return first;
}

result<void> check_lengths(job& task, const model_config& facts, std::uint32_t longest) {
  auto& limit = task.rollout.max_response_length;
  const bool given = limit != 0;
  if (!given) limit = facts.max_new_tokens;
  if (!given && facts.max_position_embeddings > longest)
    limit = std::min(limit == 0 ? UINT32_MAX : limit, facts.max_position_embeddings - longest);
  const auto positions = std::uint64_t{longest} + limit;
  const auto pages = (positions + kv_page_tokens - 1) / kv_page_tokens;
  const auto resident = std::min(resident_tokens(task), task.kv.capacity_tokens);
  const auto capacity = (task.kv.capacity_tokens - resident) / kv_page_tokens * kv_page_tokens;
  return first_failure({
      unless(positions <= facts.max_position_embeddings,
             "--max-response-length {}: with the longest prompt of {} tokens it passes the model's "
             "{} positions; at most {}",
             limit, longest, facts.max_position_embeddings,
             facts.max_position_embeddings - std::min(longest, facts.max_position_embeddings)),
      unless(
          pages * kv_page_tokens <= capacity,
          "--kv-capacity-tokens {}: too small for one request of {} prompt + {} response tokens; "
          "raise it to {} or lower --max-response-length",
          task.kv.capacity_tokens, longest, limit, pages * kv_page_tokens + resident),
  });
}

result<void> check_prompts(job& task, const model_config& facts) {
  const auto prompts = load_prompts(task.prompts, facts.vocab_size);
  if (!prompts) return tl::make_unexpected(prompts.error());
  const auto needed = std::uint64_t{task.steps} * task.prompts_per_step;
  if (prompts->size() < needed)
    return bad_input(fmt::format("--prompts {}: {} prompts, {} steps of {} need {}; lower --steps "
                                 "or --prompts-per-step, or run more --epochs",
                                 task.prompts, prompts->size(), task.steps, task.prompts_per_step,
                                 needed));
  std::uint32_t longest = 0;
  for (const auto& prompt : *prompts) {
    const auto length = static_cast<std::uint32_t>(prompt.tokens.size());
    if (length > task.rollout.max_prompt_length)
      return bad_input(fmt::format("--prompts {}: prompt \"{}\" has {} tokens, "
                                   "--max-prompt-length is {}; raise it or drop the prompt",
                                   task.prompts, prompt.id, length,
                                   task.rollout.max_prompt_length));
    longest = std::max(longest, length);
  }
  return check_lengths(task, facts, longest);
}

result<void> check_history(const job& task) {
  if (task.history.empty()) return {};
  std::ifstream file{task.history, std::ios::binary};
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return bad_input(
        fmt::format("--history {}: cannot be read or is empty; give a CSV, or none", task.history));
  const auto history = parse_history(text.str(), task.history);
  if (!history) return tl::make_unexpected(history.error());
  for (const auto& epoch : task.history_epochs)
    if (history->find_epoch(epoch) < 0)
      return bad_input(fmt::format("--history-epochs {}: {} has the epochs {}", epoch, task.history,
                                   fmt::join(history->epochs, ", ")));
  return {};
}

result<void> check_lease_cpus(const job& task) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (const auto cpu : task.sidecar.cpus)
    if (cpu >= CPU_SETSIZE || (all_local(task) && !CPU_ISSET(cpu, &allowed)))
      return bad_input(fmt::format("--lease-cpus {}: not a CPU that this process may run on; "
                                   "`taskset -cp $$` lists those",
                                   cpu));
  return {};
}

result<void> check_callback(const sidecar_settings& s) {
  if (s.callback.empty()) return {};
  if (!find_aux_work(s.callback)) {
    const auto known = aux_work_names();
    return bad_input(fmt::format(
        "--lease-callback {}: {}", s.callback,
        known.empty()
            ? "this program has no work linked in; actors/aux_work.hpp says how to build one"
            : fmt::format("this program has {}", fmt::join(known, ", "))));
  }
  const auto inputs = load_inputs(s.callback_file);
  if (!inputs) return bad_input("--lease-callback-file: " + inputs.error().text);
  return {};
}

/// `vocabulary`: of the policy; 0 where nothing is computed.
result<void> check_queues(const job& task, std::uint32_t vocabulary) {
  const auto& s = task.sidecar;
  for (const auto* queue : {&s.generate, &s.score, &s.exec_queue, &s.callback_queue})
    if (queue->weight < 1)
      return bad_input("--lease-generate-weight, --lease-score-weight, --lease-exec-weight, "
                       "--lease-callback-weight: at least 1");
  if (auto done = check_callback(s); !done) return done;
  if (!s.exec_file.empty())
    if (const auto commands = load_commands(s.exec_file); !commands)
      return bad_input("--lease-exec-file: " + commands.error().text);
  if (s.score_with.empty()) return {};
  if (vocabulary == 0)
    return bad_input(fmt::format("--lease-score-with {}: only for a device that computes, not for "
                                 "--device {}",
                                 s.score_with, task.device));
  if (s.score_with == "self") return {};
  const auto facts = read_checkpoint_config(s.score_with);
  if (!facts) return bad_input("--lease-score-with: " + facts.error().text);
  const auto longest = task.rollout.max_prompt_length + task.rollout.max_response_length;
  if (facts->vocab_size < vocabulary || facts->max_position_embeddings < longest)
    return bad_input(fmt::format("--lease-score-with {}: has {} tokens and {} positions; the "
                                 "responses need {} and {}",
                                 s.score_with, facts->vocab_size, facts->max_position_embeddings,
                                 vocabulary, longest));
  return {};
}

result<void> check_sidecar(const job& task, std::uint32_t vocabulary) {
  if (auto done = check_queues(task, vocabulary); !done) return done;
  if (task.sidecar.model.empty()) return {};
  const auto facts = read_checkpoint_config(task.sidecar.model);
  if (!facts) return tl::make_unexpected(facts.error());
  if (facts->num_experts != 0)
    return bad_input(fmt::format("--sidecar-model {}: works alone on each leased rank, so it must "
                                 "be dense (Qwen3ForCausalLM)",
                                 task.sidecar.model));
  const auto queries = load_prompts(task.sidecar.queries, facts->vocab_size);
  if (!queries) return tl::make_unexpected(queries.error());
  for (const auto& query : *queries)
    if (query.tokens.size() >= facts->max_position_embeddings)
      return bad_input(fmt::format(
          "{}: query \"{}\" has {} tokens, the sidecar's model {} positions", task.sidecar.queries,
          query.id, query.tokens.size(), facts->max_position_embeddings));
  return {};
}

} // namespace

result<void> check_numbers(const job& task) {
  constexpr std::uint32_t ranks_max = 64;
  if (task.world_size < 1 || task.world_size > ranks_max)
    return bad_input(
        fmt::format("--ranks {}: from 1 to {} on one machine", task.world_size, ranks_max));
  return first_failure({
      unless(task.ep.floor <= task.world_size, "--floor {}: more than the {} ranks; at most {}",
             task.ep.floor, task.world_size, task.world_size),
      unless(task.ep.floor >= std::min(2U, task.world_size), "--floor {}: at least 2 ranks",
             task.ep.floor),
      check_group_sizes(task),
      check_arms(task),
      check_sampling(task),
      check_runtime(task),
      check_lease_cpus(task),
      check_out_dir(task.out_dir),
  });
}

result<void> check_files(job& task) {
  if (task.transport.collective == "auto")
    task.transport.collective = task.device == "cuda" && !objection_to_nccl(task) ? "nccl" : "ucx";
  if (is_emulated(task)) { // The workload was read for the defaults.
    if (auto done = check_history(task); !done) return done;
    return check_sidecar(task, 0);
  }
  const auto facts = check_models(task);
  if (!facts) return tl::make_unexpected(facts.error());
  if (auto done = check_prompts(task, *facts); !done) return done;
  if (auto done = check_history(task); !done) return done;
  return check_sidecar(task, facts->vocab_size);
}

} // namespace adafloor
