#pragma once
// Response lengths of past rollouts: one row per (epoch, prompt, sample).
#include "messages/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace adafloor {

/// Epochs and prompts are indices into the name lists of length_history. Lengths in tokens.
struct length_row {
  std::uint32_t epoch = 0;
  std::uint32_t prompt = 0;
  std::int32_t position = 0; ///< place in the dataset's order; 0-based order of arrival if unknown
  std::int32_t sample = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t response_tokens = 0;
  bool truncated = false;
};

/// Names are kept in order of first appearance, so the order of epochs is the order of time.
class length_history {
public:
  std::vector<std::string> epochs;
  std::vector<std::string> prompts;
  std::vector<length_row> rows;

  /// Index of a name, added if new.
  std::uint32_t epoch_index(std::string_view name);
  std::uint32_t prompt_index(std::string_view id);
  /// Index of a known name or -1.
  int find_epoch(std::string_view name) const;
  /// Takes an epoch and its rows away; later epochs move up one index. Prompts keep theirs.
  void forget_epoch(std::uint32_t epoch);

private:
  std::unordered_map<std::string, std::uint32_t> epoch_of_, prompt_of_; // looked up, never iterated
};

/// One prompt of one epoch with the lengths of its responses, in sample order.
struct prompt_lengths {
  std::string id;
  std::int32_t position = 0;
  std::int32_t prompt_tokens = 0;
  std::vector<std::int32_t> lengths; ///< tokens
};

/// Reads CSV with a header, columns by name: epoch, prompt_id, sample and response_tokens are
/// required; position, prompt_tokens and truncated optional; others ignored. Fields may be quoted.
/// Errors: bad_input naming `file`:line, the column, the value and what is allowed.
result<length_history> parse_history(std::string_view csv, std::string_view file);

/// A reader for text that comes in pieces: feed() lines without their end, the header first.
class history_reader {
public:
  explicit history_reader(std::string file) : file_(std::move(file)) {}
  /// Errors leave the reader usable: the caller may count the bad row and go on.
  result<void> feed(std::string_view line);
  bool has_header() const { return has_header_; }
  length_history& history() { return history_; }

private:
  result<void> read_header(const std::vector<std::string>& cells);
  error row_error(std::string_view column, std::string_view value, std::string_view allowed) const;

  std::string file_;
  length_history history_;
  std::vector<int> columns_; ///< position of each known column in the row, -1 if absent
  std::vector<std::string> cells_;
  std::size_t line_ = 0;
  std::size_t widest_ = 0;
  bool has_header_ = false;
  std::int32_t next_position_ = 0;
  std::uint32_t last_epoch_ = 0, last_prompt_ = 0;
  bool has_last_ = false;
};

/// The prompts of one epoch in dataset order (position, then first appearance). `epoch` is an index
/// into history.epochs. A (prompt, sample) that occurs twice keeps both lengths.
std::vector<prompt_lengths> epoch_prompts(const length_history& history, std::uint32_t epoch);

/// The canonical header line of a history CSV, with its end of line.
std::string_view history_header();
/// One row as CSV, with its end of line. Names with commas, quotes or line ends are quoted.
std::string format_row(const length_history& history, const length_row& row);

} // namespace adafloor
