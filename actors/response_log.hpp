#pragma once
// Lines of OUT/responses.jsonl: finished responses, as they are kept.
#include "actors/step_books.hpp"

#include <string_view>

namespace adafloor {

/// Whose response a line holds.
struct response_head {
  job_point at;
  std::string arm; ///< name of `at.arm`
  std::string prompt_id;
  std::uint32_t sample = 0;
};

/// The line, without its end.
std::string response_line(const response_head& head, const kept_response& r);

/// Reads such a line; `arms` are those of the job. The numbers have the very bits that were
/// written. Errors: bad_input naming `place`.
result<std::pair<response_head, kept_response>>
read_response_line(std::string_view line, const std::vector<std::string>& arms,
                   const std::string& place);

} // namespace adafloor
