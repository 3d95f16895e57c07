// libFuzzer: files of JSON lines and logs that a run reads: prompts, and what an earlier run that
// crashed left behind. The log is opened as a writer opens it, which cuts off a torn end; what is
// left must read.
#include "actors/prompts.hpp"
#include "actors/response_log.hpp"
#include "actors/token_log.hpp"
#include "tests/fuzz/scratch_file.hpp"

using namespace adafloor;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t vocabulary = 1000;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto prompts = parse_prompts(text, "fuzz.jsonl", vocabulary))
    for (const auto& p : *prompts)
      for (const auto token : p.tokens)
        if (token < 0 || static_cast<std::uint32_t>(token) >= vocabulary) std::abort();

  if (const auto read = read_response_line(text, {"natural"}, "fuzz"))
    if (!read_response_line(response_line(read->first, read->second), {"natural"}, "fuzz"))
      std::abort();
  static const fuzz::scratch_file books("books.jsonl");
  books.write(data, size);
  if (auto opened = step_books::open(books.path()); opened && !opened->append({})) std::abort();

  static const fuzz::scratch_file log("tokens.log"), lines("responses.jsonl");
  log.write(data, size);
  const auto before = read_token_log(log.path());
  if (const auto opened = token_log::open(log.path()); !opened) std::abort();
  const auto after = read_token_log(log.path());
  if (before.has_value() != after.has_value()) std::abort();
  if (before && before->size() != after->size()) std::abort();

  lines.write(data, size);
  auto file = durable_file::open(lines.path());
  if (!file) std::abort();
  if (const auto kept = file->take_earlier(); !kept.empty() && kept.back() != '\n') std::abort();
  if (!file->append("{}")) std::abort();
  return 0;
}
