// `adafloor history`: makes a history CSV from trainers' dumps, and says what a history holds.
#include "apps/commands.hpp"
#include "apps/dump_rows.hpp"
#include "apps/plan_inputs.hpp"
#include "apps/text_input.hpp"
#include "planner/plan/history_stats.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <unordered_map>

namespace adafloor {
namespace {

using nlohmann::json;

struct import_flags {
  std::vector<std::string> files;
  std::string output = "-";
  std::string epoch;
  double tokens_per_char = 1 / 3.6;
  bool strict = false;
  bool as_json = false;
};

/// What is known of a prompt while rows stream by.
struct seen_prompt {
  long step = -1;
  std::int32_t epoch = -1;
  std::int32_t samples = 0;
  std::int32_t position = 0;
};

class importer {
public:
  importer(const import_flags& flags, std::ostream& out) : flags_(flags), out_(out) {
    out_ << history_header();
  }

  result<void> read_file(const std::string& path) {
    ++file_;
    format_.reset();
    error first;
    auto read = for_each_line(path, [&](std::string_view line, std::size_t number) {
      if (line.find_first_not_of(" \t") == std::string_view::npos) return true;
      auto done = take(line);
      if (done) return true;
      return bad_row(fmt::format("{}:{}: {}", path, number, done.error().text), &first);
    });
    if (!read) return read;
    if (!first.text.empty()) return tl::unexpected(first);
    return {};
  }

  json summary() const {
    json formats = json::object();
    for (const auto& [name, count] : formats_)
      formats[name] = count;
    return {{"rows", rows_},
            {"prompts", prompts_.size()},
            {"epochs", epochs_},
            {"bad_rows", bad_},
            {"formats", formats},
            {"output", flags_.output},
            {"tokens_per_char", by_text_ > 0 ? json(flags_.tokens_per_char) : json(nullptr)},
            {"rows_counted_by_text", by_text_}};
  }
  std::size_t rows() const { return rows_; }
  std::size_t bad() const { return bad_; }

private:
  bool bad_row(const std::string& text, error* first) {
    constexpr std::size_t shown_max = 5;
    if (flags_.strict) {
      *first = {error_code::bad_input, text + " (--strict stops at the first bad row)"};
      return false;
    }
    if (++bad_ <= shown_max) std::cerr << "adafloor: bad row: " << text << '\n';
    return true;
  }

  result<void> take(std::string_view line) {
    auto value = json::parse(line.begin(), line.end(), nullptr, false);
    if (value.is_discarded())
      return bad_input("not a JSON object on one line; `adafloor history import` reads JSON lines");
    if (!format_) {
      auto found = recognise(value);
      if (!found) return tl::unexpected(found.error());
      format_ = *found;
    }
    auto rows = read_dump(*format_, value, flags_.tokens_per_char);
    if (!rows) return tl::unexpected(rows.error());
    for (const auto& row : *rows)
      write(row);
    formats_[std::string{name_of(*format_)}] += rows->size();
    return {};
  }

  // A prompt's epoch counts the distinct steps in which it came before.
  void write(const dump_row& row) {
    auto id = row.prompt_is_id ? row.prompt : hashed(row.prompt);
    auto& seen = prompts_[id];
    long step = row.step >= 0 ? row.step : -2 - file_;
    if (seen.epoch < 0 || (seen.step != step && flags_.epoch.empty())) {
      ++seen.epoch;
      seen.samples = 0;
      seen.step = step;
      auto epoch = static_cast<std::size_t>(seen.epoch);
      if (next_position_.size() <= epoch) next_position_.resize(epoch + 1, 0);
      seen.position = next_position_[epoch]++;
    }
    length_history one;
    length_row out;
    auto epoch = flags_.epoch.empty() ? std::to_string(seen.epoch) : flags_.epoch;
    epochs_ = std::max(epochs_, static_cast<std::size_t>(seen.epoch) + 1);
    one.epochs = {epoch};
    one.prompts = {id};
    out.position = seen.position;
    out.sample = seen.samples++;
    out.prompt_tokens = static_cast<std::int32_t>(row.prompt_tokens);
    out.response_tokens = static_cast<std::int32_t>(row.response_tokens);
    out.truncated = row.truncated;
    out_ << format_row(one, out);
    ++rows_;
    by_text_ += row.counted_by_text ? 1U : 0U;
  }

  static std::string hashed(const std::string& text) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
    std::string out;
    for (int i = 0; i < 8; ++i)
      out += fmt::format("{:02x}", digest[i]);
    return out;
  }

  const import_flags& flags_;
  std::ostream& out_;
  std::unordered_map<std::string, seen_prompt> prompts_; // looked up, never iterated
  std::vector<std::int32_t> next_position_;
  std::map<std::string, std::size_t> formats_;
  std::optional<dump_format> format_;
  long file_ = 0;
  std::size_t rows_ = 0, bad_ = 0, by_text_ = 0, epochs_ = 0;
};

int run_import(const import_flags& flags) {
  if (flags.tokens_per_char <= 0 || flags.tokens_per_char > 4)
    return print_error(
        {error_code::bad_input,
         fmt::format("--tokens-per-char {}: allowed: above 0, at most 4", flags.tokens_per_char)});
  if (flags.as_json && flags.output == "-")
    return print_error({error_code::bad_input,
                        "--json prints its object on stdout, so the CSV needs a file: -o FILE"});
  std::ofstream file;
  if (flags.output != "-") {
    file.open(flags.output, std::ios::trunc);
    if (!file) return print_error({error_code::io, flags.output + ": cannot be written"});
  }
  std::ostream& out = flags.output == "-" ? std::cout : file;
  importer reader{flags, out};
  for (const auto& path : flags.files)
    if (auto read = reader.read_file(path); !read) return print_error(read.error());
  out.flush();
  if (!out) return print_error({error_code::io, flags.output + ": writing failed; disk full?"});
  auto summary = reader.summary();
  if (flags.as_json)
    std::cout << summary.dump() << std::endl;
  else
    std::cerr << fmt::format("{} rows of {} prompts in {} epochs, {} bad rows{}\n", reader.rows(),
                             summary["prompts"].get<std::size_t>(),
                             summary["epochs"].get<std::size_t>(), reader.bad(),
                             summary["tokens_per_char"].is_null()
                                 ? ""
                                 : fmt::format("; text without token counts was taken as {:.4f} "
                                               "tokens per character (--tokens-per-char)",
                                               flags.tokens_per_char));
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
  import->add_option("--epoch", flags->epoch, "name of the epoch; default: counted per prompt");
  import->add_option("--tokens-per-char", flags->tokens_per_char,
                     "for dumps with text only (default 1/3.6)");
  import->add_flag("--strict", flags->strict, "stop at the first bad row");
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
