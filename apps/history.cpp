// `adafloor history`: makes a history CSV from trainers' dumps, and says what a history holds.
#include "apps/commands.hpp"
#include "apps/dump_import.hpp"
#include "apps/plan_inputs.hpp"
#include "planner/plan/history_stats.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <memory>

namespace adafloor {
namespace {

using nlohmann::json;

struct import_flags {
  std::vector<std::string> files;
  std::string output = "-";
  import_options options;
  bool as_json = false;
};

int run_import(const import_flags& flags) {
  if (flags.options.tokens_per_char <= 0 || flags.options.tokens_per_char > 4)
    return print_error(
        {error_code::bad_input, fmt::format("--tokens-per-char {}: allowed: above 0, at most 4",
                                            flags.options.tokens_per_char)});
  if (flags.as_json && flags.output == "-")
    return print_error({error_code::bad_input,
                        "--json prints its object on stdout, so the CSV needs a file: -o FILE"});
  std::ofstream file;
  if (flags.output != "-") {
    file.open(flags.output, std::ios::trunc);
    if (!file) return print_error({error_code::io, flags.output + ": cannot be written"});
  }
  std::ostream& out = flags.output == "-" ? std::cout : file;
  out << history_header();
  length_history one;
  one.epochs.resize(1);
  one.prompts.resize(1);
  dump_importer reader{flags.options, [&](const imported_row& row) {
                         one.epochs[0] = row.epoch;
                         one.prompts[0] = row.prompt;
                         out << format_row(one, row.row);
                       }};
  for (const auto& path : flags.files)
    if (auto read = reader.read_file(path); !read) return print_error(read.error());
  out.flush();
  if (!out) return print_error({error_code::io, flags.output + ": writing failed; disk full?"});
  auto summary = reader.summary();
  summary["output"] = flags.output;
  if (flags.as_json)
    std::cout << summary.dump() << std::endl;
  else
    std::cerr << fmt::format("{} rows of {} prompts in {} epochs, {} bad rows{}\n", reader.rows(),
                             reader.prompts(), reader.epochs(), reader.bad_rows(),
                             reader.counted_by_text()
                                 ? fmt::format("; text without token counts was taken as {:.4f} "
                                               "tokens per character (--tokens-per-char)",
                                               flags.options.tokens_per_char)
                                 : "");
  if (reader.rows() == 0)
    return print_error({error_code::bad_input, "no row was read; is the input empty?"});
  return 0;
}

json to_json(const history_stats& stats) {
  json epochs = json::array(), links = json::array();
  for (const auto& e : stats.epochs)
    epochs.push_back({{"epoch", e.epoch},
                      {"prompts", e.prompts},
                      {"responses", e.responses},
                      {"truncated", e.truncated},
                      {"mean", e.mean},
                      {"p50", e.p50},
                      {"p90", e.p90},
                      {"p99", e.p99},
                      {"longest", e.longest},
                      {"tail_over_mean", e.tail_over_mean}});
  for (std::size_t i = 0; i < stats.links.size(); ++i) {
    const auto& l = stats.links[i];
    links.push_back({{"from", stats.epochs[i].epoch},
                     {"to", stats.epochs[i + 1].epoch},
                     {"shared_prompts", l.shared},
                     {"rank_correlation_means", l.rank_correlation_means},
                     {"rank_correlation_tails", l.rank_correlation_tails},
                     {"tail_ratio_q95", l.ratio_q95},
                     {"mean_change", l.mean_change}});
  }
  return {{"epochs", epochs}, {"links", links}, {"guard", guard_json(stats.guard)}};
}

void print_stats(const history_stats& stats) {
  std::cout << fmt::format("{:<10} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10}\n",
                           "epoch", "prompts", "responses", "truncated", "mean", "p50", "p90",
                           "p99", "longest", "tail/mean");
  for (const auto& e : stats.epochs)
    std::cout << fmt::format("{:<10} {:>8} {:>9} {:>9} {:>8.0f} {:>8.0f} {:>8.0f} {:>8.0f} "
                             "{:>8.0f} {:>10.2f}\n",
                             e.epoch.substr(0, 10), e.prompts, e.responses, e.truncated, e.mean,
                             e.p50, e.p90, e.p99, e.longest, e.tail_over_mean);
  for (std::size_t i = 0; i < stats.links.size(); ++i) {
    const auto& l = stats.links[i];
    std::cout << fmt::format("{} -> {}: {} shared prompts, rank correlation of means {:.2f}, of "
                             "tails {:.2f}; realised over predicted tail q95 {:.2f}; mean length "
                             "{:+.1f} %\n",
                             stats.epochs[i].epoch, stats.epochs[i + 1].epoch, l.shared,
                             l.rank_correlation_means, l.rank_correlation_tails, l.ratio_q95,
                             100 * l.mean_change);
  }
  std::cout << guard_text(stats.guard) << '\n';
}

int run_show(const std::string& path, bool as_json) {
  auto history = load_history(path);
  if (!history) return print_error(history.error());
  prediction_options prediction;
  prediction.max_response_length = longest_response(*history);
  auto stats = describe(*history, prediction, {});
  if (as_json)
    std::cout << to_json(stats).dump() << std::endl;
  else
    print_stats(stats);
  return 0;
}

} // namespace

void add_history(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("history", "Response lengths of past rollouts");
  command->require_subcommand(1);
  command->footer("Example: adafloor history import rollouts/*.jsonl -o history.csv");
  auto* import = command->add_subcommand("import", "Make a history CSV from trainers' dumps");
  import->footer("Reads verl, AReaL, NeMo-RL, ROLL, SkyRL, prime-rl, slime and trl as JSON lines, "
                 "plain, gzip or zstd,\nrecognised by content. Files are steps in order of time.\n"
                 "Example: adafloor history import rollouts/*.jsonl.gz -o history.csv");
  auto flags = std::make_shared<import_flags>();
  import->add_option("files", flags->files, "dumps, oldest first; - is standard input")->required();
  import->add_option("-o,--output", flags->output, "the CSV; - is standard output");
  import->add_option("--epoch", flags->options.epoch,
                     "name of the epoch; default: counted per prompt");
  import->add_option("--tokens-per-char", flags->options.tokens_per_char,
                     "for dumps with text only (default 1/3.6)");
  import->add_flag("--strict", flags->options.strict, "stop at the first bad row");
  import->add_flag("--json", flags->as_json, "print one object on stdout");
  import->callback([flags, exit_code] { *exit_code = run_import(*flags);
});

auto* show = command->add_subcommand("show", "Quantiles, tails, predictability and drift");
show->footer("Example: adafloor history show history.csv");
auto path = std::make_shared<std::string>();
auto as_json = std::make_shared<bool>(false);
show->add_option("file", *path, "history CSV, plain, gzip or zstd")->required();
show->add_flag("--json", *as_json, "print one object on stdout");
show->callback([path, as_json, exit_code] { *exit_code = run_show(*path, *as_json); });
} // namespace adafloor

} // namespace adafloor
