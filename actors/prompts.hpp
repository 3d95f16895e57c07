#pragma once
// Prompt files: JSON lines, one prompt per line.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

struct prompt {
  std::string id;               ///< unique in its file
  std::vector<token_id> tokens; ///< at least one
  std::vector<token_id> answer; ///< the only right response, EOS included; empty: not known
};

/// Reads lines `{"prompt_id": "...", "prompt_token_ids": [...], "answer_token_ids": [...]}`.
/// prompt_id may be a string or a whole number and defaults to `line-N`; answer_token_ids is
/// optional; other keys and empty lines are ignored. Errors: bad_input naming `file`:line, the key,
/// the value and what is allowed: malformed JSON, a missing or empty list, a token id outside
/// [0, vocabulary), an id that came before, or no prompt at all.
result<std::vector<prompt>> parse_prompts(std::string_view text, const std::string& file,
                                          std::uint32_t vocabulary);

/// `parse_prompts` of a file's content; bad_input when it cannot be read.
result<std::vector<prompt>> load_prompts(const std::string& file, std::uint32_t vocabulary);

} // namespace adafloor
