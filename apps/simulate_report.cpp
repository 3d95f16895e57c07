#include "apps/simulate_report.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace adafloor {
namespace {

using nlohmann::json;

struct figure {
  const char* name;
  std::function<double(const arm_result&)> of;
};

const std::vector<figure>& figures() {
  static const std::vector<figure> list{
      {"rollout_seconds", [](const arm_result& r) { return r.seconds; }},
      {"bound", [](const arm_result& r) { return r.ledger.bound(); }},
      {"busy", [](const arm_result& r) { return r.ledger.busy; }},
      {"dummy", [](const arm_result& r) { return r.ledger.dummy; }},
      {"leased", [](const arm_result& r) { return r.ledger.leased; }},
      {"transition", [](const arm_result& r) { return r.ledger.transition; }},
      {"idle", [](const arm_result& r) { return r.ledger.idle; }},
      {"preemptions", [](const arm_result& r) { return 1.0 * r.preemptions; }},
      {"migrations", [](const arm_result& r) { return 1.0 * r.migrations; }},
      {"truncated_by_guard", [](const arm_result& r) { return 1.0 * r.truncated_by_guard; }},
      {"generated_tokens",
       [](const arm_result& r) { return static_cast<double>(r.generated_tokens); }},
  };
  return list;
}

json spread(const std::vector<double>& values) {
  return {{"mean",
           std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

const arm_result* find(const simulated_run& run, std::string_view name) {
  for (const auto& arm : run.arms)
    if (arm.result.arm == name) return &arm.result;
  return nullptr;
}

json transitions_json(const arm_result& r, double kv_bytes) {
  json out = json::array();
  for (std::size_t s = 0; s < r.steps.size(); ++s) {
    for (const auto& t : r.steps[s].transitions)
      out.push_back({{"epoch", s},
                     {"kind", "shrink"},
                     {"from", t.from},
                     {"to", t.to},
                     {"at_step", t.at_step},
                     {"pause_seconds", t.pause_seconds},
                     {"bytes", t.moved_tokens * kv_bytes}});
    if (r.steps[s].restored)
      out.push_back({{"epoch", s},
                     {"kind", "restore"},
                     {"from", r.steps[s].transitions.back().to},
                     {"to", r.world},
                     {"at_step", r.steps[s].steps},
                     {"pause_seconds", r.steps[s].restore_seconds},
                     {"bytes", 0}});
  }
  return out;
}

json arm_json(const simulated_arm& arm, const arm_result* vanilla, const cost_model& costs) {
  const auto& r = arm.result;
  const auto& l = r.ledger;
  json out = {{"arm", r.arm},
              {"world_size", r.world},
              {"floor", r.floor},
              {"rollout_seconds", r.seconds},
              {"generated_tokens", r.generated_tokens},
              {"responses", r.responses},
              {"truncated_by_guard", r.truncated_by_guard},
              {"mean_reward", nullptr},
              {"ledger",
               {{"rank_seconds", l.rank_seconds},
                {"busy", l.busy},
                {"dummy", l.dummy},
                {"leased", l.leased},
                {"transition", l.transition},
                {"idle", l.idle}}},
              {"bound", l.bound()},
              {"preemptions", r.preemptions},
              {"transitions", transitions_json(r, costs.kv_bytes_per_token)},
              {"migrations",
               {{"count", r.migrations},
                {"bytes", r.migrated_tokens * costs.kv_bytes_per_token},
                {"blackout_steps_p50", 0},
                {"blackout_steps_max", 0},
                {"blackout_seconds_max", r.blackout_seconds}}},
              {"leases",
               {{"granted", r.leases},
                {"returned", r.leases},
                {"forced", 0},
                {"revoke_seconds_p50", 0},
                {"revoke_seconds_max", 0}}},
              {"sidecar", {{"completed", 0}, {"correct", 0}, {"duplicates", 0}}},
              {"tokens_digest", arm.digest}};
  if (vanilla != nullptr) {
    double baseline = vanilla->ledger.dummy;
    out["published_split"] = {{"baseline_dummy", baseline},
                              {"released", l.leased},
                              {"residual", l.dummy},
                              {"shortened", baseline - l.leased - l.dummy}};
  }
  if (arm.equal_work)
    out["equal_work"] = {{"rollout_seconds", arm.equal_work->seconds},
                         {"bound", arm.equal_work->ledger.bound()},
                         {"dummy", arm.equal_work->ledger.dummy},
                         {"generated_tokens", arm.equal_work->generated_tokens}};
  return out;
}

json run_json(const simulated_run& run, const cost_model& costs) {
  json arms = json::array();
  for (const auto& arm : run.arms)
    arms.push_back(arm_json(arm, find(run, "vanilla"), costs));
  return {{"history", run.history},
          {"workload", run.workload},
          {"seed", run.seed},
          {"arms", arms},
          {"lower_bound", run.bound}};
}

double mean_of(const run_record_set& set, std::size_t arm, const figure& f) {
  double sum = 0;
  for (const auto& run : set.runs)
    sum += f.of(run.arms[arm].result);
  return sum / static_cast<double>(set.runs.size());
}

std::string notes_of(const cost_model& costs) {
  std::string out = "Cost model " + costs.name;
  if (!costs.notes.empty()) out += ": " + costs.notes;
  std::string assumed;
  for (const auto& law : costs.laws)
    if (!law.measured) assumed += (assumed.empty() ? "" : ", ") + std::to_string(law.ranks);
  if (!assumed.empty()) out += " (decode law assumed, not measured, at " + assumed + " ranks)";
  return out + ".";
}

} // namespace

double step_set_bound(const arm_base& base, const std::vector<prompt_lengths>& truth,
                      const std::vector<predicted_prompt>& predicted) {
  auto arm = make_arm("lengthsort", base);
  if (!arm) return 0;
  auto plan = plan_epoch(predicted, arm->options);
  if (!plan) return 0;
  auto options = base.base;
  options.capacities = base.natural;
  return lower_bound(plan->steps, truth, options);
}

std::string lengths_digest(const arm_spec& arm, const arm_result& result,
                           const std::vector<prompt_lengths>& truth) {
  std::vector<std::int32_t> cap(truth.size(), arm.options.kv.max_response_length);
  for (const auto& step : result.plan.steps)
    for (auto p : step.prompts)
      if (step.guard_cap > 0) cap[p] = std::min(cap[p], step.guard_cap);
  std::string bytes;
  for (std::size_t p = 0; p < truth.size(); ++p)
    for (std::size_t s = 0; s < truth[p].lengths.size(); ++s)
      bytes += fmt::format("{}\t{}\t{}\n", truth[p].id, s, std::min(truth[p].lengths[s], cap[p]));
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  std::string out;
  for (auto byte : digest)
    out += fmt::format("{:02x}", byte);
  return out;
}

std::string run_title(const run_record_set& set) {
  const auto& run = set.runs.front();
  std::string past;
  for (const auto& e : run.history)
    past += (past.empty() ? "" : ", ") + e;
  return fmt::format("{} ranks, planned from epoch {}, run on epoch {}. {}", set.world, past,
                     run.workload, notes_of(set.costs));
}

nlohmann::json report_json(const run_record_set& set) {
  auto out = run_json(set.runs.front(), set.costs);
  out["cost_model"] = {{"name", set.costs.name}, {"notes", notes_of(set.costs)}};
  if (set.runs.size() == 1) return out;
  json summary = json::object(), runs = json::array();
  for (std::size_t a = 0; a < set.runs.front().arms.size(); ++a) {
    auto& entry = summary[set.runs.front().arms[a].result.arm];
    for (const auto& f : figures()) {
      std::vector<double> values;
      for (const auto& run : set.runs)
        values.push_back(f.of(run.arms[a].result));
      entry[f.name] = spread(values);
    }
  }
  std::vector<double> bounds;
  for (const auto& run : set.runs) {
    runs.push_back(run_json(run, set.costs));
    bounds.push_back(run.bound);
  }
  summary["lower_bound"] = {{"bound", spread(bounds)}};
  out["summary"] = summary;
  out["runs"] = runs;
  return out;
}

std::string report_text(const run_record_set& set) {
  const auto& first = set.runs.front();
  const auto& list = figures();
  std::string out = fmt::format("{:<22} {:>9} {:>10} {:>9} {:>9} {:>9} {:>10} {:>8} {:>7} {:>6}\n",
                                "arm", "seconds", "bound", "busy", "dummy", "leased", "transition",
                                "idle", "preempt", "cut");
  std::size_t best = 0, vanilla = first.arms.size();
  for (std::size_t a = 0; a < first.arms.size(); ++a) {
    auto m = [&](std::size_t f) { return mean_of(set, a, list[f]); };
    const auto& name = first.arms[a].result.arm;
    out += fmt::format("{:<22} {:>9.0f} {:>10.0f} {:>9.0f} {:>9.0f} {:>9.0f} {:>10.0f} {:>8.0f} "
                       "{:>7.0f} {:>6.0f}\n",
                       name, m(0), m(1), m(2), m(3), m(4), m(5), m(6), m(7), m(9));
    if (first.arms[a].equal_work) {
      double seconds = 0, bound = 0;
      for (const auto& run : set.runs) {
        seconds += run.arms[a].equal_work->seconds / static_cast<double>(set.runs.size());
        bound += run.arms[a].equal_work->ledger.bound() / static_cast<double>(set.runs.size());
      }
      out += fmt::format("{:<22} {:>9.0f} {:>10.0f}\n", "  at equal work", seconds, bound);
    }
    if (name != "oracle" && m(1) < mean_of(set, best, list[1])) best = a;
    if (name == "vanilla") vanilla = a;
  }
  double bound = 0;
  for (const auto& run : set.runs)
    bound += run.bound / static_cast<double>(set.runs.size());
  out += fmt::format("{:<22} {:>9} {:>10.0f}\n\n", "lower bound", "", bound);
  out += "Seconds are of rollout; the rest is in rank-seconds, bound = ranks * seconds - leased";
  if (set.runs.size() > 1) out += fmt::format("; means over {} runs", set.runs.size());
  out += ". ";
  if (vanilla < first.arms.size()) {
    double total = mean_of(set, vanilla, list[1]), dummy = mean_of(set, vanilla, list[3]);
    out += fmt::format("In dataset order and without exits the job loses {:.0f} of {:.0f} rank-s "
                       "({:.0f} %) to dummy batches. ",
                       dummy, total, total > 0 ? 100 * dummy / total : 0);
    out += fmt::format("{} binds least: {:.0f} rank-s, {:.0f} % less", first.arms[best].result.arm,
                       mean_of(set, best, list[1]),
                       total > 0 ? 100 * (1 - mean_of(set, best, list[1]) / total) : 0);
    out += fmt::format(", in {:.0f} s instead of {:.0f} s. ", mean_of(set, best, list[0]),
                       mean_of(set, vanilla, list[0]));
  }
  if (mean_of(set, best, list[9]) > 0)
    out += fmt::format("It cuts {:.0f} responses short; judge it by the line at equal work. ",
                       mean_of(set, best, list[9]));
  bool own = false;
  for (const auto& run : set.runs)
    own =
        own || std::find(run.history.begin(), run.history.end(), run.workload) != run.history.end();
  if (own)
    out += "The plan was made from the very epoch that was run, for want of another: it knows more "
           "than a real one would. ";
  return out + notes_of(set.costs) + '\n';
}

} // namespace adafloor
