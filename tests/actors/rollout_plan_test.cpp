#define BOOST_TEST_MODULE rollout_plan
#include "actors/rollout_plan.hpp"
#include "gpu/engine.hpp"

#include <boost/test/unit_test.hpp>

#include <set>

using namespace adafloor;

namespace {

job small_job() {
  job t;
  t.world_size = 4;
  t.steps = 2;
  t.n = 2;
  t.prompts_per_step = 8;
  t.ep.floor = 2;
  t.ep.group_sizes = {4, 2};
  t.history = "h.csv";
  return t;
}
std::vector<prompt> some_prompts(std::size_t n) {
  std::vector<prompt> out;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back({"p" + std::to_string(i), {1, 2}, {}});
  return out;
}
/// Prompt i had responses of about 40 * (i * 7 % 16 + 1) tokens.
length_history some_history() {
  std::string csv = "epoch,prompt_id,sample,response_tokens\n";
  for (int i = 0; i < 16; ++i)
    for (int s = 0; s < 2; ++s)
      csv += "1,p" + std::to_string(i) + "," + std::to_string(s) + ","
             + std::to_string(40 * (i * 7 % 16 + 1) + s) + "\n";
  return *parse_history(csv, "h.csv");
}

const std::vector<group_capacity> no_bound{{4, 32768}, {2, 32768}};

} // namespace

BOOST_AUTO_TEST_CASE(vanilla_keeps_the_order_and_never_contracts) {
  const auto steps =
      plan_rollouts(small_job(), "vanilla", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(steps.has_value());
  BOOST_REQUIRE_EQUAL(steps->size(), 2u);
  std::size_t next = 0;
  for (const auto& s : *steps) {
    BOOST_TEST(s.exits.empty());
    for (const auto& p : s.prompts)
      BOOST_TEST(p.prompt == next++);
  }
}

BOOST_AUTO_TEST_CASE(
    the_history_of_a_long_run_has_a_bound_and_keeps_what_is_given_and_what_is_new) {
  auto history = some_history();
  const auto given = history.rows.size();
  std::size_t most = 0;
  for (std::int32_t e = 0; e < 500; ++e) {
    length_row row;
    row.epoch = begin_run_epoch(history);
    BOOST_REQUIRE_EQUAL(row.epoch, history.epochs.size() - 1);
    row.response_tokens = e;
    history.rows.push_back(row);
    most = std::max(most, history.rows.size());
  }
  BOOST_TEST(most == given + 64);
  BOOST_TEST(history.epochs.size() == 65u);
  BOOST_TEST(std::set(history.epochs.begin(), history.epochs.end()).size() == 65u);
  BOOST_TEST(history.epochs.front() == "1");
  const auto& rows = history.rows;
  for (std::size_t i = 0; i < given; ++i)
    BOOST_TEST(rows[i].epoch == 0u);
  for (std::size_t i = given; i < rows.size(); ++i) {
    BOOST_TEST(rows[i].epoch == i - given + 1);
    BOOST_TEST(rows[i].response_tokens == static_cast<std::int32_t>(500 - 64 + i - given));
  }
}

BOOST_AUTO_TEST_CASE(natural_outlives_its_plan_down_to_the_floor_where_exits_are_free) {
  auto task = small_job();
  task.world_size = 8;
  task.ep.group_sizes = {8, 4, 2};
  // Four prompts of a step end early and the others together: the plan itself stops at 4 ranks.
  std::string csv = "epoch,prompt_id,sample,response_tokens\n";
  for (int i = 0; i < 16; ++i)
    for (int sample = 0; sample < 2; ++sample)
      csv += "1,p" + std::to_string(i) + "," + std::to_string(sample) + ","
             + (i < 4 ? "100" : "1000") + "\n";
  const auto steps =
      plan_rollouts(task, "natural", some_prompts(16), *parse_history(csv, "h.csv"), no_bound);
  BOOST_REQUIRE(steps.has_value());
  bool contracts = false;
  for (const auto& s : *steps)
    if (!s.exits.empty()) {
      contracts = true;
      BOOST_TEST(s.exits.back().to == task.ep.floor);
      BOOST_TEST(s.exits.back().at == s.predicted_tail);
    }
  BOOST_TEST(contracts);
}

BOOST_AUTO_TEST_CASE(natural_uses_the_same_prompts_each_once_and_shrinks_to_the_floor) {
  const auto steps =
      plan_rollouts(small_job(), "natural", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(steps.has_value());
  std::set<std::size_t> seen;
  bool contracts = false;
  for (const auto& s : *steps) {
    for (const auto& p : s.prompts)
      BOOST_TEST(seen.insert(p.prompt).second);
    if (s.exits.empty()) continue;
    contracts = true;
    BOOST_TEST(s.exits.back().to == 2u);
    BOOST_TEST(s.exits.back().at < s.predicted_tail);
  }
  BOOST_TEST(seen.size() == 16u);
  BOOST_TEST(contracts);
}

BOOST_AUTO_TEST_CASE(too_few_prompts_and_unknown_epochs_and_arms_are_named) {
  auto r = plan_rollouts(small_job(), "natural", some_prompts(15), some_history(), no_bound);
  BOOST_REQUIRE(!r.has_value());
  BOOST_TEST(r.error().text.find("15 prompts") != std::string::npos);
  auto task = small_job();
  task.history_epochs = {"9"};
  r = plan_rollouts(task, "natural", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(!r.has_value());
  BOOST_TEST(r.error().text.find("h.csv") != std::string::npos);
  r = plan_rollouts(small_job(), "wild", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(!r.has_value());
  BOOST_TEST(r.error().text.find("'wild'") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(planned_and_adaptive_say_how_exits_are_decided) {
  auto task = small_job();
  task.ep.migrate = "stragglers";
  const auto planned = plan_rollouts(task, "planned", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(planned.has_value());
  const auto natural = plan_rollouts(task, "natural", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(natural.has_value());
  for (std::size_t i = 0; i < planned->size(); ++i) {
    const auto& rules = (*planned)[i].rules;
    BOOST_TEST(!rules.adaptive);
    BOOST_TEST((rules.residency == residency_kind::planned));
    BOOST_TEST((rules.migrate == migrate_kind::stragglers));
    BOOST_TEST(rules.capacity_tokens == task.kv.capacity_tokens);
    BOOST_REQUIRE_EQUAL(rules.forecasts.size(), (*planned)[i].prompts.size());
    for (std::size_t p = 0; p < rules.forecasts.size(); ++p) {
      BOOST_TEST(rules.forecasts[p].known);
      BOOST_TEST(rules.forecasts[p].prompt_tokens == 2u);
      const auto number = (*planned)[i].prompts[p].prompt;
      BOOST_TEST(rules.forecasts[p].lengths.front()
                 == 40 * (static_cast<int>(number) * 7 % 16 + 1) + 1);
    }
    BOOST_TEST(((*natural)[i].exits == (*planned)[i].exits)); // only who stays differs
    BOOST_TEST(((*natural)[i].rules.residency == residency_kind::natural));
  }
  const auto adaptive = plan_rollouts(task, "adaptive", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(adaptive.has_value());
  BOOST_TEST(adaptive->front().rules.adaptive);
  const auto vanilla = plan_rollouts(task, "vanilla", some_prompts(16), some_history(), no_bound);
  BOOST_REQUIRE(vanilla.has_value());
  BOOST_TEST((vanilla->front().rules.migrate == migrate_kind::off));
}

BOOST_AUTO_TEST_CASE(planned_residency_keeps_the_groups_of_the_last_ranks) {
  auto task = small_job();
  task.ep.group_sizes = {4, 3, 2};
  task.arms = {"vanilla", "natural", "adaptive"};
  BOOST_TEST(kept_groups(task, rank_id{3}).empty());
  task.ep.residency = "planned";
  BOOST_TEST(kept_groups(task, rank_id{0}).size() == 1u);
  BOOST_TEST(kept_groups(task, rank_id{1}).size() == 2u);
  const auto last = kept_groups(task, rank_id{3});
  BOOST_REQUIRE_EQUAL(last.size(), 3u);
  BOOST_TEST(last[2] == (std::vector<rank_id>{rank_id{2}, rank_id{3}}),
             boost::test_tools::per_element());
  task.arms = {"planned"};
  task.ep.residency = "natural";
  BOOST_TEST(kept_groups(task, rank_id{3}).size() == 3u);
}

BOOST_AUTO_TEST_CASE(kept_groups_are_charged_to_the_pool_that_plans_count_on) {
  auto task = small_job();
  task.kv.capacity_tokens = 1000;
  task.kv.resident_group_tokens = 100;
  task.ep.group_sizes = {4, 3, 2};
  task.arms = {"natural"};
  BOOST_TEST(resident_tokens(task) == 0u);
  const auto planned_rules = [&] {
    const auto steps = plan_rollouts(task, "natural", some_prompts(16), some_history(),
                                     {{4, 1000}, {3, 1000}, {2, 1000}});
    BOOST_REQUIRE(steps.has_value());
    return steps->front().rules.capacity_tokens;
  };
  BOOST_TEST(planned_rules() == 1000u);
  task.arms = {"natural", "planned"};
  BOOST_TEST(resident_tokens(task) == 200u); // of the groups of 3 and 2
  BOOST_TEST(planned_rules() == 800u);
}

BOOST_AUTO_TEST_CASE(sample_keys_differ_by_seed_prompt_and_sample) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (int p = 0; p < 50; ++p)
      for (std::uint32_t s = 0; s < 16; ++s)
        keys.insert(sample_key(seed, "p" + std::to_string(p), s));
  BOOST_TEST(keys.size() == 4u * 50 * 16);
}

BOOST_AUTO_TEST_CASE(a_memory_budget_leaves_smaller_groups_less_kv) {
  auto task = small_job();
  task.kv.capacity_tokens = 4000;
  model_facts model;
  model.layers = 2;
  model.experts = 16;
  model.dense_bytes = 1000;
  model.expert_resident_bytes = 200;
  model.kv_page_resident_bytes = 16;
  BOOST_TEST(kv_capacities(task, model)->at(1).tokens == 4000);
  task.kv.rank_memory_bytes = 1000 + 8 * 200 + 500;
  const auto table = *kv_capacities(task, model);
  BOOST_TEST(table.at(0).tokens == 1300); // 4 ranks: 4 experts
  BOOST_TEST(table.at(1).tokens == 500);  // 2 ranks: 8 experts
  task.kv.rank_memory_bytes = 1000 + 8 * 200;
  const auto refused = kv_capacities(task, model);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().text.find("group of 2 ranks") != std::string::npos);
}
