#include "apps/settings.hpp"

#include "apps/commands.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

// Readers of one value. The error text says only what is allowed; the caller adds place and key.

result<void> read(const std::string& text, std::string& to) {
  to = text;
  return {};
}
result<void> read(const std::string& text, bool& to) {
  if (text != "true" && text != "false") return bad_input("must be true or false");
  to = text == "true";
  return {};
}
result<void> read(const std::string& text, double& to) {
  char* end = nullptr;
  to = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !std::isfinite(to)) return bad_input("must be a number");
  return {};
}
template <class T, class = std::enable_if_t<std::is_unsigned_v<T>>>
result<void> read(const std::string& text, T& to) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), to);
  if (text.empty() || parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size())
    return bad_input(
        fmt::format("must be a whole number from 0 to {}", std::numeric_limits<T>::max()));
  return {};
}

template <class T>
setting make(std::string key, std::string option, std::string help, T& target) {
  setting made{std::move(key), std::move(option), std::move(help)};
  made.is_switch = std::is_same_v<T, bool>;
  made.set = [&target](const std::vector<std::string>& values) -> result<void> {
    if (values.size() != 1) return bad_input("must be one value");
    return read(values.front(), target);
  };
  return made;
}
template <class T>
setting make(std::string key, std::string option, std::string help, std::vector<T>& target) {
  setting made{std::move(key), std::move(option), std::move(help)};
  made.is_list = true;
  made.set = [&target](const std::vector<std::string>& values) -> result<void> {
    target.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      if (auto done = read(values[i], target[i]); !done) return done;
    return {};
  };
  return made;
}
setting path(setting of) {
  of.is_path = true;
  return of;
}

std::string joined(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

/// The text of a TOML value; empty for a table.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* i = node.as_integer()) return std::to_string(i->get());
  if (const auto* f = node.as_floating_point()) return fmt::format("{}", f->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  return std::nullopt;
}

std::optional<std::vector<std::string>> values_of(const toml::node& node) {
  if (const auto* list = node.as_array()) {
    std::vector<std::string> values;
    for (const auto& element : *list) {
      auto text = text_of(element);
      if (!text) return std::nullopt;
      values.push_back(std::move(*text));
    }
    return values;
  }
  if (auto text = text_of(node)) return std::vector<std::string>{std::move(*text)};
  return std::nullopt;
}

struct toml_entry {
  std::string key;
  const toml::node* node;
};

/// Leaves of the tree, with dotted keys. A table that is a prefix of no known key is an entry too,
/// so that it is reported once and not once per leaf.
void collect(const toml::table& from, const std::string& prefix, std::vector<toml_entry>& out) {
  for (const auto& [name, node] : from) {
    const auto key = prefix + std::string{name.str()};
    if (const auto* inner = node.as_table())
      collect(*inner, key + ".", out);
    else
      out.push_back({key, &node});
  }
}

} // namespace

std::string shipped_folder() {
  std::error_code none;
  std::vector<fs::path> places;
  if (const char* home = std::getenv("ADAFLOOR_HOME")) { // NOLINT(concurrency-mt-unsafe)
    places = {fs::path{home}, fs::path{home} / "config"};
  } else {
    const auto bin = fs::read_symlink("/proc/self/exe", none).parent_path();
    places = {fs::path{ADAFLOOR_SOURCE_DIR} / "config", bin / "../share/adafloor"};
  }
  for (const auto& place : places)
    if (fs::is_directory(place / "models", none)) return fs::weakly_canonical(place, none).string();
  return {};
}

run_settings::run_settings() {
  task_.epochs = 0;                      // one per model
  task_.prompts_per_step = 0;            // until fill_defaults knows the number of ranks
  task_.rollout.max_response_length = 0; // until the model is read
  add_rollout_keys();
  add_ep_keys();
  add_runtime_keys();
}

void run_settings::add_rollout_keys() {
  auto& r = task_.rollout;
  table_.push_back(
      path(make("model.path", "--model",
                "folder of a policy version; again for the next epoch's version", task_.models)));
  table_.push_back(make("model.device", "--device",
                        "cpu; cuda: rank r on GPU r modulo their number; emulated: no model, "
                        "lengths of --workload at "
                        "the pace of --cost-model",
                        task_.device));
  auto& emulated = task_.emulation;
  table_.push_back(make("emulated.time_scale", "--time-scale",
                        "emulated: seconds of the clock per second of the cost model",
                        emulated.time_scale));
  table_.push_back(make("emulated.experts", "--emulated-experts", "per layer", emulated.experts));
  table_.push_back(make("emulated.expert_bytes", "--emulated-expert-bytes",
                        "of one expert, all layers", emulated.expert_bytes));
  table_.push_back(make("emulated.kv_page_bytes", "--emulated-kv-page-bytes", "of one KV page",
                        emulated.kv_page_bytes));
  table_.push_back(
      path(make("rollout.workload", "--workload",
                "emulated: history CSV whose responses are generated again", task_.workload)));
  table_.push_back(make("rollout.workload_epoch", "--workload-epoch",
                        "emulated: its epoch; the last one unless given", task_.workload_epoch));
  table_.push_back(path(
      make("rollout.prompts", "--prompts", "JSON lines with prompt_token_ids", task_.prompts)));
  table_.push_back(
      path(make("rollout.history", "--history",
                "CSV of past response lengths; \"none\" for no history", task_.history)));
  table_.push_back(make("rollout.history_epochs", "--history-epochs",
                        "use only these epochs of the history", task_.history_epochs));
  table_.push_back(make("rollout.epochs", "--epochs",
                        "one per model unless given; the last model serves the rest",
                        task_.epochs));
  table_.push_back(make("rollout.steps", "--steps", "steps per epoch", task_.steps));
  table_.push_back(make("rollout.n", "--n", "samples per prompt", task_.n));
  table_.push_back(make("rollout.prompts_per_step", "--prompts-per-step",
                        "over all ranks; 2 per rank unless given", task_.prompts_per_step));
  table_.push_back(
      make("rollout.max_prompt_length", "--max-prompt-length", "tokens", r.max_prompt_length));
  table_.push_back(make("rollout.max_response_length", "--max-response-length",
                        "tokens; the model's max_new_tokens unless given", r.max_response_length));
  table_.push_back(make("rollout.max_num_seqs", "--max-num-seqs",
                        "requests that decode together on one rank", r.max_num_seqs));
  table_.push_back(make("rollout.prefill_tokens", "--prefill-tokens",
                        "prompt tokens per step and rank", r.prefill_tokens));
  table_.push_back(make("rollout.temperature", "--temperature", "0 means greedy", r.temperature));
  table_.push_back(make("rollout.top_p", "--top-p", "above 0, at most 1", r.top_p));
  table_.push_back(make("rollout.top_k", "--top-k", "0 means all", r.top_k));
  table_.push_back(make("rollout.seed", "--seed", "of sampling", r.seed));
}

void run_settings::add_ep_keys() {
  auto& ep = task_.ep;
  table_.push_back(make("ep.world_size", "--ranks,--world-size",
                        "rank processes = EP group at full world", task_.world_size));
  table_.push_back(make("ep.floor", "--floor",
                        "smallest EP group that a step may shrink to; auto: smallest allowed",
                        floor_));
  table_.push_back(make("ep.arms", "--arms",
                        "vanilla | natural | planned | adaptive, run one after the other",
                        task_.arms));
  table_.push_back(make(
      "ep.residency", "--residency",
      "natural | planned: who stays in arm adaptive, those unfinished or the last", ep.residency));
  table_.push_back(make("ep.group_sizes", "--group-sizes",
                        "group sizes that a step may use; halving ones unless given",
                        ep.group_sizes));
  table_.push_back(make(
      "ep.migrate", "--migrate",
      "off | stragglers: what blocks a due exit moves | consolidate: pack the tail", ep.migrate));
  table_.push_back(make("ep.stragglers_max", "--stragglers-max",
                        "requests that one exit may move with stragglers", ep.stragglers_max));
  table_.push_back(make("ep.cost_model", "--cost-model",
                        "name or file that arm adaptive weighs exits with; none: all sizes alike",
                        cost_model_));
  table_.push_back(
      make("guard.enabled", "--guard,!--no-guard", "cap responses per step", task_.guard.enabled));
  table_.push_back(make("guard.ratio", "--guard-ratio",
                        "cap over predicted exit; 0: fitted to the history", task_.guard.ratio));
  table_.push_back(
      make("guard.quantile", "--guard-quantile", "for the fitted ratio", task_.guard.quantile));
  table_.push_back(make("guard.step_tokens", "--guard-step-tokens", "a cap is a multiple of it",
                        task_.guard.step_tokens));
  table_.push_back(
      make("guard.least_cap", "--guard-least-cap", "tokens; no cap below", task_.guard.least_cap));
  table_.push_back(make("guard.kv_margin", "--kv-margin",
                        "predicted lengths are multiplied by this for KV", task_.kv.margin));
  table_.push_back(
      make("kv.page_tokens", "--kv-page-tokens", "tokens per KV page", task_.kv.page_tokens));
  table_.push_back(make("kv.capacity_tokens", "--kv-capacity-tokens",
                        "KV tokens that one rank holds", task_.kv.capacity_tokens));
  table_.push_back(make("kv.resident_group_tokens", "--kv-resident-group-tokens",
                        "of them, what one kept group takes (planned residency)",
                        task_.kv.resident_group_tokens));
  table_.push_back(make("kv.rank_memory_bytes", "--rank-memory-bytes",
                        "one rank's weights, experts and KV together; 0: no bound",
                        task_.kv.rank_memory_bytes));
  table_.push_back(make("kv.dtype", "--kv-dtype",
                        "float32, or bfloat16: half the memory, other tokens, as exact",
                        task_.kv.dtype));
  table_.push_back(make("kv.count_prompt_tokens",
                        "--kv-count-prompt-tokens,!--no-kv-count-prompt-tokens",
                        "count prompts in the predicted peak", task_.kv.count_prompt_tokens));
}

void run_settings::add_queue_keys() {
  auto& s = task_.sidecar;
  table_.push_back(
      path(make("lease.score_with", "--lease-score-with",
                "finished responses get log-probabilities on leased ranks: \"self\", by the "
                "policy that wrote them, or the folder of a model; \"none\"",
                s.score_with)));
  table_.push_back(make("lease.exec", "--lease-exec",
                        "command for /bin/sh that is run on leased ranks", s.exec));
  table_.push_back(
      make("lease.exec_count", "--lease-exec-count", "times that it is run in all", s.exec_count));
  table_.push_back(path(make("lease.exec_file", "--lease-exec-file",
                             "JSON lines of commands to run on leased ranks", s.exec_file)));
  table_.push_back(make("lease.callback", "--lease-callback",
                        "name of C++ work (actors/aux_work.hpp) that this program has linked in "
                        "and runs on leased ranks",
                        s.callback));
  table_.push_back(path(make("lease.callback_file", "--lease-callback-file",
                             "its inputs, one on each line", s.callback_file)));
  table_.push_back(make("lease.max_unit_attempts", "--lease-max-unit-attempts",
                        "at which its worker dies before a unit is given up with an error as its "
                        "result; 0: no bound",
                        s.max_unit_attempts));
  for (auto [name, queue] :
       {std::pair{"generate", &s.generate}, std::pair{"score", &s.score},
        std::pair{"exec", &s.exec_queue}, std::pair{"callback", &s.callback_queue}}) {
    table_.push_back(make(fmt::format("lease.{}_priority", name),
                          fmt::format("--lease-{}-priority", name),
                          "queues of a higher one go first", queue->priority));
    table_.push_back(make(fmt::format("lease.{}_weight", name),
                          fmt::format("--lease-{}-weight", name),
                          "share of the lease time at equal priority", queue->weight));
  }
}

void run_settings::add_runtime_keys() {
  auto& t = task_.transport;
  auto& r = task_.runtime;
  table_.push_back(path(make("lease.sidecar.model", "--sidecar-model",
                             "dense model that works on leased ranks; \"none\": no leases",
                             task_.sidecar.model)));
  table_.push_back(path(make("lease.sidecar.queries", "--sidecar-queries",
                             "JSON lines that the sidecar answers", task_.sidecar.queries)));
  table_.push_back(make("lease.grace_seconds", "--lease-grace-seconds",
                        "from revoking a lease to killing its holder",
                        task_.sidecar.grace_seconds));
  table_.push_back(make("lease.min_window_seconds", "--lease-min-window-seconds",
                        "shorter predicted windows are not leased",
                        task_.sidecar.min_window_seconds));
  add_queue_keys();
  table_.push_back(make("lease.max_slowdown", "--lease-max-slowdown",
                        "of decode steps, as a share; beyond it fewer ranks are lent; 0: no limit",
                        task_.sidecar.max_slowdown));
  table_.push_back(make("lease.memory_bytes", "--lease-memory-bytes",
                        "that each process of auxiliary work may take: of models, of callbacks, "
                        "of a command; 0: no limit",
                        task_.sidecar.memory_bytes));
  table_.push_back(
      make("lease.cpus", "--lease-cpus",
           "CPU numbers that auxiliary work may run on; those of its rank unless given",
           task_.sidecar.cpus));
  table_.push_back(make("transport.collective", "--collective",
                        "ucx; nccl: each rank has a GPU of its own; auto: nccl where that is so",
                        t.collective));
  table_.push_back(make("transport.tls", "--tls", "UCX_TLS, or auto", t.tls));
  table_.push_back(make("transport.bind", "--bind", "address to listen on", t.bind));
  table_.push_back(make("transport.port", "--port", "of rank 0; 0: any free one", t.port));
  table_.push_back(make("transport.local_ranks", "--local-ranks",
                        "start only so many, the first ones; `adafloor node` starts the others on "
                        "their hosts; 0: all",
                        t.local_ranks));
  table_.push_back(path(make("transport.token_file", "--token-file",
                             "with the secret that every rank must know, mode 0600; a fresh one "
                             "unless given",
                             t.token_file)));
  table_.push_back(
      make("runtime.heartbeat_ms", "--heartbeat-ms", "between two signs of life", r.heartbeat_ms));
  table_.push_back(make("runtime.failure_ms", "--failure-ms",
                        "silence after which a rank counts as lost", r.failure_ms));
  table_.push_back(make("runtime.deadline_ms", "--deadline-ms",
                        "for one transition, and for the copying of one request that moves",
                        r.deadline_ms));
  table_.push_back(make("runtime.start_ms", "--start-ms", "for all ranks to join", r.start_ms));
  table_.push_back(
      make("runtime.exchange_ms", "--exchange-ms", "for one collective exchange", r.exchange_ms));
  table_.push_back(make("runtime.max_restarts", "--max-restarts",
                        "of all ranks, from what is on disk, where one is lost that the others "
                        "cannot do without (rank 0, say); 0: the run ends",
                        r.max_restarts));
  table_.push_back(make("runtime.hold_seconds", "--hold-seconds",
                        "keep the joined ranks idle so long first, to measure what idling costs",
                        task_.hold_seconds));
  table_.push_back(make("fault.plan", "--fault",
                        "on purpose, for tests: \"at=MESSAGE do=ACTION [rank=R] ...\"; see "
                        "`adafloor faults list`",
                        task_.faults));
  table_.push_back(make("output.token_log", "--token-log,!--no-token-log",
                        "keep every token as it is generated, in tokens.log",
                        task_.output.token_log));
  table_.push_back(make("output.token_log_lag_ms", "--token-log-lag-ms",
                        "from a token to the batch that holds it, at most",
                        task_.output.token_log_lag_ms));
  table_.push_back(
      make("output.fsync", "--fsync", "never | step | response | batch", task_.output.fsync));
  table_.push_back(path(
      make("output.dir", "--out", "folder of the results; out/TIME unless given", task_.out_dir)));
}

void run_settings::add_options(CLI::App& command) {
  command.add_option("--config", config_, "TOML file; every key is also an option");
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const auto& row = table_[i];
    const auto help = fmt::format("{} [{}]", row.help, row.key);
    if (row.is_switch) {
      command.add_flag_function(
          row.option,
          [this, i](std::int64_t times) {
            given_.emplace_back(i, std::vector<std::string>{times > 0 ? "true" : "false"});
          },
          help);
      continue;
    }
    command
        .add_option_function<std::vector<std::string>>(
            row.option,
            [this, i](const std::vector<std::string>& values) { given_.emplace_back(i, values); },
            help)
        ->expected(1)
        ->type_name(row.is_path ? "PATH" : "VALUE")
        ->multi_option_policy(row.is_list ? CLI::MultiOptionPolicy::TakeAll
                                          : CLI::MultiOptionPolicy::TakeLast);
  }
}

result<void> run_settings::apply_command_line() {
  for (const auto& [index, values] : given_) {
    const auto& row = table_[index];
    std::vector<std::string> parts;
    for (const auto& value : values) {
      std::istringstream pieces{value};
      std::string piece;
      if (!row.is_list || row.is_path)
        parts.push_back(value);
      else
        while (std::getline(pieces, piece, ','))
          parts.push_back(piece);
    }
    if (auto done = row.set(parts); !done) {
      const auto name = row.option.substr(0, row.option.find(','));
      return bad_input(fmt::format("{} {}: {}", name, joined(values), done.error().text));
    }
    said_.insert(row.key);
  }
  return {};
}

result<void> run_settings::apply_toml(const std::string& text, const std::string& file) {
  toml::table tree;
  try {
    tree = toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    return bad_input(fmt::format("{}:{}: not TOML: {}; write KEY = VALUE under [GROUP]", file,
                                 e.source().begin.line, e.description()));
  }
  std::vector<toml_entry> entries;
  collect(tree, "", entries);
  std::vector<std::string> known;
  for (const auto& row : table_)
    known.push_back(row.key);
  for (const auto& entry : entries) {
    const auto place = fmt::format("{}:{}", file, entry.node->source().begin.line);
    const auto at = std::find(known.begin(), known.end(), entry.key);
    if (at == known.end()) {
      const auto near = nearest(entry.key, known);
      return bad_input(fmt::format("{}: unknown key \"{}\"{}", place, entry.key,
                                   near.empty() ? "; `adafloor run --help` lists all keys"
                                                : fmt::format("; did you mean \"{}\"?", near)));
    }
    auto& row = table_[static_cast<std::size_t>(at - known.begin())];
    auto values = values_of(*entry.node);
    if (!values || (!row.is_list && entry.node->is_array()))
      return bad_input(fmt::format("{}: {}: must be one value{}", place, entry.key,
                                   row.is_list ? " or a list of them" : ""));
    for (auto& value : *values)
      if (row.is_path && value != "none" && value != "self" && !value.empty()
          && fs::path{value}.is_relative())
        value = (fs::absolute(file).parent_path() / value).lexically_normal().string();
    if (auto done = row.set(*values); !done)
      return bad_input(
          fmt::format("{}: {} = {}: {}", place, entry.key, joined(*values), done.error().text));
    said_.insert(row.key);
  }
  return {};
}

} // namespace adafloor
