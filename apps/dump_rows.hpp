#pragma once
// Rollout dumps of RL trainers, one JSON value at a time, recognised by their keys.
#include "messages/result.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace adafloor {

enum class dump_format { verl, slime, areal, nemo_rl, roll, skyrl, prime_rl, prime_rl_export, trl };

std::string_view name_of(dump_format format);

/// One sample as the trainer wrote it.
struct dump_row {
  std::string prompt;        ///< what identifies the prompt
  bool prompt_is_id = false; ///< a dataset id that is stable over epochs; else text or tokens
  long step = -1;            ///< the trainer's step or policy version, -1: not in the row
  long prompt_tokens = 0;
  long response_tokens = 0;
  bool truncated = false;
  bool counted_by_text = false; ///< tokens estimated from characters
};

/// The format that `value` has, by content. Errors: bad_input listing the keys found and what the
/// known formats need.
result<dump_format> recognise(const nlohmann::json& value);

/// The samples of one line. `tokens_per_char` is used where the dump has text only. Errors:
/// bad_input naming the key, its value and what is allowed.
result<std::vector<dump_row>> read_dump(dump_format format, const nlohmann::json& value,
                                        double tokens_per_char);

} // namespace adafloor
