#include "actors/token_log.hpp"

#include "messages/checksum.hpp"
#include "messages/codec.hpp"

#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

namespace adafloor {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little-endian");

constexpr std::size_t head_bytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t part_requests = 64; ///< in one admit_requests

std::string framed(const envelope& e) {
  const auto payload = encode(e);
  const std::uint32_t head[2] = {static_cast<std::uint32_t>(payload.size()),
                                 crc32c(payload.data(), payload.size())};
  std::string record(head_bytes, '\0');
  std::memcpy(record.data(), head, head_bytes);
  return record + payload;
}

/// Takes the first record away, or nothing if it is torn.
std::optional<std::string_view> take_record(std::string_view* bytes) {
  std::uint32_t head[2];
  if (bytes->size() < head_bytes) return std::nullopt;
  std::memcpy(head, bytes->data(), head_bytes);
  if (head[0] > frame_bytes_max || bytes->size() - head_bytes < head[0]) return std::nullopt;
  const auto payload = bytes->substr(head_bytes, head[0]);
  if (crc32c(payload.data(), payload.size()) != head[1]) return std::nullopt;
  bytes->remove_prefix(head_bytes + head[0]);
  return payload;
}

std::size_t whole_records(std::string_view bytes) {
  auto left = bytes;
  while (take_record(&left)) {
  }
  return bytes.size() - left.size();
}

/// One rollout as it is read.
struct reading {
  logged_rollout responses;
  /// By request: index in the response -> token and log-probability.
  std::map<request_id, std::map<std::uint32_t, std::pair<token_id, float>>> tokens;
};

void take(reading& r, rank_id home, const admit_requests& part) {
  for (const auto& spec : part.requests) {
    const auto known = r.responses.find(spec.id);
    if (known != r.responses.end() && !(known->second.spec == spec)) r.tokens.erase(spec.id);
    r.responses[spec.id] = {spec, home, {}, {}};
  }
}

result<void> take(reading& r, const token_batch& batch, const std::string& path) {
  for (const auto& run : batch.runs) {
    const auto place = path + ": rollout " + std::to_string(batch.rollout.value) + ", request "
                       + std::to_string(run.request.value);
    if (r.responses.count(run.request) == 0)
      return bad_input(place + ": is in no rollout of this log; was it put together by hand?");
    auto& known = r.tokens[run.request];
    for (std::size_t i = 0; i < run.tokens.size() && i < run.logprobs.size(); ++i) {
      const auto at = run.first + static_cast<std::uint32_t>(i);
      const auto [had, fresh] = known.emplace(at, std::pair(run.tokens[i], run.logprobs[i]));
      if (!fresh && had->second.first != run.tokens[i])
        return bad_input(place + ": token " + std::to_string(at) + " is "
                         + std::to_string(had->second.first) + " and "
                         + std::to_string(run.tokens[i]) + "; the log is of two different runs");
    }
  }
  return {};
}

logged_rollout finish(reading r) {
  for (auto& [id, known] : r.tokens) {
    auto& response = r.responses[id];
    std::uint32_t next = 0;
    for (auto i = known.begin(); i != known.end() && i->first == next; ++i, ++next) {
      response.tokens.push_back(i->second.first);
      response.logprobs.push_back(i->second.second);
    }
  }
  return std::move(r.responses);
}

} // namespace

result<token_log> token_log::open(const std::string& path) {
  auto file = durable_file::open(path, whole_records);
  if (!file) return tl::unexpected(file.error());
  file->take_earlier(); // Only whoever takes a job up again reads it: read_token_log.
  return token_log(std::move(*file));
}

result<void> token_log::begin(const begin_rollout& order) {
  std::map<rank_id, std::vector<rollout_request>> by_home;
  for (std::size_t i = 0; i < order.requests.size(); ++i)
    by_home[order.homes[i]].push_back(order.requests[i]);
  for (const auto& [home, requests] : by_home)
    for (std::size_t first = 0; first < requests.size(); first += part_requests) {
      const auto end = std::min(requests.size(), first + part_requests);
      admit_requests part;
      part.rollout = order.rollout;
      part.part = static_cast<std::uint32_t>(first / part_requests);
      part.parts = static_cast<std::uint32_t>((requests.size() - 1) / part_requests + 1);
      part.requests.assign(requests.begin() + static_cast<std::ptrdiff_t>(first),
                           requests.begin() + static_cast<std::ptrdiff_t>(end));
      envelope e;
      e.to = {home, role_kind::rank};
      e.body = std::move(part);
      if (auto r = file_.append_record(framed(e)); !r) return r;
    }
  return {};
}

result<void> token_log::append(const envelope& batch) {
  return file_.append_record(framed(batch));
}

result<std::map<rollout_id, logged_rollout>> read_token_log(const std::string& path,
                                                            std::optional<rollout_id> only) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(error_code::io, path + ": cannot be read; is it there?");
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return fail(error_code::io, path + ": reading failed part of the way");
  std::map<rollout_id, reading> readings;
  std::string_view left = bytes;
  while (const auto record = take_record(&left)) {
    const auto e = decode(*record);
    if (!e) return bad_input(path + ": a record is no message; was it written by another version?");
    if (const auto* part = std::get_if<admit_requests>(&e->body)) {
      if (!only || *only == part->rollout) take(readings[part->rollout], e->to.rank, *part);
    } else if (const auto* batch = std::get_if<token_batch>(&e->body)) {
      if (only && *only != batch->rollout) continue;
      if (auto ok = take(readings[batch->rollout], *batch, path); !ok)
        return tl::unexpected(ok.error());
    }
  }
  std::map<rollout_id, logged_rollout> rollouts;
  for (auto& [id, r] : readings)
    rollouts.emplace(id, finish(std::move(r)));
  return rollouts;
}

} // namespace adafloor
