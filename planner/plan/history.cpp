#include "planner/plan/history.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace adafloor {
namespace {

enum column : std::size_t {
  epoch,
  position,
  prompt_id,
  sample,
  prompt_tokens,
  response,
  truncated
};
constexpr std::array<std::string_view, 7> column_names = {
    "epoch", "position", "prompt_id", "sample", "prompt_tokens", "response_tokens", "truncated"};

std::uint32_t index_of(std::unordered_map<std::string, std::uint32_t>& index,
                       std::vector<std::string>& names, std::string_view name) {
  auto [place, added] = index.try_emplace(std::string{name}, names.size());
  if (added) names.emplace_back(name);
  return place->second;
}

// Splits one CSV line; "" inside quotes is a quote.
void split(std::string_view line, std::vector<std::string>& cells) {
  std::size_t used = 0;
  auto cell = [&]() -> std::string& {
    if (used == cells.size()) cells.emplace_back();
    cells[used].clear();
    return cells[used++];
  };
  std::string* current = &cell();
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      current->push_back('"');
      ++i;
    } else if (c == '"' && (quoted || current->empty())) {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      current = &cell();
    } else {
      current->push_back(c);
    }
  }
  cells.resize(used);
}

bool to_int(std::string_view text, std::int32_t* out) {
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return code == std::errc{} && end == text.data() + text.size() && *out >= 0;
}

bool to_flag(std::string_view text, bool* out) {
  *out = text == "1" || text == "true" || text == "True";
  return *out || text == "0" || text == "false" || text == "False" || text.empty();
}

std::string quoted(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string{text};
  std::string out = "\"";
  for (char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

} // namespace

std::uint32_t length_history::epoch_index(std::string_view name) {
  return index_of(epoch_of_, epochs, name);
}

std::uint32_t length_history::prompt_index(std::string_view id) {
  return index_of(prompt_of_, prompts, id);
}

int length_history::find_epoch(std::string_view name) const {
  auto place = std::find(epochs.begin(), epochs.end(), name);
  return place == epochs.end() ? -1 : static_cast<int>(place - epochs.begin());
}

void length_history::forget_epoch(std::uint32_t epoch) {
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [&](const length_row& row) { return row.epoch == epoch; }),
             rows.end());
  for (auto& row : rows)
    row.epoch -= row.epoch > epoch ? 1 : 0;
  epochs.erase(epochs.begin() + epoch);
  epoch_of_.clear();
  for (std::uint32_t e = 0; e < epochs.size(); ++e)
    epoch_of_[epochs[e]] = e;
}

error history_reader::row_error(std::string_view column, std::string_view value,
                                std::string_view allowed) const {
  return error{error_code::bad_input, file_ + ":" + std::to_string(line_) + ": column "
                                          + std::string{column} + " has \"" + std::string{value}
                                          + "\"; allowed: " + std::string{allowed}};
}

result<void> history_reader::read_header(const std::vector<std::string>& cells) {
  columns_.assign(column_names.size(), -1);
  for (std::size_t c = 0; c < column_names.size(); ++c)
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (cells[i] == column_names[c]) columns_[c] = static_cast<int>(i);
  for (column c : {epoch, prompt_id, sample, response})
    if (columns_[c] < 0)
      return bad_input(file_ + ":1: no column \"" + std::string{column_names[c]}
                       + "\"; a history needs the header "
                         "epoch,position,prompt_id,sample,prompt_tokens,response_tokens,truncated; "
                         "`adafloor history import` makes one from a trainer's dump");
  for (int c : columns_)
    widest_ = std::max(widest_, static_cast<std::size_t>(c + 1));
  has_header_ = true;
  return {};
}

result<void> history_reader::feed(std::string_view line) {
  ++line_;
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line_ == 1 && line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
  if (line.empty()) return {};
  split(line, cells_);
  if (!has_header_) return read_header(cells_);
  if (cells_.size() < widest_)
    return bad_input(file_ + ":" + std::to_string(line_) + ": " + std::to_string(cells_.size())
                     + " cells, the header needs " + std::to_string(widest_));
  length_row row;
  auto text = [&](column c) -> std::string_view { return cells_[columns_[c]]; };
  auto number = [&](column c, std::int32_t* out) {
    return columns_[c] < 0 || to_int(text(c), out);
  };
  bool has_position = columns_[position] >= 0;
  for (auto [c, out] :
       {std::pair{position, &row.position}, std::pair{sample, &row.sample},
        std::pair{prompt_tokens, &row.prompt_tokens}, std::pair{response, &row.response_tokens}})
    if (!number(c, out))
      return tl::unexpected(row_error(column_names[c], text(c), "a whole number >= 0"));
  if (columns_[truncated] >= 0 && !to_flag(text(truncated), &row.truncated))
    return tl::unexpected(row_error("truncated", text(truncated), "0, 1, true or false"));
  if (text(epoch).empty() || text(prompt_id).empty())
    return tl::unexpected(row_error(text(epoch).empty() ? "epoch" : "prompt_id", "", "a name"));
  row.epoch = history_.epoch_index(text(epoch));
  row.prompt = history_.prompt_index(text(prompt_id));
  if (!has_position) {
    if (!has_last_ || row.epoch != last_epoch_)
      next_position_ = 0;
    else if (row.prompt != last_prompt_)
      ++next_position_;
    row.position = next_position_;
  }
  last_epoch_ = row.epoch;
  last_prompt_ = row.prompt;
  has_last_ = true;
  history_.rows.push_back(row);
  return {};
}

result<length_history> parse_history(std::string_view csv, std::string_view file) {
  history_reader reader{std::string{file}};
  while (!csv.empty()) {
    auto end = csv.find('\n');
    auto done = reader.feed(csv.substr(0, end));
    if (!done) return tl::unexpected(done.error());
    if (end == std::string_view::npos) break;
    csv.remove_prefix(end + 1);
  }
  if (!reader.has_header())
    return bad_input(std::string{file} + ": empty; a history needs a header line and rows");
  return std::move(reader.history());
}

std::vector<prompt_lengths> epoch_prompts(const length_history& history, std::uint32_t epoch) {
  struct entry {
    std::int32_t position;
    std::uint32_t prompt;
    std::int32_t sample;
    std::uint32_t row;
  };
  std::vector<std::int32_t> position_of(history.prompts.size(), -1);
  std::vector<entry> entries;
  for (std::uint32_t i = 0; i < history.rows.size(); ++i) {
    const auto& row = history.rows[i];
    if (row.epoch != epoch) continue;
    if (position_of[row.prompt] < 0) position_of[row.prompt] = row.position;
    entries.push_back({position_of[row.prompt], row.prompt, row.sample, i});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const entry& a, const entry& b) {
    return std::tie(a.position, a.prompt, a.sample) < std::tie(b.position, b.prompt, b.sample);
  });
  std::vector<prompt_lengths> out;
  std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
  for (const auto& e : entries) {
    const auto& row = history.rows[e.row];
    if (e.prompt != last)
      out.push_back({history.prompts[e.prompt], e.position, row.prompt_tokens, {}});
    last = e.prompt;
    out.back().lengths.push_back(row.response_tokens);
  }
  return out;
}

std::string_view history_header() {
  return "epoch,position,prompt_id,sample,prompt_tokens,response_tokens,truncated\n";
}

std::string format_row(const length_history& history, const length_row& row) {
  return quoted(history.epochs[row.epoch]) + ',' + std::to_string(row.position) + ','
         + quoted(history.prompts[row.prompt]) + ',' + std::to_string(row.sample) + ','
         + std::to_string(row.prompt_tokens) + ',' + std::to_string(row.response_tokens) + ','
         + (row.truncated ? "1" : "0") + '\n';
}

} // namespace adafloor
