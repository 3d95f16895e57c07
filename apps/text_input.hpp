#pragma once
// Lines of a file that may be plain, gzip or zstd: told apart by content.
#include "messages/result.hpp"

#include <functional>
#include <string>
#include <string_view>

namespace adafloor {

/// Longest line that is read, bytes: a bound on memory. A columnar dump has a whole step on a line.
constexpr std::size_t line_bytes_max = 1U << 30;

/// Calls `take(line, number)` for each line without its end, numbers from 1, until it returns
/// false. `path` "-" is standard input, plain only. Memory: one line and two buffers of a quarter
/// MiB. Errors: io (cannot open or read, damaged compression), bad_input (a line above the bound,
/// or a binary format that is not text, with the remedy).
result<void> for_each_line(const std::string& path,
                           const std::function<bool(std::string_view, std::size_t)>& take);

} // namespace adafloor
