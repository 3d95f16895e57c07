#include "actors/job.hpp"

#include "actors/fields_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace adafloor {

std::string to_json_text(const job& task) {
  return fields_to_json(task).dump(2) + "\n";
}

result<job> parse_job(const std::string& text, const std::string& place) {
  const auto tree = nlohmann::ordered_json::parse(text, nullptr, false);
  if (tree.is_discarded()) return bad_input(fmt::format("{}: not JSON; write it anew", place));
  job task;
  if (const auto wrong = fields_from_json(tree, place, task); !wrong.empty())
    return bad_input(wrong);
  return task;
}

result<job> load_job(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return fail(error_code::io, fmt::format("{}: cannot be read; is it there?", path));
  return parse_job(text.str(), path);
}

} // namespace adafloor
