#include "actors/arm_result.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace adafloor {
namespace {

constexpr rank_state columns[] = {rank_state::busy, rank_state::dummy, rank_state::leased,
                                  rank_state::transition, rank_state::idle};

class sha256 {
public:
  sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  sha256(const sha256&) = delete;
  sha256& operator=(const sha256&) = delete;
  ~sha256() { EVP_MD_CTX_free(context_); }
  void add(const void* data, std::size_t size) { EVP_DigestUpdate(context_, data, size); }
  /// Little-endian, so that the digest is the same on every machine.
  void add(std::uint32_t word) {
    unsigned char bytes[4];
    for (int i = 0; i < 4; ++i)
      bytes[i] = static_cast<unsigned char>(word >> 8 * i);
    add(bytes, sizeof bytes);
  }
  /// Of what was added so far.
  std::string hex() const {
    unsigned char out[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    auto* copy = EVP_MD_CTX_new();
    EVP_MD_CTX_copy_ex(copy, context_);
    EVP_DigestFinal_ex(copy, out, &size);
    EVP_MD_CTX_free(copy);
    std::string text;
    for (unsigned i = 0; i < size; ++i) {
      constexpr char digits[] = "0123456789abcdef";
      text += digits[out[i] >> 4];
      text += digits[out[i] & 15];
    }
    return text;
  }

private:
  EVP_MD_CTX* context_;
};

} // namespace

void rank_ledger::add(const rank_ledger& other) {
  rank_seconds += other.rank_seconds;
  for (std::size_t i = 0; i < by_state.size(); ++i)
    by_state[i] += other.by_state[i];
}

double rank_ledger::gap() const {
  double sum = 0;
  for (const auto s : columns)
    sum += spent(s);
  return rank_seconds > 0 ? std::abs(sum - rank_seconds) / rank_seconds : 0;
}

json rank_ledger::to_json() const {
  json out{{"rank_seconds", rank_seconds}};
  for (const auto s : columns)
    out[name_of(s)] = spent(s);
  return out;
}

result<rank_ledger> ledger_of(const std::map<rank_id, rollout_report>& reports,
                              microseconds began_at, microseconds ended_at) {
  rank_ledger ledger;
  for (const auto& [rank, report] : reports) {
    auto at = began_at;
    for (const auto& i : report.intervals) {
      if (i.begin != at || i.end < i.begin)
        return fail(error_code::internal, "the time line of rank " + std::to_string(rank.value)
                                              + " has a hole or an "
                                                "overlap at "
                                              + std::to_string((i.begin - began_at).count())
                                              + " us");
      ledger.by_state[static_cast<std::size_t>(i.state)] += seconds_of(i.end - i.begin);
      at = i.end;
    }
    if (at != ended_at)
      return fail(error_code::internal, "the time line of rank " + std::to_string(rank.value)
                                            + " does not reach the end of the rollout");
    ledger.rank_seconds += seconds_of(ended_at - began_at);
  }
  return ledger;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const auto at = static_cast<std::size_t>(std::max(0.0, std::ceil(q * n) - 1));
  return values[std::min(at, values.size() - 1)];
}

json transition_json(const transition_record& t) {
  json members = json::array();
  for (const auto r : t.members)
    members.push_back(r.value);
  return {{"epoch", t.epoch.value},
          {"kind", name_of(t.kind)},
          {"from", t.from},
          {"to", t.to},
          {"at_step", t.at_step},
          {"pause_seconds", seconds_of(t.pause_max)},
          {"bytes", t.bytes},
          {"prepare_to_settled_seconds", seconds_of(t.settled_at - t.began_at)},
          {"members", members}};
}

/// Only what arrived counts as a migration; orders that ended elsewise are listed as such.
json moves_json(const std::vector<request_moved>& moves) {
  std::uint64_t count = 0, bytes = 0, failed = 0;
  std::vector<double> missed;
  for (const auto& m : moves) {
    bytes += m.bytes;
    if (m.outcome == move_outcome::moved) {
      ++count;
      missed.push_back(m.missed_steps);
    } else if (m.outcome != move_outcome::finished) {
      ++failed;
    }
  }
  return {{"count", count},
          {"bytes", bytes},
          {"blackout_steps_p50", quantile(missed, 0.5)},
          {"blackout_steps_p99", quantile(missed, 0.99)},
          {"blackout_steps_max", quantile(missed, 1)},
          {"not_moved", failed}};
}

json move_json(const request_moved& m, rank_id from) {
  return {{"request", m.key.request.value},
          {"from", from.value},
          {"to", m.to.value},
          {"outcome", name_of(m.outcome)},
          {"pages", m.pages},
          {"bytes", m.bytes},
          {"rounds", m.rounds},
          {"missed_steps", m.missed_steps},
          {"text", m.text}};
}

json lease_json(const lease_record& l) {
  const bool worked = l.working_at.count() > 0;
  const bool revoked = l.revoked_at.count() > 0;
  return {{"rank", l.rank.value},
          {"lease", {l.lease.epoch.value, l.lease.counter}},
          {"queue", l.queue},
          {"state", !l.clean   ? "unclean"
                    : l.forced ? "forced"
                               : "returned"},
          {"window_seconds", seconds_of(l.window)},
          {"start_up_seconds", worked ? json(seconds_of(l.working_at - l.granted_at)) : json()},
          {"seconds", seconds_of(l.returned_at - l.granted_at)},
          {"units", l.units_done},
          {"tokens", l.tokens},
          {"revoke_seconds", revoked ? seconds_of(l.returned_at - l.revoked_at) : 0}};
}

json leases_json(const std::vector<lease_record>& leases, const lending_state& lending) {
  std::vector<double> revokes, windows;
  std::uint64_t forced = 0, unclean = 0, units = 0, tokens = 0;
  double seconds = 0, start_up = 0;
  for (const auto& l : leases) {
    if (l.revoked_at.count() > 0) revokes.push_back(seconds_of(l.returned_at - l.revoked_at));
    windows.push_back(seconds_of(l.window));
    const auto working_at = l.working_at.count() > 0 ? l.working_at : l.returned_at;
    start_up += seconds_of(working_at - l.granted_at);
    seconds += seconds_of(l.returned_at - l.granted_at);
    forced += l.forced ? 1 : 0;
    unclean += l.clean ? 0 : 1;
    units += l.units_done;
    tokens += l.tokens;
  }
  return {{"granted", leases.size()},
          {"returned", leases.size() - forced},
          {"forced", forced},
          {"unclean", unclean},
          {"seconds", seconds},
          {"window_seconds_p50", quantile(windows, 0.5)},
          {"start_up_share", seconds > 0 ? start_up / seconds : 0},
          {"units", units},
          {"tokens", tokens},
          {"units_per_leased_second", seconds > 0 ? static_cast<double>(units) / seconds : 0},
          {"revoke_seconds_p50", quantile(revokes, 0.5)},
          {"revoke_seconds_p99", quantile(revokes, 0.99)},
          {"revoke_seconds_max", quantile(revokes, 1)},
          {"slowdown", lending.slowdown_ppm / 1e6},
          {"steps_lent", lending.steps_lent},
          {"steps_alone", lending.steps_alone},
          {"ranks_max", lending.limited ? json(lending.ranks_max) : json()},
          {"cuts", lending.cuts}};
}

json quarantine_json(const rank_quarantined& q) {
  return {{"rank", q.rank.value},
          {"lease", {q.lease.epoch.value, q.lease.counter}},
          {"world_size", q.world_size},
          {"text", q.text}};
}

json lost_json(const rank_lost& l) {
  return {{"rank", l.rank.value},
          {"world_size", l.world_size},
          {"silence_seconds", seconds_of(l.silence)},
          {"text", l.text}};
}

json recovery_json(const recovery_record& r) {
  json lost = json::array();
  for (const auto rank : r.lost)
    lost.push_back(rank.value);
  const auto recovery = r.switched_at - r.began_at;
  return {{"epoch", r.epoch.value},
          {"lost", lost},
          {"members", r.members},
          {"silence_seconds", seconds_of(r.silence)},
          {"recovery_seconds", seconds_of(recovery)},
          {"stall_seconds", seconds_of(r.silence + recovery)},
          {"requests_rebuilt", r.requests},
          {"tokens_from_log", r.tokens},
          {"prompt_tokens", r.prompt_tokens},
          {"experts_reloaded", r.experts}};
}

json resumption_json(const resumption& r) {
  return {{"epoch", r.epoch},
          {"step", r.step},
          {"responses_kept", r.responses},
          {"tokens_from_log", r.tokens},
          {"seconds_lost", r.seconds_lost}};
}

unit_counts operator-(const unit_counts& all, const unit_counts& before) {
  return {all.completed - before.completed, all.correct - before.correct,
          all.scored - before.scored,       all.executed - before.executed,
          all.called - before.called,       all.failed - before.failed};
}

void arm_lists::append(arm_lists more) {
  const auto add = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  add(transitions, more.transitions);
  add(moves, more.moves);
  add(leases, more.leases);
  add(quarantined, more.quarantined);
  add(lost, more.lost);
  add(recoveries, more.recoveries);
  add(resumptions, more.resumptions);
}

double arm_books::mean_reward() const {
  return rewarded > 0 ? reward_sum / static_cast<double>(rewarded) : 0;
}

json arm_books::to_json() const {
  json changes = json::array();
  for (const auto& t : transitions)
    changes.push_back(transition_json(t));
  json away = json::array();
  for (const auto& q : quarantined)
    away.push_back(quarantine_json(q));
  json dead = json::array(), recovered = json::array();
  for (const auto& l : lost)
    dead.push_back(lost_json(l));
  for (const auto& r : recoveries)
    recovered.push_back(recovery_json(r));
  json resumed = json::array();
  for (const auto& r : resumptions)
    resumed.push_back(resumption_json(r));
  return {{"arm", arm},
          {"world_size", world_size},
          {"floor", floor},
          {"residency", name_of(residency)},
          {"migrate", name_of(migrate)},
          {"rollout_seconds", rollout_seconds},
          {"behind_seconds", behind_seconds},
          {"generated_tokens", generated_tokens},
          {"responses", responses},
          {"truncated_by_guard", truncated_by_guard},
          {"mean_reward", rewarded > 0 ? json(mean_reward()) : json(nullptr)},
          {"ledger", ledger.to_json()},
          {"transitions", changes},
          {"migrations", moves_json(moves)},
          {"leases", leases_json(leases, lending)},
          {"quarantined", away},
          {"ranks_lost", dead},
          {"recoveries", recovered},
          {"resumptions", resumed},
          {"sidecar",
           {{"completed", units.completed},
            {"correct", units.correct},
            {"duplicates", units_duplicate},
            {"scored", units.scored},
            {"executed", units.executed},
            {"called", units.called},
            {"failed", units.failed}}},
          {"tokens_digest", digests.tokens()},
          {"logprobs_digest", digests.logprobs()}};
}

struct response_digests::hashes {
  sha256 tokens, logprobs;
};

response_digests::response_digests() : hashes_(std::make_unique<hashes>()) {}
response_digests::response_digests(response_digests&&) noexcept = default;
response_digests& response_digests::operator=(response_digests&&) noexcept = default;
response_digests::~response_digests() = default;

void response_digests::add(const std::map<response_key, kept_response>& epoch,
                           const std::vector<prompt>& prompts) {
  for (const auto& [key, response] : epoch) {
    const auto& id = prompts[key.first].id;
    for (auto* hash : {&hashes_->tokens, &hashes_->logprobs}) {
      hash->add(id.data(), id.size());
      hash->add(key.second);
    }
    for (const auto t : response.tokens)
      hashes_->tokens.add(static_cast<std::uint32_t>(t));
    for (const auto p : response.logprobs) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &p, sizeof bits);
      hashes_->logprobs.add(bits);
    }
  }
}

std::string response_digests::tokens() const {
  return hashes_->tokens.hex();
}
std::string response_digests::logprobs() const {
  return hashes_->logprobs.hex();
}

void arm_books::end_epoch(const std::vector<prompt>& prompts) {
  digests.add(epoch, prompts);
  epoch.clear();
  ++epochs;
}

} // namespace adafloor
