#pragma once
// The books of one arm: responses, rewards, ledger, transitions, migrations, leases; as the arm
// object of the JSON results.
#include "actors/event_stream.hpp"
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "messages/catalog.hpp"

#include <array>
#include <map>
#include <memory>

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
  FIELDS(rank_ledger, rank_seconds, by_state)
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

/// SHA-256 over what an arm generated, epoch by epoch: an epoch that is over needs no memory.
class response_digests {
public:
  response_digests();
  response_digests(response_digests&&) noexcept;
  response_digests& operator=(response_digests&&) noexcept;
  ~response_digests();

  /// Adds an epoch, in order of the prompt file.
  void add(const std::map<response_key, kept_response>& epoch, const std::vector<prompt>& prompts);
  /// Over (prompt_id, sample, tokens); hex.
  std::string tokens() const;
  /// Over (prompt_id, sample, log-probabilities as IEEE bits); hex.
  std::string logprobs() const;

private:
  struct hashes;
  std::unique_ptr<hashes> hashes_;
};

/// Units of auxiliary work by what became of them.
struct unit_counts {
  std::uint64_t completed = 0, correct = 0; ///< queries
  std::uint64_t scored = 0, executed = 0, called = 0;
  std::uint64_t failed = 0; ///< of all kinds; they count above, too
  FIELDS(unit_counts, completed, correct, scored, executed, called, failed)
};
unit_counts operator-(const unit_counts& all, const unit_counts& before);

/// The job was taken up again in the middle of a step (or before one: nothing was kept then).
struct resumption {
  std::uint32_t epoch = 0, step = 0;
  std::uint64_t responses = 0; ///< that an earlier try had finished
  std::uint64_t tokens = 0;    ///< of the others, that the log had
  double seconds_lost = 0;     ///< by the wall clock, since the step before was over; in no ledger
  FIELDS(resumption, epoch, step, responses, tokens, seconds_lost)
};

/// What an arm adds up over its steps.
struct arm_sums {
  double rollout_seconds = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t responses = 0;
  std::uint64_t truncated_by_guard = 0;
  std::uint64_t rewarded = 0; ///< responses whose answer is known
  double reward_sum = 0;
  rank_ledger ledger;
  lending_state lending; ///< the newest
  FIELDS(arm_sums, rollout_seconds, generated_tokens, responses, truncated_by_guard, rewarded,
         reward_sum, ledger, lending)
};

/// What it lists.
struct arm_lists {
  std::vector<transition_record> transitions;
  std::vector<request_moved> moves; ///< whatever became of them
  std::vector<lease_record> leases;
  std::vector<rank_quarantined> quarantined; ///< in the whole job so far
  std::vector<rank_lost> lost;               ///< likewise
  std::vector<recovery_record> recoveries;
  std::vector<resumption> resumptions;
  FIELDS(arm_lists, transitions, moves, leases, quarantined, lost, recoveries, resumptions)
  void append(arm_lists more);
};

struct arm_books : arm_sums, arm_lists {
  std::string arm;
  std::uint32_t world_size = 0;
  std::uint32_t floor = 0; ///< the smallest group that was allowed
  residency_kind residency = residency_kind::natural;
  migrate_kind migrate = migrate_kind::off;
  double behind_seconds = 0; ///< of the clock; most that an emulation was late at a rollout's end
  unit_counts units;
  std::uint64_t units_duplicate = 0;
  std::map<response_key, kept_response> epoch; ///< the running one
  std::uint32_t epochs = 0;                    ///< that are over
  response_digests digests;                    ///< of those

  void end_epoch(const std::vector<prompt>& prompts);
  double mean_reward() const;
  json to_json() const;
};

/// The value that a share `q` of `values` does not exceed; 0 for none.
double quantile(std::vector<double> values, double q);

json transition_json(const transition_record& t);
/// Sums over leases that ran. The start-up share is the lease time before work ran, that of leases
/// without a result being start-up altogether; units per leased second are per rank.
json leases_json(const std::vector<lease_record>& leases, const lending_state& lending);
json lease_json(const lease_record& l);
json quarantine_json(const rank_quarantined& q);
json lost_json(const rank_lost& l);
/// The stall is the time in which the group decoded nothing: the silence that was waited for, and
/// the recovery.
json recovery_json(const recovery_record& r);
json resumption_json(const resumption& r);
/// `from`: the rank that gave the request away.
json move_json(const request_moved& m, rank_id from);

} // namespace adafloor
