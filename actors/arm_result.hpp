#pragma once
// The books of one arm: responses, rewards, ledger, transitions, migrations, leases; as the arm
// object of the JSON results.
#include "actors/event_stream.hpp"
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "messages/catalog.hpp"

#include <array>
#include <map>

namespace adafloor {

/// Rank-seconds by rank_state, and their sum by the clock: ranks * rollout time.
struct rank_ledger {
  double rank_seconds = 0;
  std::array<double, static_cast<std::size_t>(enum_max(rank_state{})) + 1> by_state{};

  double spent(rank_state s) const { return by_state[static_cast<std::size_t>(s)]; }
  void add(const rank_ledger& other);
  /// |sum of the columns - rank_seconds| as a share of rank_seconds.
  double gap() const;
  json to_json() const;
};

/// Adds up time lines. Errors: internal when one of them has a hole, an overlap, or does not cover
/// [began_at, ended_at]; names the rank.
result<rank_ledger> ledger_of(const std::map<rank_id, rollout_report>& reports,
                              microseconds began_at, microseconds ended_at);

struct kept_response {
  std::vector<token_id> tokens;
  std::vector<float> logprobs;
  finish_reason stop = finish_reason::eos;
};

/// Responses by (prompt, sample): the order of the digest.
using response_key = std::pair<std::size_t, std::uint32_t>;

struct arm_books {
  std::string arm;
  std::uint32_t world_size = 0;
  std::uint32_t floor = 0; ///< the smallest group that was allowed
  residency_kind residency = residency_kind::natural;
  migrate_kind migrate = migrate_kind::off;
  double rollout_seconds = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t responses = 0;
  std::uint64_t truncated_by_guard = 0;
  std::uint64_t rewarded = 0; ///< responses whose answer is known
  double reward_sum = 0;
  rank_ledger ledger;
  std::vector<transition_record> transitions;
  std::vector<request_moved> moves; ///< whatever became of them
  std::vector<lease_record> leases;
  std::uint64_t leases_granted = 0;
  std::uint64_t units_completed = 0, units_correct = 0, units_duplicate = 0;
  std::vector<std::map<response_key, kept_response>> epochs; ///< one per policy version

  double mean_reward() const;
  json to_json(const std::vector<prompt>& prompts) const;
};

/// SHA-256 over (prompt_id, sample, tokens) in order of the prompt file, epoch by epoch; hex.
std::string tokens_digest(const std::vector<std::map<response_key, kept_response>>& epochs,
                          const std::vector<prompt>& prompts);

/// The same over (prompt_id, sample, log-probabilities as IEEE bits).
std::string logprobs_digest(const std::vector<std::map<response_key, kept_response>>& epochs,
                            const std::vector<prompt>& prompts);

/// The value that a share `q` of `values` does not exceed; 0 for none.
double quantile(std::vector<double> values, double q);

json transition_json(const transition_record& t);
/// `from`: the rank that gave the request away.
json move_json(const request_moved& m, rank_id from);

} // namespace adafloor
