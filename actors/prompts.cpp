#include "actors/prompts.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <sstream>

namespace adafloor {
namespace {

using nlohmann::json;

result<std::vector<token_id>> read_tokens(const json& from, const char* key,
                                          std::uint32_t vocabulary, const std::string& place) {
  if (!from.is_array() || from.empty())
    return bad_input(
        fmt::format("{}: \"{}\" must be a list of token ids, at least one", place, key));
  std::vector<token_id> tokens;
  tokens.reserve(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const bool known = from[i].is_number_integer() && from[i] >= 0 && from[i] < vocabulary;
    if (!known)
      return bad_input(fmt::format("{}: \"{}\"[{}] = {}: unknown token id, the model has 0 to {}; "
                                   "was the file made with another tokenizer?",
                                   place, key, i, from[i].dump(), vocabulary - 1));
    tokens.push_back(from[i].get<token_id>());
  }
  return tokens;
}

result<prompt> read_prompt(std::string_view line, std::size_t number, std::uint32_t vocabulary,
                           const std::string& place) {
  const auto tree = json::parse(line, nullptr, false);
  if (!tree.is_object())
    return bad_input(fmt::format("{}: not a JSON object: {:.60}; each line holds one, such as "
                                 "{{\"prompt_id\": \"a\", \"prompt_token_ids\": [1, 2]}}",
                                 place, line));
  prompt read;
  read.id = fmt::format("line-{}", number);
  if (const auto id = tree.find("prompt_id"); id != tree.end()) {
    if (!id->is_string() && !id->is_number_integer())
      return bad_input(fmt::format("{}: \"prompt_id\" must be a string or a whole number", place));
    read.id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  const auto tokens = tree.find("prompt_token_ids");
  if (tokens == tree.end())
    return bad_input(fmt::format("{}: \"prompt_token_ids\" is missing", place));
  auto list = read_tokens(*tokens, "prompt_token_ids", vocabulary, place);
  if (!list) return tl::make_unexpected(list.error());
  read.tokens = std::move(*list);
  if (const auto answer = tree.find("answer_token_ids"); answer != tree.end()) {
    list = read_tokens(*answer, "answer_token_ids", vocabulary, place);
    if (!list) return tl::make_unexpected(list.error());
    read.answer = std::move(*list);
  }
  return read;
}

} // namespace

result<std::vector<prompt>> parse_prompts(std::string_view text, const std::string& file,
                                          std::uint32_t vocabulary) {
  std::vector<prompt> prompts;
  std::map<std::string, std::size_t> line_of;
  std::size_t number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto place = fmt::format("{}:{}", file, number);
    auto read = read_prompt(line, number, vocabulary, place);
    if (!read) return tl::make_unexpected(read.error());
    const auto [first, is_new] = line_of.emplace(read->id, number);
    if (!is_new)
      return bad_input(fmt::format("{}: prompt_id \"{}\" stands on line {} already; ids are unique",
                                   place, read->id, first->second));
    prompts.push_back(std::move(*read));
  }
  if (prompts.empty()) return bad_input(fmt::format("{}: holds no prompt", file));
  return prompts;
}

result<std::vector<prompt>> load_prompts(const std::string& file, std::uint32_t vocabulary) {
  std::ifstream in{file, std::ios::binary};
  std::ostringstream text;
  if (!in || !(text << in.rdbuf()))
    return bad_input(fmt::format("{}: cannot be read or is empty; is it there?", file));
  return parse_prompts(text.str(), file, vocabulary);
}

} // namespace adafloor
