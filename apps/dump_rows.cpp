#include "apps/dump_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace adafloor {
namespace {

using nlohmann::json;

struct mark {
  dump_format format;
  std::string_view name;
  std::array<std::string_view, 3> keys; ///< all must be there; empty ones do not count
};

// In order: a format whose keys contain another's comes first.
constexpr std::array<mark, 9> marks{{
    {dump_format::areal, "AReaL", {"seqlen", "prompt_len", ""}},
    {dump_format::nemo_rl, "NeMo-RL", {"input_lengths", "token_loss_mask", ""}},
    {dump_format::prime_rl, "prime-rl", {"traces", "task", ""}},
    {dump_format::prime_rl_export, "prime-rl token export", {"token_ids", "loss_mask", "step"}},
    {dump_format::slime, "slime", {"response_length", "prompt", ""}},
    {dump_format::roll, "ROLL", {"responses", "prompt", ""}},
    {dump_format::skyrl, "SkyRL", {"input_prompt", "output_response", ""}},
    {dump_format::verl, "verl", {"input", "output", ""}},
    {dump_format::trl, "trl", {"prompt", "completion", ""}},
}};

/// Thrown inside this file only, turned into an error value at its border.
struct bad_field {
  std::string text;
};

[[noreturn]] void bad(std::string_view key, const json& value, std::string_view allowed) {
  auto shown = value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 60);
  throw bad_field{"key \"" + std::string{key} + "\" is " + shown
                  + "; allowed: " + std::string{allowed}};
}

const json& at(const json& object, const char* key) {
  static const json null;
  auto place = object.find(key);
  return place == object.end() ? null : *place;
}

long whole(const json& value, std::string_view key) {
  if (!value.is_number()) bad(key, value, "a whole number >= 0");
  double number = value.get<double>();
  if (number < 0 || number > 2e9 || number != std::floor(number))
    bad(key, value, "a whole number >= 0");
  return static_cast<long>(number);
}

long whole_or(const json& value, long otherwise) {
  return value.is_number() ? static_cast<long>(value.get<double>()) : otherwise;
}

// A prompt may be text or a list of chat messages: its text either way.
std::string text_of(const json& value, std::string_view key) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() || value.is_object())
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
  bad(key, value, "text or chat messages");
}

long tokens_of(const std::string& text, double tokens_per_char) {
  auto chars = std::count_if(text.begin(), text.end(),
                             [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return std::lround(std::ceil(static_cast<double>(chars) * tokens_per_char));
}

dump_row by_text(const json& prompt, std::string_view prompt_key, const json& response,
                 std::string_view response_key, double tokens_per_char) {
  dump_row row;
  row.prompt = text_of(prompt, prompt_key);
  row.prompt_tokens = tokens_of(row.prompt, tokens_per_char);
  row.response_tokens = tokens_of(text_of(response, response_key), tokens_per_char);
  row.counted_by_text = true;
  return row;
}

dump_row read_slime(const json& v) {
  dump_row row;
  row.prompt = text_of(at(v, "prompt"), "prompt");
  row.response_tokens = whole(at(v, "response_length"), "response_length");
  const auto& tokens = at(v, "tokens");
  if (tokens.is_array())
    row.prompt_tokens = std::max<long>(0, static_cast<long>(tokens.size()) - row.response_tokens);
  row.step = whole_or(at(v, "rollout_id"), -1);
  row.truncated = at(v, "status") == "truncated";
  return row;
}

dump_row read_areal(const json& v) {
  dump_row row;
  row.prompt = text_of(at(v, "prompt"), "prompt");
  row.prompt_tokens = whole(at(v, "prompt_len"), "prompt_len");
  long total = whole(at(v, "seqlen"), "seqlen");
  if (total < row.prompt_tokens) bad("seqlen", at(v, "seqlen"), "at least prompt_len");
  row.response_tokens = total - row.prompt_tokens;
  row.step = whole_or(at(v, "tail_version"), -1);
  return row;
}

const json& only(const json& value, std::string_view key) {
  if (!value.is_array() || value.size() != 1) bad(key, value, "a list of one element");
  return value[0];
}

// Tokens before the first that was generated are the prompt.
void read_mask(const json& ids, const json& mask, std::string_view key, long total, dump_row& row) {
  if (!ids.is_array() || !mask.is_array() || ids.size() != mask.size())
    bad(key, mask, "a list as long as token_ids");
  std::size_t first = mask.size();
  long generated = 0;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i].is_number() && !mask[i].is_boolean()) bad(key, mask[i], "0 or 1");
    bool on = mask[i].is_boolean() ? mask[i].get<bool>() : mask[i].get<double>() != 0;
    if (!on) continue;
    first = std::min(first, i);
    ++generated;
  }
  row.response_tokens = generated;
  auto prompt = std::min(first, static_cast<std::size_t>(std::max(total - generated, 0L)));
  row.prompt_tokens = static_cast<long>(prompt);
  for (std::size_t i = 0; i < prompt && i < ids.size(); ++i)
    row.prompt += ids[i].dump() + ' ';
}

dump_row read_nemo(const json& v) {
  dump_row row;
  long total = whole(only(at(v, "input_lengths"), "input_lengths"), "input_lengths");
  read_mask(only(at(v, "token_ids"), "token_ids"),
            only(at(v, "token_loss_mask"), "token_loss_mask"), "token_loss_mask", total, row);
  return row;
}

dump_row read_export(const json& v) {
  dump_row row;
  const auto& ids = at(v, "token_ids");
  read_mask(ids, at(v, "loss_mask"), "loss_mask", static_cast<long>(ids.size()), row);
  row.step = whole_or(at(v, "step"), -1);
  return row;
}

std::vector<dump_row> read_prime(const json& v) {
  const auto& task = at(v, "task");
  const auto& traces = at(v, "traces");
  if (!traces.is_array()) bad("traces", traces, "a list");
  std::vector<dump_row> rows;
  for (const auto& trace : traces) {
    dump_row row;
    const auto& key = at(task, "key").is_string() ? at(task, "key") : at(task, "hash");
    row.prompt = text_of(key, "task.key");
    row.prompt_is_id = true;
    row.step = whole_or(at(at(at(v, "run"), "work"), "step"), -1);
    const auto& calls = at(trace, "calls");
    if (!calls.is_array()) bad("calls", calls, "a list");
    for (const auto& call : calls) {
      const auto& usage = at(call, "usage");
      if (row.prompt_tokens == 0) row.prompt_tokens = whole_or(at(usage, "prompt_tokens"), 0);
      row.response_tokens += whole(at(usage, "completion_tokens"), "usage.completion_tokens");
      row.truncated = row.truncated || at(call, "finish_reason") == "length";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<dump_row> read_roll(const json& v, double tokens_per_char) {
  const auto& responses = at(v, "responses");
  const auto& prompts = at(v, "prompt");
  const auto& ids = at(v, "id");
  const auto& steps = at(v, "global_step");
  if (!responses.is_array()) bad("responses", responses, "a list");
  if (!prompts.is_array() || prompts.size() != responses.size())
    bad("prompt", prompts.size(), "a list as long as responses");
  std::vector<dump_row> rows;
  for (std::size_t i = 0; i < responses.size(); ++i) {
    auto row = by_text(prompts[i], "prompt", responses[i], "responses", tokens_per_char);
    if (ids.is_array() && i < ids.size()) {
      row.prompt = ids[i].is_string() ? ids[i].get<std::string>() : ids[i].dump();
      row.prompt_is_id = true;
    }
    if (steps.is_array() && i < steps.size()) row.step = whole_or(steps[i], -1);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<dump_row> read(dump_format format, const json& v, double tokens_per_char) {
  auto text_row = [&](const char* prompt, const char* response) {
    auto row = by_text(at(v, prompt), prompt, at(v, response), response, tokens_per_char);
    row.step = whole_or(at(v, "step"), -1);
    return row;
  };
  switch (format) {
  case dump_format::slime:
    return {read_slime(v)};
  case dump_format::areal:
    return {read_areal(v)};
  case dump_format::nemo_rl:
    return {read_nemo(v)};
  case dump_format::prime_rl:
    return read_prime(v);
  case dump_format::prime_rl_export:
    return {read_export(v)};
  case dump_format::roll:
    return read_roll(v, tokens_per_char);
  case dump_format::trl:
    return {text_row("prompt", "completion")};
  case dump_format::verl:
    return {text_row("input", "output")};
  case dump_format::skyrl:
    break;
  }
  auto row = text_row("input_prompt", "output_response");
  row.truncated = at(v, "stop_reason") == "length";
  return {std::move(row)};
}

} // namespace

std::string_view name_of(dump_format format) {
  for (const auto& m : marks)
    if (m.format == format) return m.name;
  return "?";
}

result<dump_format> recognise(const json& value) {
  if (!value.is_object()) return bad_input("not a JSON object");
  for (const auto& m : marks)
    if (std::all_of(m.keys.begin(), m.keys.end(),
                    [&](std::string_view key) { return key.empty() || value.contains(key); }))
      return m.format;
  std::string found, known;
  for (const auto& item : value.items())
    found += (found.empty() ? "" : ", ") + item.key();
  for (const auto& m : marks)
    known += (known.empty() ? "" : "; ") + std::string{m.name} + ": " + std::string{m.keys[0]}
             + " and " + std::string{m.keys[1]};
  return bad_input("no known trainer's dump; keys are " + found.substr(0, 200) + "; known are "
                   + known);
}

result<std::vector<dump_row>> read_dump(dump_format format, const json& value,
                                        double tokens_per_char) {
  try {
    return read(format, value, tokens_per_char);
  } catch (const bad_field& e) {
    return bad_input(e.text);
  }
}

} // namespace adafloor
