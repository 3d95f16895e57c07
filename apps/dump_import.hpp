#pragma once
// From dumps, file by file and row by row, to the rows of a history.
#include "apps/dump_rows.hpp"
#include "planner/plan/history.hpp"

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

namespace adafloor {

struct import_options {
  std::string epoch; ///< name of all rows' epoch; empty: counted per prompt
  double tokens_per_char = 1 / 3.6;
  bool strict = false; ///< stop at the first bad row
};

/// One row on its way out. The text is valid during the call.
struct imported_row {
  const std::string& epoch;
  const std::string& prompt;
  length_row row; ///< its epoch and prompt indices mean nothing
};

/// Memory: what is known of each prompt, and one line. A prompt's epoch counts the distinct steps
/// in which it came before; files without steps in them count as one step each, in the order given.
class dump_importer {
public:
  dump_importer(import_options options, std::function<void(const imported_row&)> sink)
    : options_(std::move(options)), sink_(std::move(sink)) {}

  /// Reads one dump, plain, gzip or zstd. Bad rows are counted and the first five shown on stderr.
  /// Errors: io; bad_input with FILE:LINE (always with `strict`, else only for unreadable files).
  result<void> read_file(const std::string& path);

  nlohmann::json summary() const;
  std::size_t rows() const { return rows_; }
  std::size_t bad_rows() const { return bad_; }
  std::size_t prompts() const { return prompts_.size(); }
  std::size_t epochs() const { return epochs_; }
  bool counted_by_text() const { return by_text_ > 0; }

private:
  /// What is known of a prompt while rows stream by.
  struct seen_prompt {
    long step = -1;
    std::int32_t epoch = -1;
    std::int32_t samples = 0;
    std::int32_t position = 0;
  };

  bool bad_row(const std::string& text, error* first);
  result<void> take(std::string_view line);
  void write(const dump_row& row);

  import_options options_;
  std::function<void(const imported_row&)> sink_;
  std::unordered_map<std::string, seen_prompt> prompts_; // looked up, never iterated
  std::vector<std::int32_t> next_position_;
  std::map<std::string, std::size_t> formats_;
  std::optional<dump_format> format_;
  long file_ = 0;
  std::size_t rows_ = 0, bad_ = 0, by_text_ = 0, epochs_ = 0;
};

} // namespace adafloor
