// `adafloor calibrate`: fits a cost model to a run's step log.
#include "apps/commands.hpp"
#include "apps/text_input.hpp"
#include "planner/plan/calibration.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

namespace adafloor {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct calibrate_flags {
  std::string source, output, name;
  bool as_json = false;
};

struct measured {
  std::vector<step_sample> steps;
  std::vector<exit_sample> exits;
};

constexpr std::array<const char*, 4> columns{"group_size", "active", "max_kv", "seconds"};

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> out;
  for (;;) {
    auto comma = line.find(',');
    out.emplace_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    line.remove_prefix(comma + 1);
  }
}

/// Reads a step log line by line: CSV with a header, or JSON lines.
class log_reader {
public:
  log_reader(const std::string& path, measured& out) : path_(path), out_(out) {}

  result<void> take(std::string_view line, std::size_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return {};
    if (line.front() == '{') return take_json(line, number);
    auto cells = cells_of(line);
    if (!has_header_) return take_header(cells, number);
    std::array<double, 4> values{};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::string cell = place_[c] < cells.size() ? cells[place_[c]] : "";
      char* end = nullptr;
      values[c] = std::strtod(cell.c_str(), &end);
      if (cell.empty() || *end != '\0') return bad(number, columns[c], cell);
    }
    return add(values, number);
  }

private:
  tl::unexpected<error> bad(std::size_t number, const char* key, const std::string& value) const {
    return bad_input(
        fmt::format("{}:{}: {} is \"{}\"; allowed: a number >= 0", path_, number, key, value));
  }

  result<void> take_header(const std::vector<std::string>& cells, std::size_t number) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      auto found = std::find(cells.begin(), cells.end(), columns[c]);
      if (found == cells.end())
        return bad_input(fmt::format("{}:{}: no column {}; a step log has step,group_size,active,"
                                     "max_kv,seconds, as CSV or as JSON lines",
                                     path_, number, columns[c]));
      place_[c] = static_cast<std::size_t>(found - cells.begin());
    }
    has_header_ = true;
    return {};
  }

  result<void> take_json(std::string_view line, std::size_t number) {
    auto v = json::parse(line.begin(), line.end(), nullptr, false);
    if (!v.is_object()) return bad_input(fmt::format("{}:{}: not a JSON object", path_, number));
    auto number_of = [&](const char* key) {
      return v.contains(key) && v[key].is_number() ? v[key].get<double>() : -1.0;
    };
    if (v.contains("pause_seconds") && v.contains("from") && v.contains("to")) {
      exit_sample exit{static_cast<int>(number_of("from")), static_cast<int>(number_of("to")),
                       number_of("pause_seconds")};
      if (exit.from < 1 || exit.to < 1 || exit.from == exit.to || exit.pause_seconds < 0)
        return bad(number, "a transition", v.dump().substr(0, 80));
      out_.exits.push_back(exit);
      return {};
    }
    if (!v.contains("group_size") || !v.contains("max_kv")) return {}; // another kind of event
    std::array<double, 4> values{};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      values[c] = number_of(columns[c]);
      if (values[c] < 0)
        return bad(number, columns[c], v.contains(columns[c]) ? v[columns[c]].dump() : "missing");
    }
    return add(values, number);
  }

  result<void> add(const std::array<double, 4>& v, std::size_t number) {
    for (std::size_t c = 0; c < columns.size(); ++c)
      if (v[c] < 0 || !(v[c] < 1e15)) return bad(number, columns[c], std::to_string(v[c]));
    if (v[0] < 1 || v[0] > 1e6) return bad(number, columns[0], std::to_string(v[0]));
    out_.steps.push_back({static_cast<int>(v[0]), v[1], v[2], v[3]});
    return {};
  }

  const std::string& path_;
  measured& out_;
  std::array<std::size_t, 4> place_{};
  bool has_header_ = false;
};

result<measured> read_source(const std::string& source) {
  std::vector<std::string> files{source};
  if (fs::is_directory(source)) {
    files.clear();
    for (const char* name : {"steps.csv", "steps.jsonl", "events.jsonl"})
      if (fs::is_regular_file(fs::path{source} / name))
        files.push_back((fs::path{source} / name).string());
    if (files.empty())
      return bad_input(source
                       + ": holds no steps.csv, steps.jsonl or events.jsonl; name the "
                         "folder of a run, or a step log");
  }
  measured out;
  for (const auto& file : files) {
    log_reader reader{file, out};
    error first;
    auto read = for_each_line(file, [&](std::string_view line, std::size_t number) {
      auto taken = reader.take(line, number);
      if (!taken) first = taken.error();
      return taken.has_value();
    });
    if (!read) return tl::unexpected(read.error());
    if (!first.text.empty()) return tl::unexpected(first);
  }
  return out;
}

int run_calibrate(const calibrate_flags& flags) {
  auto source = read_source(flags.source);
  if (!source) return print_error(source.error());
  auto name = flags.name.empty() ? fs::path{flags.output}.stem().string() : flags.name;
  auto costs = calibrate(source->steps, source->exits, name);
  if (!costs) return print_error(costs.error());
  std::ofstream out{flags.output, std::ios::trunc};
  out << format_cost_model(*costs);
  out.flush();
  if (!out) return print_error({error_code::io, flags.output + ": cannot be written"});
  json laws = json::array();
  for (const auto& fit : fit_laws(source->steps)) {
    laws.push_back({{"ranks", fit.law.ranks},
                    {"samples", fit.samples},
                    {"base_ms", fit.law.base_ms},
                    {"per_active_ms", fit.law.per_active_ms},
                    {"per_max_kv_ms", fit.law.per_max_kv_ms},
                    {"r_squared", fit.r_squared},
                    {"median_error", fit.median_error}});
    if (!flags.as_json)
      std::cout << fmt::format("{:>4} ranks: {:.3f} ms + {:.4f} * active + {:.3g} * max_kv over {} "
                               "steps, R2 {:.3f}, median error {:.1f} %\n",
                               fit.law.ranks, fit.law.base_ms, fit.law.per_active_ms,
                               fit.law.per_max_kv_ms, fit.samples, fit.r_squared,
                               100 * fit.median_error);
  }
  if (flags.as_json)
    std::cout
        << json{{"output", flags.output}, {"laws", laws}, {"exits", source->exits.size()}}.dump()
        << std::endl;
  else
    std::cout << fmt::format("{} exits and restores; wrote {}\n", source->exits.size(),
                             flags.output);
  return 0;
}

} // namespace

void add_calibrate(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("calibrate", "Fit a cost model to a run's step log");
  command->footer("A step log has the columns step, group_size, active (ranks with live requests), "
                  "max_kv (tokens of\nthe fullest rank), seconds, as CSV or JSON lines; lines with "
                  "from, to and pause_seconds are exits.\n"
                  "Example: adafloor calibrate out/20260101-120000 -o costs.conf");
  auto flags = std::make_shared<calibrate_flags>();
  command->add_option("source", flags->source, "folder of a run, or a step log")->required();
  command->add_option("-o,--output", flags->output, "the cost model to write")->required();
  command->add_option("--name", flags->name, "of the model; default: the file's name");
  command->add_flag("--json", flags->as_json, "print one object on stdout");
  command->callback([flags, exit_code] { *exit_code = run_calibrate(*flags); });
}

} // namespace adafloor
