#include "apps/dump_import.hpp"

#include "apps/text_input.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <iostream>

namespace adafloor {
namespace {

std::string hashed(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string out;
  for (int i = 0; i < 8; ++i)
    out += fmt::format("{:02x}", digest[i]);
  return out;
}

} // namespace

result<void> dump_importer::read_file(const std::string& path) {
  ++file_;
  format_.reset();
  error first;
  auto read = for_each_line(path, [&](std::string_view line, std::size_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return true;
    auto done = take(line);
    if (done) return true;
    return bad_row(fmt::format("{}:{}: {}", path, number, done.error().text), &first);
  });
  if (!read) return read;
  if (!first.text.empty()) return tl::unexpected(first);
  return {};
}

nlohmann::json dump_importer::summary() const {
  auto formats = nlohmann::json::object();
  for (const auto& [name, count] : formats_)
    formats[name] = count;
  nlohmann::json per_char = nullptr;
  if (by_text_ > 0) per_char = options_.tokens_per_char;
  return {{"rows", rows_},
          {"prompts", prompts_.size()},
          {"epochs", epochs_},
          {"bad_rows", bad_},
          {"formats", formats},
          {"tokens_per_char", per_char},
          {"rows_counted_by_text", by_text_}};
}

bool dump_importer::bad_row(const std::string& text, error* first) {
  constexpr std::size_t shown_max = 5;
  if (options_.strict) {
    *first = {error_code::bad_input, text + " (--strict stops at the first bad row)"};
    return false;
  }
  if (++bad_ <= shown_max) std::cerr << "adafloor: bad row: " << text << '\n';
  return true;
}

result<void> dump_importer::take(std::string_view line) {
  auto value = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (value.is_discarded())
    return bad_input("not a JSON object on one line; `adafloor history import` reads JSON lines");
  if (!format_) {
    auto found = recognise(value);
    if (!found) return tl::unexpected(found.error());
    format_ = *found;
  }
  auto rows = read_dump(*format_, value, options_.tokens_per_char);
  if (!rows) return tl::unexpected(rows.error());
  for (const auto& row : *rows)
    write(row);
  formats_[std::string{name_of(*format_)}] += rows->size();
  return {};
}

void dump_importer::write(const dump_row& row) {
  auto id = row.prompt_is_id ? row.prompt : hashed(row.prompt);
  auto& seen = prompts_[id];
  long step = row.step >= 0 ? row.step : -2 - file_;
  if (seen.epoch < 0 || (seen.step != step && options_.epoch.empty())) {
    ++seen.epoch;
    seen.samples = 0;
    seen.step = step;
    auto epoch = static_cast<std::size_t>(seen.epoch);
    if (next_position_.size() <= epoch) next_position_.resize(epoch + 1, 0);
    seen.position = next_position_[epoch]++;
  }
  epochs_ = std::max(epochs_, static_cast<std::size_t>(seen.epoch) + 1);
  auto epoch = options_.epoch.empty() ? std::to_string(seen.epoch) : options_.epoch;
  length_row out;
  out.position = seen.position;
  out.sample = seen.samples++;
  out.prompt_tokens = static_cast<std::int32_t>(row.prompt_tokens);
  out.response_tokens = static_cast<std::int32_t>(row.response_tokens);
  out.truncated = row.truncated;
  sink_({epoch, id, out});
  ++rows_;
  by_text_ += row.counted_by_text ? 1U : 0U;
}

} // namespace adafloor
