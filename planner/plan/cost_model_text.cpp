// The text form of cost models (config/cost_models/README.md).
#include "planner/plan/cost_model.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace adafloor {
namespace {

struct scalar_key {
  std::string_view name;
  double cost_model::*field;
};
constexpr std::array<scalar_key, 10> scalar_keys{{
    {"default_exit_seconds", &cost_model::default_exit_seconds},
    {"restore_seconds", &cost_model::restore_seconds},
    {"fixed_seconds", &cost_model::fixed_seconds},
    {"fixed_shrunk_seconds", &cost_model::fixed_shrunk_seconds},
    {"lease_start_seconds", &cost_model::lease_start_seconds},
    {"copy_bytes_per_second", &cost_model::copy_bytes_per_second},
    {"kv_bytes_per_token", &cost_model::kv_bytes_per_token},
    {"blackout_seconds", &cost_model::blackout_seconds},
    {"prefill_tokens_per_second", &cost_model::prefill_tokens_per_second},
    {"", nullptr},
}};

struct law_key {
  std::string_view name;
  double decode_law::*field;
};
constexpr std::array<law_key, 4> law_keys{{{"base_ms", &decode_law::base_ms},
                                           {"per_active_ms", &decode_law::per_active_ms},
                                           {"per_max_kv_ms", &decode_law::per_max_kv_ms},
                                           {"per_batch_ms", &decode_law::per_batch_ms}}};

std::string_view trimmed(std::string_view text) {
  auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    auto end = text.find_first_of(" \t");
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end);
  }
  return out;
}

bool to_number(std::string_view text, double* out) {
  std::string copy{text};
  char* end = nullptr;
  *out = std::strtod(copy.c_str(), &end);
  return !copy.empty() && *end == '\0' && *out >= 0 && *out < 1e18;
}

std::string printed(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

class reader {
public:
  explicit reader(std::string_view file) : file_(file) { costs_.laws.clear(); }

  result<void> feed(std::string_view line) {
    ++line_;
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) return {};
    auto words = words_of(line);
    if (words[0] == "decode") return read_decode(words);
    if (words[0] == "table") return read_table(words);
    if (words[0] == "exit") return read_exit(words);
    if (words[0] == "capacity") return read_capacity(words, &costs_.capacity);
    if (words[0] == "planned_capacity") return read_capacity(words, &costs_.planned_capacity);
    auto equals = line.find('=');
    if (equals == std::string_view::npos)
      return bad(words[0], line, "key = value, or a decode, table, exit or capacity line");
    return read_scalar(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)));
  }

  result<cost_model> finish() {
    if (costs_.laws.empty())
      return bad_input(std::string{file_}
                       + ": no decode line; a cost model needs at least one, "
                         "as in `decode 16 base_ms=48 per_active_ms=2.17`");
    return std::move(costs_);
  }

private:
  tl::unexpected<error> bad(std::string_view key, std::string_view value,
                            std::string_view allowed) const {
    return bad_input(std::string{file_} + ":" + std::to_string(line_) + ": " + std::string{key}
                     + " has \"" + std::string{value} + "\"; allowed: " + std::string{allowed});
  }

  result<void> read_scalar(std::string_view key, std::string_view value) {
    if (key == "name") {
      costs_.name = value;
      return {};
    }
    if (key == "notes") {
      if (!value.empty()) costs_.notes += (costs_.notes.empty() ? "" : " ") + std::string{value};
      return {};
    }
    for (const auto& known : scalar_keys) {
      if (known.field == nullptr || known.name != key) continue;
      if (!to_number(value, &(costs_.*known.field))) return bad(key, value, "a number >= 0");
      return {};
    }
    std::string allowed = "name, notes";
    for (const auto& known : scalar_keys)
      if (known.field != nullptr) allowed += ", " + std::string{known.name};
    return bad("key", key, allowed);
  }

  result<int> ranks(std::string_view key, std::string_view word) const {
    double value = 0;
    if (!to_number(word, &value) || value < 1 || value != static_cast<int>(value))
      return bad(key, word, "a whole number of ranks");
    return static_cast<int>(value);
  }

  result<void> read_decode(const std::vector<std::string_view>& words) {
    if (words.size() < 2) return bad("decode", "", "decode RANKS key=value...");
    auto size = ranks("decode", words[1]);
    if (!size) return tl::unexpected(size.error());
    decode_law law;
    law.ranks = *size;
    for (std::size_t i = 2; i < words.size(); ++i) {
      if (words[i] == "assumed") {
        law.measured = false;
        continue;
      }
      auto equals = words[i].find('=');
      const law_key* found = nullptr;
      for (const auto& known : law_keys)
        if (known.name == words[i].substr(0, equals)) found = &known;
      if (found == nullptr || equals == std::string_view::npos
          || !to_number(words[i].substr(equals + 1), &(law.*found->field)))
        return bad("decode", words[i],
                   "base_ms=, per_active_ms=, per_max_kv_ms=, per_batch_ms= or assumed");
    }
    costs_.laws.push_back(law);
    return {};
  }

  result<void> read_table(const std::vector<std::string_view>& words) {
    if (words.size() < 3) return bad("table", "", "table RANKS requests:ms...");
    auto size = ranks("table", words[1]);
    if (!size) return tl::unexpected(size.error());
    decode_table table;
    table.ranks = *size;
    for (std::size_t i = 2; i < words.size(); ++i) {
      auto colon = words[i].find(':');
      double tokens = 0, ms = 0;
      if (colon == std::string_view::npos || !to_number(words[i].substr(0, colon), &tokens)
          || !to_number(words[i].substr(colon + 1), &ms)
          || (!table.tokens.empty() && tokens <= table.tokens.back()))
        return bad("table", words[i], "requests:ms with rising requests");
      table.tokens.push_back(tokens);
      table.ms.push_back(ms);
    }
    costs_.tables.push_back(std::move(table));
    return {};
  }

  result<void> read_exit(const std::vector<std::string_view>& words) {
    if (words.size() != 4) return bad("exit", "", "exit FROM TO SECONDS");
    auto from = ranks("exit", words[1]), to = ranks("exit", words[2]);
    exit_cost exit;
    if (!from || !to || *to >= *from || !to_number(words[3], &exit.seconds))
      return bad("exit", words[1], "exit FROM TO SECONDS with TO below FROM");
    exit.from = *from;
    exit.to = *to;
    costs_.exits.push_back(exit);
    return {};
  }

  result<void> read_capacity(const std::vector<std::string_view>& words,
                             std::vector<group_capacity>* table) {
    double tokens = 0;
    auto size = words.size() == 3 ? ranks(words[0], words[1]) : result<int>{0};
    if (!size) return tl::unexpected(size.error());
    if (*size < 1 || !to_number(words[2], &tokens) || tokens < 1)
      return bad(words[0], words.back(), std::string{words[0]} + " RANKS TOKENS");
    table->push_back({*size, static_cast<std::int64_t>(tokens)});
    return {};
  }

  std::string_view file_;
  std::size_t line_ = 0;
  cost_model costs_;
};

} // namespace

result<cost_model> parse_cost_model(std::string_view text, std::string_view file) {
  reader in{file};
  for (;;) {
    auto end = text.find('\n');
    if (auto done = in.feed(text.substr(0, end)); !done) return tl::unexpected(done.error());
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return in.finish();
}

std::string format_cost_model(const cost_model& costs) {
  std::string out = "name = " + costs.name + "\n";
  if (!costs.notes.empty()) out += "notes = " + costs.notes + "\n";
  for (const auto& key : scalar_keys)
    if (key.field != nullptr)
      out += std::string{key.name} + " = " + printed(costs.*key.field) + "\n";
  for (const auto& law : costs.laws) {
    out += "decode " + std::to_string(law.ranks);
    for (const auto& key : law_keys)
      if (law.*key.field != 0) out += " " + std::string{key.name} + "=" + printed(law.*key.field);
    out += law.measured ? "\n" : " assumed\n";
  }
  for (const auto& table : costs.tables) {
    out += "table " + std::to_string(table.ranks);
    for (std::size_t i = 0; i < table.tokens.size(); ++i)
      out += " " + printed(table.tokens[i]) + ":" + printed(table.ms[i]);
    out += "\n";
  }
  for (const auto& exit : costs.exits)
    out += "exit " + std::to_string(exit.from) + " " + std::to_string(exit.to) + " "
           + printed(exit.seconds) + "\n";
  for (const auto& c : costs.capacity)
    out += "capacity " + std::to_string(c.ranks) + " " + std::to_string(c.tokens) + "\n";
  for (const auto& c : costs.planned_capacity)
    out += "planned_capacity " + std::to_string(c.ranks) + " " + std::to_string(c.tokens) + "\n";
  return out;
}

} // namespace adafloor
