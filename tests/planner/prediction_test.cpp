#define BOOST_TEST_MODULE prediction
// History, prediction, guard, capacities, cost models, calibration.
#include "planner/plan/calibration.hpp"
#include "planner/plan/history_stats.hpp"
#include "planner/plan/nearest.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;

namespace {

prompt_lengths prompt(const char* id, std::vector<std::int32_t> lengths) {
  return {id, 0, 10, std::move(lengths)};
}

bool says(const error& e, const char* what) {
  return e.text.find(what) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_CASE(history_is_read_by_column_name) {
  auto h = parse_history("response_tokens,extra,prompt_id,epoch,sample\r\n"
                         "30,x,\"a,\"\"b\",e1,0\r\n20,x,c,e1,0\n\n25,x,c,e1,1\n7,x,c,e2,0\n",
                         "f.csv");
  BOOST_REQUIRE(h.has_value());
  BOOST_TEST(h->rows.size() == 4U);
  BOOST_TEST(h->prompts[0] == "a,\"b");
  BOOST_TEST(h->find_epoch("e2") == 1);
  BOOST_TEST(h->find_epoch("e3") == -1);
  auto e1 = epoch_prompts(*h, 0);
  BOOST_REQUIRE(e1.size() == 2U);
  BOOST_TEST(e1[1].position == 1);
  BOOST_TEST((e1[1].lengths == std::vector<std::int32_t>{20, 25}));
  std::string text{history_header()};
  for (const auto& row : h->rows)
    text += format_row(*h, row);
  auto again = parse_history(text, "again");
  BOOST_REQUIRE(again.has_value());
  BOOST_TEST(again->prompts[0] == "a,\"b");
  BOOST_TEST(again->rows.size() == 4U);
}

BOOST_AUTO_TEST_CASE(an_epoch_that_is_forgotten_leaves_the_others_as_they_were) {
  auto h = parse_history("epoch,prompt_id,sample,response_tokens\n"
                         "e1,p,0,10\ne2,p,0,20\ne2,q,0,21\ne3,q,0,30\n",
                         "f.csv");
  BOOST_REQUIRE(h.has_value());
  h->forget_epoch(1);
  BOOST_TEST(h->epochs == (std::vector<std::string>{"e1", "e3"}), boost::test_tools::per_element());
  BOOST_TEST(h->find_epoch("e2") == -1);
  BOOST_TEST(h->epoch_index("e3") == 1U);
  BOOST_TEST(h->prompt_index("q") == 1U);
  const auto last = epoch_prompts(*h, 1);
  BOOST_REQUIRE(last.size() == 1U);
  BOOST_TEST(last[0].id == "q");
  BOOST_TEST((last[0].lengths == std::vector<std::int32_t>{30}));
  BOOST_TEST(epoch_prompts(*h, 0).size() == 1U);
  BOOST_TEST(h->epoch_index("e4") == 2U);
}

BOOST_AUTO_TEST_CASE(bad_history_is_refused_with_line_column_and_remedy) {
  auto missing = parse_history("epoch,prompt_id,sample\n", "f.csv");
  BOOST_REQUIRE(!missing.has_value());
  BOOST_TEST(says(missing.error(), "response_tokens"));
  auto bad = parse_history("epoch,prompt_id,sample,response_tokens\ne,p,0,5\ne,p,1,-3\n", "f.csv");
  BOOST_REQUIRE(!bad.has_value());
  BOOST_TEST(says(bad.error(), "f.csv:3: column response_tokens has \"-3\""));
  auto cut = parse_history("epoch,prompt_id,sample,response_tokens\ne,p,0\n", "f.csv");
  BOOST_REQUIRE(!cut.has_value());
  BOOST_TEST(says(cut.error(), "f.csv:2"));
  BOOST_TEST(!parse_history("", "f.csv").has_value());
}

BOOST_AUTO_TEST_CASE(tails_are_a_moving_average_and_multisets_the_latest) {
  epoch_list past{{prompt("p", {100, 40}), prompt("q", {10})}, {prompt("p", {200, 30})}};
  auto out = predict(past, {prompt("p", {}), prompt("q", {}), prompt("new", {})}, {});
  BOOST_TEST(out[0].tail == 0.3 * 100 + 0.7 * 200);
  BOOST_TEST((out[0].lengths == std::vector<std::int32_t>{200, 30}));
  BOOST_TEST((out[0].pool == std::vector<std::int32_t>{200, 100, 40, 30}));
  BOOST_TEST(out[1].tail == 10);
  BOOST_TEST(!out[2].known);
  BOOST_TEST(out[2].lengths.size() == 16U);
  BOOST_TEST(out[2].tail == 200);
  auto nothing = predict({}, {prompt("p", {})}, {});
  BOOST_TEST(nothing[0].tail == 16384);
}

BOOST_AUTO_TEST_CASE(guard_is_the_quantile_of_realised_over_predicted) {
  epoch_list past{{}, {}};
  for (int i = 0; i < 100; ++i) {
    auto id = std::to_string(i);
    past[0].push_back({id, i, 0, {1000}});
    past[1].push_back({id, i, 0, {1000 + 10 * i}});
  }
  auto fit = fit_guard(past, {}, {});
  BOOST_TEST(fit.ratio == 1.94); // 95 of 100 are at most that
  BOOST_TEST(fit.has_coverage);
  BOOST_TEST(fit.coverage == 0.21); // of the default 1.20, which is all there is without it
  BOOST_TEST(!fit.widened);         // its own quantile is already in the fit
  BOOST_TEST(fit_guard({past[0]}, {}, {}).ratio == 1.20);
  // A calm past and a newest epoch that leaves it: the newest counts.
  epoch_list drifting{past[0], past[0], past[0], past[1]};
  auto wide = fit_guard(drifting, {}, {});
  BOOST_TEST(wide.widened);
  BOOST_TEST(wide.ratio == 1.94);
  auto stats =
      describe(*parse_history("epoch,prompt_id,sample,response_tokens\n"
                              "1,a,0,10\n1,b,0,20\n1,c,0,30\n2,a,0,12\n2,b,0,22\n2,c,0,40\n",
                              "f"),
               {}, {});
  BOOST_TEST(stats.links.at(0).rank_correlation_tails == 1.0);
  BOOST_TEST(rank_correlation({1, 2, 3}, {3, 2, 1}) == -1.0);
  BOOST_TEST(rank_correlation({1, 1}, {1, 2}) == 0.0);
}

BOOST_AUTO_TEST_CASE(capacity_follows_the_memory_model) {
  memory_model m;
  m.device_bytes = 1000;
  m.dense_weight_bytes = 100;
  m.expert_bytes = 1;
  m.layers = 2;
  m.experts = 128;
  m.workspace_bytes = 50;
  m.resident_group_bytes = 30;
  m.kv_bytes_per_token = 2;
  auto table = capacities(m, {2, 4, 3}, 1);
  BOOST_REQUIRE(table.has_value());
  BOOST_TEST((*table)[0].tokens == (1000 - 100 - 128 - 50 - 30) / 2);
  BOOST_TEST((*table)[2].tokens == (1000 - 100 - 86 - 50 - 30) / 2); // ceil(128 / 3) slots
  BOOST_TEST(!capacities(m, {0}).has_value());
  m.expert_bytes = 20;
  auto full = capacities(m, {2});
  BOOST_REQUIRE(!full.has_value());
  BOOST_TEST(says(full.error(), "2 ranks"));
  BOOST_TEST(capacity_at({{2, 131072}, {4, 280576}}, 3) == 229185 - 1);
  BOOST_TEST(capacity_at({{2, 100}, {4, 200}}, 1) == 0);
  BOOST_TEST(capacity_at({{2, 100}, {4, 200}}, 64) == 200);
}

BOOST_AUTO_TEST_CASE(cost_models_survive_their_text_form) {
  auto costs =
      parse_cost_model("# c\nname = x\nfixed_seconds = 25\ndecode 16 base_ms=48 "
                       "per_active_ms=2.17\ndecode 8 base_ms=60.9 assumed\n"
                       "table 8 1:2 64:4\nexit 16 8 11.5\nexit 8 4 14\ncapacity 8 377344\n",
                       "f");
  BOOST_REQUIRE(costs.has_value());
  BOOST_TEST(decode_cost(*costs, 16, 10, 1, 10).constant_ms == 48 + 21.7);
  BOOST_TEST(decode_cost(*costs, 8, 3, 1, 64).constant_ms == 64.9);
  BOOST_TEST(exit_seconds(*costs, 16, 8) == 11.5);
  BOOST_TEST(exit_seconds(*costs, 16, 4) == 25.5);
  BOOST_TEST(exit_seconds(*costs, 12, 6)
             == 14); // a halving that is not listed: the dearest it touches
  auto again = parse_cost_model(format_cost_model(*costs), "g");
  BOOST_REQUIRE(again.has_value());
  BOOST_TEST(format_cost_model(*again) == format_cost_model(*costs));
  for (const char* bad : {"decode 16 base=3\n", "exit 8 16 3\n", "speed = 3\n", "table 8 5:1 4:1\n",
                          "name = none\n", "fixed_seconds = x\n", "capacity 8\n", "decode\n"})
    BOOST_TEST(!parse_cost_model(bad, "f").has_value(), bad);
  BOOST_TEST(says(parse_cost_model("\nspeed = 3\n", "f").error(), "f:2"));
}

BOOST_AUTO_TEST_CASE(calibration_finds_the_law_that_made_the_log) {
  std::vector<step_sample> steps;
  for (int i = 0; i < 200; ++i) {
    double active = 1 + i % 8, kv = 1000.0 * (i % 37);
    steps.push_back({8, active, kv, (60.9 + active + 5.25e-5 * kv) / 1000});
    steps.push_back({16, 16, kv, 0.080});
  }
  steps.push_back({4, 1, 1, 1}); // too few
  auto costs = calibrate(steps, {{16, 8, 11}, {16, 8, 12}, {16, 8, 13}, {8, 16, 2.6}}, "mine");
  BOOST_REQUIRE(costs.has_value());
  BOOST_REQUIRE(costs->laws.size() == 2U);
  BOOST_TEST(costs->laws[0].base_ms == 60.9, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(costs->laws[0].per_active_ms == 1.0, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(costs->laws[0].per_max_kv_ms == 5.25e-5, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(costs->laws[1].base_ms == 80.0, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(exit_seconds(*costs, 16, 8) == 12);
  BOOST_TEST(costs->restore_seconds == 2.6);
  BOOST_TEST(!calibrate({}, {}, "x").has_value());
}

BOOST_AUTO_TEST_CASE(nearest_names) {
  BOOST_TEST(nearest_name("vanila", {"adaptive", "vanilla"}) == "vanilla");
  BOOST_TEST(nearest_name("x", {}).empty());
}
