#include "actors/response_log.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace adafloor {
namespace {

std::optional<finish_reason> reason_named(const std::string& name) {
  for (auto i = 1; i <= static_cast<int>(enum_max(finish_reason{})); ++i)
    if (name == name_of(static_cast<finish_reason>(i))) return static_cast<finish_reason>(i);
  return std::nullopt;
}

} // namespace

std::string response_line(const response_head& head, const kept_response& r) {
  const json fields{{"arm", head.arm},       {"epoch", head.at.epoch},
                    {"step", head.at.step},  {"prompt_id", head.prompt_id},
                    {"sample", head.sample}, {"stop", name_of(r.stop)}};
  auto line = fields.dump();
  line.pop_back();
  append_list(line, "tokens", r.tokens);
  append_list(line, "logprobs", r.logprobs);
  return line + '}';
}

result<std::pair<response_head, kept_response>>
read_response_line(std::string_view line, const std::vector<std::string>& arms,
                   const std::string& place) {
  const auto wrong = [&] {
    return bad_input(place + ": is no response of this job; was the file changed by hand?");
  };
  response_head head;
  kept_response r;
  // The lists stand last, and nothing in them looks like a name.
  const auto lists = line.rfind(",\"tokens\":[");
  if (lists == std::string_view::npos || !read_list(line, "tokens", r.tokens)
      || !read_list(line, "logprobs", r.logprobs) || r.tokens.size() != r.logprobs.size())
    return wrong();
  const auto fields = json::parse(std::string(line.substr(0, lists)) + '}', nullptr, false);
  const auto text = [&](const char* key) {
    return fields.contains(key) && fields[key].is_string() ? fields[key].get<std::string>() : "";
  };
  if (!fields.is_object()) return wrong();
  for (auto [key, to] : {std::pair{"epoch", &head.at.epoch}, std::pair{"step", &head.at.step},
                         std::pair{"sample", &head.sample}}) {
    if (!fields.contains(key) || !fields[key].is_number_unsigned()) return wrong();
    *to = fields[key].get<std::uint32_t>();
  }
  head.arm = text("arm");
  head.prompt_id = text("prompt_id");
  const auto arm = std::find(arms.begin(), arms.end(), head.arm);
  const auto stop = reason_named(text("stop"));
  if (arm == arms.end() || !stop) return wrong();
  head.at.arm = static_cast<std::uint32_t>(arm - arms.begin());
  r.stop = *stop;
  return std::pair{std::move(head), std::move(r)};
}

} // namespace adafloor
