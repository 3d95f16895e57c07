#pragma once
// Conversation: requests go out to the ranks, responses come back.
#include "messages/ids.hpp"

namespace adafloor {

/// How the next token is drawn. temperature 0 means greedy; top_k 0 and top_p 1 mean no cut.
struct sampling {
  double temperature = 1.0;
  double top_p = 1.0;
  std::uint32_t top_k = 0;
  FIELDS(sampling, temperature, top_p, top_k)
};

/// One response to generate.
struct rollout_request {
  request_id id;
  std::uint64_t random_key = 0; ///< seeds the request's own random stream, wherever it runs
  std::vector<token_id> prompt;
  std::uint32_t max_tokens = 0; ///< response tokens, at least 1
  sampling how;
  FIELDS(rollout_request, id, random_key, prompt, max_tokens, how)
};

enum class finish_reason : std::uint8_t { eos = 1, length = 2, guard = 3, aborted = 4 };
constexpr finish_reason enum_max(finish_reason) {
  return finish_reason::aborted;
}
const char* name_of(finish_reason);

/// At `at` predicted tokens the group becomes `to` ranks.
struct group_exit {
  std::uint32_t at = 0;
  std::uint32_t to = 0;
  FIELDS(group_exit, at, to)
};

/// Which ranks stay in a smaller group (planner.md section 5): those that are unfinished, or those
/// that the plan fixed before the step.
enum class residency_kind : std::uint8_t { natural = 1, planned = 2 };
constexpr residency_kind enum_max(residency_kind) {
  return residency_kind::planned;
}
const char* name_of(residency_kind);

/// Which live requests may move so that a rank can leave: none, those that block an exit that is
/// due, or whatever packs the rest onto fewer ranks.
enum class migrate_kind : std::uint8_t { off = 1, stragglers = 2, consolidate = 3 };
constexpr migrate_kind enum_max(migrate_kind) {
  return migrate_kind::consolidate;
}
const char* name_of(migrate_kind);

/// What was known of the response lengths of one prompt before the rollout (prediction.hpp).
struct prompt_forecast {
  std::uint32_t prompt_tokens = 0;
  bool known = false;                ///< false: no history of its own
  std::vector<std::int32_t> lengths; ///< latest observed, descending, tokens
  std::vector<std::int32_t> pool;    ///< all observed, descending, tokens
  FIELDS(prompt_forecast, prompt_tokens, known, lengths, pool)
};

/// How exits are decided while the rollout runs (planner/plan/exits.hpp).
struct exit_rules {
  bool adaptive = false; ///< weigh every exit over resampled futures; else take it when it is due
  residency_kind residency = residency_kind::natural;
  migrate_kind migrate = migrate_kind::off;
  std::uint64_t capacity_tokens = 0;      ///< KV tokens of one rank; 0: no limit
  std::uint32_t response_cap = 0;         ///< of this step, tokens; 0: the limit of the job
  std::vector<prompt_forecast> forecasts; ///< by prompt; needed to move requests or to weigh
  std::vector<std::uint32_t> prompts;     ///< by request: index into `forecasts`
  FIELDS(exit_rules, adaptive, residency, migrate, capacity_tokens, response_cap, forecasts,
         prompts)
};

/// Consecutive tokens of one response.
struct token_run {
  request_id request;
  std::uint32_t first = 0; ///< 0-based index in the response
  std::vector<token_id> tokens;
  std::vector<float> logprobs; ///< natural log, one per token
  FIELDS(token_run, request, first, tokens, logprobs)
};

/// trainer -> planner: generate these responses; `homes[i]` is the rank of `requests[i]`. Those of
/// `resumed` have their first tokens from an earlier try, from index 0 on.
struct begin_rollout {
  rollout_id rollout;
  std::vector<rollout_request> requests;
  std::vector<rank_id> homes;
  std::vector<group_exit> exits; ///< empty: the group never contracts
  std::uint32_t predicted_tail = 0;
  exit_rules rules;
  std::vector<token_run> resumed = {};
  FIELDS(begin_rollout, rollout, requests, homes, exits, predicted_tail, rules, resumed)
};

/// planner -> rank: part `part` of `parts` of the rank's own requests; `parts` is at least 1 even
/// for a rank without requests, which takes part in every step with a dummy batch. Requests of
/// ranks that died come in further parts, also while the rollout runs.
struct admit_requests {
  rollout_id rollout;
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
  std::vector<rollout_request> requests; ///< at most 64
  std::vector<token_run> resumed = {};   ///< what their responses have already, from index 0 on
  FIELDS(admit_requests, rollout, part, parts, requests, resumed)
};

/// rank -> planner: this part is with the engine. Also the answer to a repeated part.
struct requests_admitted {
  rollout_id rollout;
  std::uint32_t part = 0;
  FIELDS(requests_admitted, rollout, part)
};

/// planner -> rank: every member has admitted its requests; decode. Resent until
/// `rollout_started`.
struct start_rollout {
  rollout_id rollout;
  microseconds began_at{0}; ///< planner's clock; the ledger of the rollout begins here
  FIELDS(start_rollout, rollout, began_at)
};
struct rollout_started {
  rollout_id rollout;
  FIELDS(rollout_started, rollout)
};

/// engine -> rank -> planner: one response is complete. Resent until `response_kept`.
struct response {
  rollout_id rollout;
  request_id request;
  std::vector<token_id> tokens;
  std::vector<float> logprobs; ///< natural log, one per token
  finish_reason stop = finish_reason::eos;
  std::uint64_t at_step = 0;
  FIELDS(response, rollout, request, tokens, logprobs, stop, at_step)
};

/// planner -> recorder -> planner: make it durable; answered by `response_kept` to the planner.
/// planner -> rank: the response is durable; the rank may forget it.
struct response_kept {
  rollout_id rollout;
  request_id request;
  FIELDS(response_kept, rollout, request)
};

/// engine -> rank -> planner -> recorder: what a rank generated since its last batch, so that no
/// finished token is lost with the rank. `sequence` grows from 1 in each rollout, per rank. Resent
/// until `tokens_kept`; doubles are harmless, a token is the same wherever it was generated.
struct token_batch {
  rollout_id rollout;
  std::uint64_t sequence = 0;
  std::vector<token_run> runs;
  FIELDS(token_batch, rollout, sequence, runs)
};
/// recorder -> planner -> rank: every batch of `rank` up to `sequence` is in the log.
struct tokens_kept {
  rollout_id rollout;
  rank_id rank;
  std::uint64_t sequence = 0;
  FIELDS(tokens_kept, rollout, rank, sequence)
};

/// engine -> rank -> planner: sent when the number of live requests changes. `step` orders them.
struct rank_progress {
  rollout_id rollout;
  epoch_id epoch;
  std::uint64_t step = 0;
  std::uint32_t live_requests = 0;
  std::uint32_t finished_requests = 0;
  std::uint64_t generated_tokens = 0;
  FIELDS(rank_progress, rollout, epoch, step, live_requests, finished_requests, generated_tokens)
};

/// What a rank's time was spent on; the columns of the ledger (planner.md section 8).
enum class rank_state : std::uint8_t { idle = 1, busy = 2, dummy = 3, leased = 4, transition = 5 };
constexpr rank_state enum_max(rank_state) {
  return rank_state::transition;
}
const char* name_of(rank_state);

/// A piece of a rank's time line, on the planner's clock.
struct interval {
  rank_state state = rank_state::idle;
  microseconds begin{0};
  microseconds end{0};
  FIELDS(interval, state, begin, end)
};

/// planner -> rank: the rollout is complete and the full world is back; close the books at
/// `ended_at`. Resent until `rollout_report`.
struct end_rollout {
  rollout_id rollout;
  microseconds ended_at{0};
  FIELDS(end_rollout, rollout, ended_at)
};

/// rank -> planner: the time line of this rank; intervals touch and cover the whole rollout.
struct rollout_report {
  rollout_id rollout;
  std::vector<interval> intervals;
  std::uint64_t steps = 0;
  std::uint64_t generated_tokens = 0;
  FIELDS(rollout_report, rollout, intervals, steps, generated_tokens)
};

} // namespace adafloor
