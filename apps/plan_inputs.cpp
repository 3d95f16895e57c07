#include "apps/plan_inputs.hpp"

#include "apps/dump_import.hpp"
#include "apps/text_input.hpp"
#include "planner/plan/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace adafloor {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> cost_model_folders() {
  std::vector<fs::path> out;
  if (const char* named = std::getenv("ADAFLOOR_COST_MODELS")) out.emplace_back(named);
  std::error_code none;
  auto self = fs::read_symlink("/proc/self/exe", none);
  if (!none) out.push_back(self.parent_path().parent_path() / "share/adafloor/cost_models");
  out.push_back(fs::path{ADAFLOOR_SOURCE_DIR} / "config/cost_models");
  return out;
}

tl::unexpected<error> bad_flag(std::string_view flag, std::string_view value,
                               std::string_view allowed) {
  return bad_input(fmt::format("{} {}: allowed: {}", flag, value, allowed));
}

result<std::vector<group_capacity>> parse_capacities(std::string_view flag,
                                                     const std::vector<std::string>& items) {
  std::vector<group_capacity> out;
  for (const auto& item : items) {
    group_capacity c;
    const char* end = item.data() + item.size();
    auto ranks = std::from_chars(item.data(), end, c.ranks);
    bool fine = ranks.ec == std::errc{} && ranks.ptr != end && *ranks.ptr == ':';
    if (fine) {
      auto tokens = std::from_chars(ranks.ptr + 1, end, c.tokens);
      fine = tokens.ec == std::errc{} && tokens.ptr == end && c.ranks > 0 && c.tokens > 0;
    }
    if (!fine) return bad_flag(flag, item, "RANKS:TOKENS, as in 8:377344");
    out.push_back(c);
  }
  return out;
}

result<std::vector<std::uint32_t>> find_epochs(std::string_view flag, const std::string& file,
                                               const length_history& history,
                                               const std::vector<std::string>& names) {
  std::vector<std::uint32_t> out;
  for (const auto& name : names) {
    int index = history.find_epoch(name);
    if (index < 0) {
      std::string known;
      for (const auto& e : history.epochs)
        known += (known.empty() ? "" : ", ") + e;
      return bad_input(fmt::format("{} {}: {} has no such epoch; it has {}; nearest: {}", flag,
                                   name, file, known, nearest_name(name, history.epochs)));
    }
    out.push_back(static_cast<std::uint32_t>(index));
  }
  return out;
}

template <class Kind>
result<Kind> choice(std::string_view flag, const std::string& value,
                    std::initializer_list<Kind> kinds) {
  std::string allowed;
  for (auto kind : kinds) {
    if (value == name_of(kind)) return kind;
    allowed += (allowed.empty() ? "" : ", ") + std::string{name_of(kind)};
  }
  return bad_flag(flag, value, allowed);
}

} // namespace

namespace {

// Files of a folder, numbers in names by value: 2.jsonl before 10.jsonl.
std::vector<std::string> files_of(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> out;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(path, none))
    if (entry.is_regular_file(none)) out.push_back(entry.path().string());
  auto key = [](const std::string& name) {
    std::string padded, digits;
    for (std::size_t i = 0; i <= name.size(); ++i) {
      bool digit = i < name.size() && name[i] >= '0' && name[i] <= '9';
      if (digit) {
        digits += name[i];
        continue;
      }
      if (!digits.empty() && digits.size() < 20) padded.append(20 - digits.size(), '0');
      padded += digits;
      digits.clear();
      if (i < name.size()) padded += name[i];
    }
    return padded;
  };
  std::sort(out.begin(), out.end(),
            [&](const std::string& a, const std::string& b) { return key(a) < key(b); });
  return out;
}

result<bool> is_dump(const std::string& path) {
  bool brace = false;
  auto read = for_each_line(path, [&](std::string_view line, std::size_t) {
    auto first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos) return true;
    brace = line[first] == '{';
    return false;
  });
  if (!read) return tl::unexpected(read.error());
  return brace;
}

result<length_history> load_dumps(const std::vector<std::string>& files) {
  length_history out;
  dump_importer importer{{}, [&](const imported_row& in) {
                           auto row = in.row;
                           row.epoch = out.epoch_index(in.epoch);
                           row.prompt = out.prompt_index(in.prompt);
                           out.rows.push_back(row);
                         }};
  for (const auto& file : files)
    if (auto read = importer.read_file(file); !read) return tl::unexpected(read.error());
  if (out.rows.empty()) return bad_input(files.front() + ": no row of a known trainer's dump");
  return out;
}

} // namespace

result<length_history> load_history(const std::string& path) {
  auto files = files_of(path);
  if (files.empty()) return bad_input(path + ": an empty folder; no rollout dump is in it");
  auto dump = is_dump(files.front());
  if (!dump) return tl::unexpected(dump.error());
  if (*dump) return load_dumps(files);
  if (files.size() > 1)
    return bad_input(path + ": " + files.front() + " is no dump; a folder may hold dumps only");
  history_reader reader{path};
  error first;
  auto read = for_each_line(files.front(), [&](std::string_view line, std::size_t) {
    auto fed = reader.feed(line);
    if (!fed) first = fed.error();
    return fed.has_value();
  });
  if (!read) return tl::unexpected(read.error());
  if (!first.text.empty()) return tl::unexpected(first);
  if (!reader.has_header())
    return bad_input(path
                     + ": empty; a history needs a header line and rows; `adafloor history "
                       "import` makes one from a trainer's dump");
  if (reader.history().rows.empty())
    return bad_input(path + ": a header but no rows; nothing can be planned");
  return std::move(reader.history());
}

std::int32_t longest_response(const length_history& history) {
  std::int32_t longest = 1;
  for (const auto& row : history.rows)
    longest = std::max(longest, row.response_tokens);
  return longest;
}

result<cost_model> load_cost_model(const std::string& name_or_path) {
  std::string path = name_or_path;
  std::vector<std::string> known;
  if (!fs::is_regular_file(path)) {
    path.clear();
    for (const auto& folder : cost_model_folders()) {
      std::error_code none;
      auto file = folder / (name_or_path + ".conf");
      if (path.empty() && fs::is_regular_file(file, none)) path = file.string();
      for (const auto& entry : fs::directory_iterator(folder, none))
        if (entry.path().extension() == ".conf") known.push_back(entry.path().stem().string());
    }
  }
  if (path.empty()) {
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    std::string list;
    for (const auto& name : known)
      list += (list.empty() ? "" : ", ") + name;
    return bad_input(fmt::format("--cost-model {}: no such file or name; known are {}; nearest: "
                                 "{}; `adafloor calibrate` makes one from a run",
                                 name_or_path, list, nearest_name(name_or_path, known)));
  }
  std::ifstream in{path};
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return fail(error_code::io, path + ": cannot be read");
  return parse_cost_model(text.str(), path);
}

nlohmann::json guard_json(const guard_fit& fit) {
  nlohmann::json out = {{"ratio", fit.ratio},
                        {"coverage", nullptr},
                        {"transitions", fit.transitions},
                        {"widened", fit.widened}};
  if (fit.has_coverage) out["coverage"] = fit.coverage;
  return out;
}

std::string guard_text(const guard_fit& fit) {
  if (!fit.has_coverage)
    return fmt::format("Guard ratio {:.2f}: the default, with fewer than two epochs to fit it on.",
                       fit.ratio);
  return fmt::format(
      "Guard ratio {:.2f} over {} transitions; a fit without the newest epoch covers "
      "{:.1f} % of its prompts{}",
      fit.ratio, fit.transitions, 100 * fit.coverage,
      fit.widened ? "; lengths drift: the ratio was widened to the newest epoch's own." : ".");
}

void add_plan_options(CLI::App& command, plan_flags& f) {
  command
      .add_option("--history", f.history,
                  "history CSV, a trainer's dump or a folder of dumps;\n"
                  "plain, gzip or zstd")
      ->required();
  command.add_option("--history-epochs", f.history_epochs, "epochs to learn from, oldest first")
      ->delimiter(',');
  command.add_option("--workload", f.workload, "CSV with the prompts to run; default: the history");
  command.add_option("--workload-epoch", f.workload_epochs, "epoch of the workload")
      ->delimiter(',');
  command.add_option("--cost-model", f.cost_model, "name or file");
  command.add_option("--world,--ranks", f.world, "ranks of the full EP group");
  command.add_option("--prompts-per-step", f.prompts_per_step, "prompts of one rollout step");
  command.add_option("--max-num-seqs", f.max_num_seqs, "live requests of one rank");
  command.add_option("--max-response-length", f.max_response_length,
                     "tokens; default 16384, or the longest length in the files");
  command.add_option("--floor", f.floor, "smallest group: a number, or auto");
  command.add_option("--group-sizes", f.group_sizes, "sizes that the group may have")
      ->delimiter(',');
  command.add_option("--experts", f.experts, "experts per layer");
  command
      .add_option("--capacity", f.capacities,
                  "KV tokens per rank as RANKS:TOKENS,...; default: the cost model's")
      ->delimiter(',');
  command
      .add_option("--planned-capacity", f.planned_capacities, "the same with resident groups kept")
      ->delimiter(',');
  command.add_option("--kv-margin", f.kv_margin, "factor on lengths for KV peaks");
  command.add_flag("--count-prompt-tokens", f.count_prompt_tokens, "prompts hold KV too");
  command.add_option("--migrate", f.migrate, "off, stragglers or consolidate");
  command.add_option("--stragglers-max", f.stragglers_max, "requests one exit may move");
  command.add_option("--residency", f.residency, "natural or planned");
  command.add_flag("--resize-pool", f.resize_pool, "the KV pool grows while experts are few");
  command.add_option("--guard", f.guard, "on or off: cap responses per step");
  command.add_option("--guard-ratio", f.guard_ratio, "default: fitted on the history");
  command.add_option("--guard-quantile", f.guard_quantile, "of the fit");
  command.add_option("--scenarios", f.scenarios, "resampled futures per decision");
  command.add_option("--lambda", f.lambda, "weight of time against leased ranks, 1 or more");
}

epoch_list past_epochs(const length_history& history, const std::vector<std::uint32_t>& epochs) {
  epoch_list out;
  for (auto e : epochs)
    out.push_back(epoch_prompts(history, e));
  return out;
}

namespace {

result<void> fill_base(const plan_flags& f, plan_inputs& in) {
  auto& o = in.arms.base;
  o.world = f.world;
  o.prompts_per_step = f.prompts_per_step;
  o.max_num_seqs = f.max_num_seqs;
  o.group_sizes = f.group_sizes;
  o.experts = f.experts;
  o.resize_pool = f.resize_pool;
  o.scenarios = f.scenarios;
  o.stragglers_max = f.stragglers_max;
  o.lambda = f.lambda;
  o.kv.margin_milli = static_cast<std::int32_t>(std::lround(f.kv_margin * 1000));
  o.kv.count_prompt_tokens = f.count_prompt_tokens;
  o.kv.max_response_length =
      f.max_response_length > 0
          ? f.max_response_length
          : std::max({16384, longest_response(in.history), longest_response(in.workload)});
  o.prediction.max_response_length = o.kv.max_response_length;
  o.guard_rule.quantile = f.guard_quantile;
  if (f.floor == "auto") {
    o.floor = 0;
  } else {
    auto parsed = std::from_chars(f.floor.data(), f.floor.data() + f.floor.size(), o.floor);
    if (parsed.ec != std::errc{} || parsed.ptr != f.floor.data() + f.floor.size() || o.floor < 1)
      return bad_flag("--floor", f.floor, "a number of ranks, or auto");
  }
  if (f.guard != "on" && f.guard != "off") return bad_flag("--guard", f.guard, "on, off");
  in.arms.guard = f.guard == "on";
  if (f.guard_quantile <= 0 || f.guard_quantile > 1)
    return bad_flag("--guard-quantile", std::to_string(f.guard_quantile), "above 0, at most 1");
  if (f.scenarios < 1 || f.scenarios > 1000)
    return bad_flag("--scenarios", std::to_string(f.scenarios), "1..1000");
  auto migrate = choice("--migrate", f.migrate,
                        {migrate_kind::off, migrate_kind::stragglers, migrate_kind::consolidate});
  if (!migrate) return tl::unexpected(migrate.error());
  in.migrate = in.arms.migrate = *migrate;
  auto residency =
      choice("--residency", f.residency, {residency_kind::natural, residency_kind::planned});
  if (!residency) return tl::unexpected(residency.error());
  in.residency = *residency;
  auto natural = parse_capacities("--capacity", f.capacities);
  auto planned = parse_capacities("--planned-capacity", f.planned_capacities);
  if (!natural) return tl::unexpected(natural.error());
  if (!planned) return tl::unexpected(planned.error());
  in.arms.natural = natural->empty() ? o.costs.capacity : *natural;
  in.arms.planned = planned->empty() ? o.costs.planned_capacity : *planned;
  return check_options(o);
}

} // namespace

result<plan_inputs> resolve(const plan_flags& f) {
  plan_inputs in;
  auto history = load_history(f.history);
  if (!history) return tl::unexpected(history.error());
  in.history = std::move(*history);
  in.workload = in.history;
  if (!f.workload.empty() && f.workload != f.history) {
    auto workload = load_history(f.workload);
    if (!workload) return tl::unexpected(workload.error());
    in.workload = std::move(*workload);
  }
  auto costs = load_cost_model(f.cost_model);
  if (!costs) return tl::unexpected(costs.error());
  in.arms.base.costs = std::move(*costs);
  auto workload_names = f.workload_epochs;
  if (workload_names.empty()) workload_names = {in.workload.epochs.back()};
  auto history_names = f.history_epochs;
  if (history_names.empty())
    for (const auto& e : in.history.epochs)
      if (!f.workload.empty() || in.history.epochs.size() == 1
          || std::find(workload_names.begin(), workload_names.end(), e) == workload_names.end())
        history_names.push_back(e);
  auto past = find_epochs("--history-epochs", f.history, in.history, history_names);
  if (!past) return tl::unexpected(past.error());
  auto ahead = find_epochs("--workload-epoch", f.workload.empty() ? f.history : f.workload,
                           in.workload, workload_names);
  if (!ahead) return tl::unexpected(ahead.error());
  in.history_epochs = std::move(*past);
  in.workload_epochs = std::move(*ahead);
  auto filled = fill_base(f, in);
  if (!filled) return tl::unexpected(filled.error());
  auto past_list = past_epochs(in.history, in.history_epochs);
  auto fit = fit_guard(past_list, in.arms.base.prediction, in.arms.base.guard_rule);
  in.arms.base.guard_ratio = f.guard_ratio > 0 ? f.guard_ratio : fit.ratio;
  return in;
}

} // namespace adafloor
