#pragma once
// OUT/tokens.log: every token of the job as it was generated, for what a crash leaves unfinished.
// A record is its length and its CRC32C (both u32, little-endian) and an envelope as on the wire:
// admit_requests before a rollout begins (who generates what from which prompt), token_batch while
// it runs. Written with one write(2) each; a torn end is cut off when the log is opened again.
#include "actors/recorder.hpp"
#include "messages/catalog.hpp"

#include <map>
#include <optional>
#include <vector>

namespace adafloor {

class token_log {
public:
  /// Creates or continues `path`. Errors: io naming path and reason.
  static result<token_log> open(const std::string& path);

  /// Writes down the requests of a rollout. Errors: io.
  result<void> begin(const begin_rollout& order);
  /// Writes down a batch, with its sender and weights version. Errors: io.
  result<void> append(const envelope& batch);
  /// Waits until the disk has everything.
  result<void> sync() { return file_.sync(); }
  const std::string& path() const { return file_.path(); }

private:
  explicit token_log(durable_file file) : file_(std::move(file)) {}
  durable_file file_;
};

/// What the log says of one request: its response as far as it goes without a gap.
struct logged_response {
  rollout_request spec;
  rank_id home;
  std::vector<token_id> tokens;
  std::vector<float> logprobs; ///< natural log, one per token
};
using logged_rollout = std::map<request_id, logged_response>;

/// Reads a log, or one rollout of it; the torn end of a crashed writer is left out. Batches may
/// stand there twice and in any order. Errors: io when it cannot be read; bad_input for tokens of a
/// request that no rollout has, or that differ from what another batch says.
result<std::map<rollout_id, logged_rollout>>
read_token_log(const std::string& path, std::optional<rollout_id> only = std::nullopt);

} // namespace adafloor
