#define BOOST_TEST_MODULE job
#include "actors/job.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

using namespace adafloor;

namespace {

job sample() {
  job task;
  task.out_dir = "/tmp/out";
  task.world_size = 4;
  task.models = {"/models/v2", "/models/v3"};
  task.prompts = "/data/prompts \"quoted\".jsonl";
  task.history_epochs = {"1", "2"};
  task.arms = {"vanilla", "natural"};
  task.rollout.temperature = 0.7;
  task.rollout.seed = 18446744073709551615ULL;
  task.ep.group_sizes = {4, 2};
  task.guard.enabled = true;
  task.transport.port = 65535;
  return task;
}

result<job> parse_edited(const char* pointer, const nlohmann::json& value) {
  auto tree = nlohmann::json::parse(to_json_text(sample()));
  tree[nlohmann::json::json_pointer{pointer}] = value;
  return parse_job(tree.dump(), "job.json");
}

} // namespace

BOOST_AUTO_TEST_CASE(a_job_survives_the_round_trip) {
  const auto back = parse_job(to_json_text(sample()), "job.json");
  BOOST_REQUIRE_MESSAGE(back.has_value(), (back ? "" : back.error().text));
  BOOST_TEST((*back == sample()));
}

BOOST_AUTO_TEST_CASE(wrong_fields_are_named) {
  const struct {
    const char* pointer;
    nlohmann::json value;
    const char* named;
  } cases[] = {
      {"/world_size", "eight", "\"world_size\" must be a whole number"},
      {"/world_size", -1, "\"world_size\" must be a whole number"},
      {"/transport/port", 65536, "\"transport.port\" must be a whole number from 0 to 65535"},
      {"/rollout/temperature", true, "\"rollout.temperature\" must be a number"},
      {"/arms/1", 7, "\"arms[1]\" must be a string"},
      {"/ep", 1, "\"ep\" must be an object"},
      {"/ep/flor", 2, "\"ep.flor\" is not a field"},
  };
  for (const auto& c : cases) {
    const auto parsed = parse_edited(c.pointer, c.value);
    BOOST_REQUIRE(!parsed.has_value());
    BOOST_TEST((parsed.error().code == error_code::bad_input));
    BOOST_TEST(parsed.error().text.find(c.named) != std::string::npos, parsed.error().text);
  }
}

BOOST_AUTO_TEST_CASE(a_missing_field_and_no_json_are_refused) {
  auto tree = nlohmann::json::parse(to_json_text(sample()));
  tree["kv"].erase("margin");
  const auto parsed = parse_job(tree.dump(), "job.json");
  BOOST_REQUIRE(!parsed.has_value());
  BOOST_TEST(parsed.error().text == "job.json: \"kv.margin\" is missing");
  BOOST_TEST(!parse_job("{", "job.json").has_value());
  BOOST_TEST((load_job("/nonexistent/job.json").error().code == error_code::io));
}
