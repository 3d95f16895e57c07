// Queues of auxiliary work: what is given out, and what is kept, once.
#define BOOST_TEST_MODULE lease_queues
#include "actors/lease_queues.hpp"
#include "actors/unit_number.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <map>

using namespace adafloor;
using namespace adafloor::testing;

namespace {

struct bench {
  scratch_dir place;
  job task;

  bench() {
    task.out_dir = place.path();
    task.arms = {"natural"};
    task.sidecar.score_with = "self";
    task.sidecar.exec = "true";
    task.sidecar.exec_count = 3;
    task.sidecar.exec_queue = {4, 2};
  }
  std::string write(const char* text) const {
    const auto path = place.path() + "/inputs";
    std::ofstream{path} << text;
    return path;
  }
  lease_queues open() const {
    auto queues = lease_queues::open(task);
    BOOST_REQUIRE_MESSAGE(queues.has_value(), (queues ? "" : queues.error().text));
    return std::move(*queues);
  }
  std::string file(const char* name) const { return read_file(place.path() + "/" + name); }
};

std::vector<std::uint64_t> places(const lease_queues& queues) {
  std::vector<std::uint64_t> found;
  for (const auto& message : queues.opening())
    if (const auto* work = std::get_if<queue_work>(&message))
      for (const auto& unit : work->units) {
        BOOST_TEST((unit.kind == kind_of_unit(unit.unit)));
        BOOST_TEST(unit.queue == queue_of(unit.kind));
        found.push_back(index_of_unit(unit.unit));
      }
  return found;
}

work_result exec_result(std::uint64_t place) {
  return {{epoch_id(3), 9}, unit_number(work_kind::exec, place), {}, {}, 5, "said \x01 so"};
}

const fence stamp{term_id(1), epoch_id(3), weights_id(2)};

} // namespace

BOOST_FIXTURE_TEST_CASE(a_result_is_kept_once_and_its_unit_is_not_given_out_again, bench) {
  {
    auto queues = open();
    BOOST_TEST((places(queues) == std::vector<std::uint64_t>{0, 1, 2}));
    BOOST_TEST(queues.keep(exec_result(1), stamp).value());
    BOOST_TEST(queues.counts().executed == 1U);
    BOOST_TEST(queues.keep(exec_result(1), stamp).value());
    BOOST_TEST(queues.counts().executed == 1U);
    BOOST_TEST(!queues.keep(exec_result(3), stamp).value());
    BOOST_TEST(!queues.keep({{}, ~0ULL, {}}, stamp).value());
    BOOST_TEST(!queues.keep({{}, 0, {}}, stamp).value()); // No such queue here.
  }
  const auto line = json::parse(file("exec.jsonl"));
  BOOST_TEST(line["unit"] == 1);
  BOOST_TEST(line["lease"].dump() == "[3,9]");
  BOOST_TEST(line["fence"].dump() == R"({"term":1,"epoch":3,"weights_version":2})");
  BOOST_TEST(line["exit_code"] == 5);
  BOOST_TEST(line["text"] == "said \x01 so");

  std::ofstream{place.path() + "/exec.jsonl", std::ios::app} << R"({"unit":2,"lea)";
  auto again = open();
  BOOST_TEST((places(again) == std::vector<std::uint64_t>{0, 2}));
  BOOST_TEST(again.counts().executed == 1U);
  BOOST_TEST(again.keep(exec_result(1), stamp).value());
  BOOST_TEST(again.counts().executed == 1U);
  BOOST_TEST(again.keep(exec_result(2), stamp).value());
  BOOST_TEST(again.counts().executed == 2U);
  BOOST_TEST(again.duplicates().value() == 0U);
  std::ofstream{place.path() + "/exec.jsonl", std::ios::app} << "{\"unit\":2}\n";
  BOOST_TEST(again.duplicates().value() == 1U);
}

BOOST_FIXTURE_TEST_CASE(a_response_is_scored_once_by_the_policy_of_its_step, bench) {
  const lease_queues::scored_response who{0, 0, 1, 4, "p4", 6};
  std::uint64_t number = 0;
  {
    auto queues = open();
    const auto unit = queues.score(who, {1, 2}, {3, 4}, "/policy");
    BOOST_REQUIRE(unit.has_value());
    number = unit->unit;
    BOOST_TEST(unit->model == "/policy");
    BOOST_TEST(unit->prompt.size() == 2U);
    BOOST_TEST((unit->response == std::vector<token_id>{3, 4}));
    BOOST_TEST(queues.keep({{epoch_id(3), 9}, number, {}, {-0.25F, -0.1F}}, stamp).value());
    BOOST_TEST(queues.counts().scored == 1U);
  }
  const auto line = json::parse(file("scores.jsonl"));
  BOOST_TEST(line["prompt_id"] == "p4");
  BOOST_TEST(line["sample"] == 6);
  BOOST_TEST(line["logprobs"].dump() == "[-0.25,-0.1]");
  auto again = open();
  BOOST_TEST(!again.score(who, {1, 2}, {3, 4}, "/policy").has_value());
  auto other = who;
  other.sample = 7;
  BOOST_TEST(again.score(other, {1, 2}, {3}, "/policy").value().unit != number);
}

BOOST_FIXTURE_TEST_CASE(callbacks_are_the_lines_of_a_file_and_may_say_any_bytes, bench) {
  task.sidecar.exec.clear();
  task.sidecar.callback = "name";
  task.sidecar.callback_file = write("{\"a\": 1}\n\nplain\n");
  {
    auto queues = open();
    std::vector<std::vector<std::string>> commands;
    for (const auto& message : queues.opening())
      if (const auto* work = std::get_if<queue_work>(&message))
        for (const auto& unit : work->units)
          commands.push_back(unit.command);
    BOOST_TEST(
        (commands
         == std::vector<std::vector<std::string>>{{"name", "{\"a\": 1}"}, {"name", "plain"}}));
    work_result done{{epoch_id(3), 9}, unit_number(work_kind::callback, 1), {}};
    done.text = "\xff said";
    BOOST_TEST(queues.keep(done, stamp).value());
    BOOST_TEST((queues.counts().called == 1 && queues.counts().failed == 0));
  }
  BOOST_TEST(json::parse(file("callback.jsonl"))["text"] == "\xef\xbf\xbd said");
  BOOST_TEST((places(open()) == std::vector<std::uint64_t>{0}));
  BOOST_TEST(load_inputs(write("\n")).error().text.find("has no line") != std::string::npos);
  const auto longest = std::string(65537, 'x');
  BOOST_TEST(load_inputs(write(longest.c_str())).error().text.find(":1: has 65537 bytes")
             != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_unit_that_was_given_up_has_its_error_as_result, bench) {
  auto queues = open();
  work_result given_up{{epoch_id(3), 9}, unit_number(work_kind::exec, 1), {}};
  given_up.error = "given up";
  BOOST_TEST(queues.keep(given_up, stamp).value());
  BOOST_TEST((queues.counts().executed == 1 && queues.counts().failed == 1));
  const auto line = json::parse(file("exec.jsonl"));
  BOOST_TEST(line["error"] == "given up");
  BOOST_TEST(line["exit_code"].is_null());
  BOOST_TEST((places(open()) == std::vector<std::uint64_t>{0, 2}));
}

BOOST_FIXTURE_TEST_CASE(queues_have_their_priorities_and_weights, bench) {
  std::map<std::uint32_t, queue_policy> told;
  for (const auto& message : open().opening())
    if (const auto* policy = std::get_if<queue_policy>(&message)) told[policy->queue] = *policy;
  BOOST_TEST(told.size() == 2U);
  BOOST_TEST(told[queue_of(work_kind::exec)].priority == 4U);
  BOOST_TEST(told[queue_of(work_kind::exec)].weight == 2U);
  BOOST_TEST(told[queue_of(work_kind::score)].priority == 1U);
}

BOOST_FIXTURE_TEST_CASE(commands_are_read_from_lines_and_wrong_ones_named, bench) {
  const auto path = place.path() + "/commands.jsonl";
  const auto write = [&](const char* text) { std::ofstream{path} << text; };
  write("{\"command\": \"echo a\"}\n\n{\"command\": [\"/bin/echo\", \"b c\"]}\n");
  const auto commands = load_commands(path);
  BOOST_REQUIRE(commands.has_value());
  BOOST_TEST((commands->at(0) == std::vector<std::string>{"/bin/sh", "-c", "echo a"}));
  BOOST_TEST((commands->at(1) == std::vector<std::string>{"/bin/echo", "b c"}));
  for (const char* wrong : {"{\"command\": []}", "{\"command\": [1]}", "{}", "echo", "[1]"}) {
    write(wrong);
    BOOST_TEST(load_commands(path).error().text.find(path + ":1: must be") == 0U, wrong);
  }
  write("\n");
  BOOST_TEST(!load_commands(path).has_value());
  BOOST_TEST(!load_commands(path + "-not-there").has_value());
}
