#define BOOST_TEST_MODULE report
#include "apps/report.hpp"
#include "apps/run_record.hpp"

#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace adafloor;
using nlohmann::json;

namespace {

struct folder {
  std::string path =
      std::filesystem::temp_directory_path() / ("adafloor-report-" + std::to_string(getpid()));
  folder() { std::filesystem::create_directories(path); }
  ~folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream{path + "/" + name} << text;
    return path + "/" + name;
  }
};

std::string interval(int rank, const char* state, double begin, double end) {
  return json{{"event", "interval"}, {"arm", "natural"}, {"step", 0}, {"rank", rank},
              {"state", state},      {"begin", begin},   {"end", end}}
             .dump()
         + "\n";
}

const std::string events = "{\"event\":\"arm_begin\",\"arm\":\"natural\",\"seconds\":2.0}\n"
                           + interval(0, "busy", 2, 3) + interval(1, "busy", 2, 2.5)
                           + interval(0, "busy", 3, 4) + interval(1, "dummy", 2.5, 4)
                           + "{\"event\":\"transition\",\"arm\":\"natural\",\"step\":0,\"kind\":"
                             "\"contract\",\"from\":8,\"to\":4,\"seconds\":2.7}\n";

json run_of(const std::string& digest_a, const std::string& digest_b) {
  const json ledger{{"rank_seconds", 10.0}, {"busy", 6.0}, {"dummy", 4.0}};
  return {{"job", {{"world_size", 2}}},
          {"arms",
           {{{"arm", "vanilla"}, {"tokens_digest", digest_a}, {"ledger", ledger}},
            {{"arm", "natural"}, {"tokens_digest", digest_b}, {"ledger", ledger}}}}};
}

} // namespace

BOOST_AUTO_TEST_CASE(intervals_are_joined_and_count_from_the_arm) {
  const folder out;
  const auto read = read_timelines(out.write("events.jsonl", events + "{\"event\":\"inter"));
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().text));
  BOOST_REQUIRE(read->size() == 1U);
  const auto& arm = read->front();
  BOOST_REQUIRE(arm.intervals.size() == 3U);
  BOOST_TEST(arm.intervals[0].end == 2.0);
  BOOST_TEST(arm.intervals[2].state == "dummy");
  BOOST_TEST(arm.intervals[2].begin == 0.5);
  BOOST_TEST(arm.seconds == 2.0);
  BOOST_TEST(arm.transitions.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_broken_line_in_the_middle_is_named) {
  const folder out;
  const auto read = read_timelines(out.write("events.jsonl", "{}\n" + events));
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().text.find("events.jsonl:1: not an event line") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_page_needs_no_network_and_escapes_what_it_shows) {
  const folder out;
  out.write("events.jsonl", events);
  auto run = run_of("aa", "aa");
  run["arms"][0]["arm"] = "<script>alert(1)</script>";
  out.write("run.json", run.dump());
  const auto path = write_report(out.path);
  BOOST_REQUIRE_MESSAGE(path.has_value(), (path ? "" : path.error().text));
  std::ifstream file{*path};
  const std::string page{std::istreambuf_iterator<char>{file}, {}};
  for (const char* outside : {"http://", "https://", "src=", "@import", "<script>alert"})
    BOOST_TEST(page.find(outside) == std::string::npos, outside);
  BOOST_TEST(page.find("class=\"dummy\"") != std::string::npos);
  BOOST_TEST(page.find("8→4") != std::string::npos);
  BOOST_TEST(page.find("identical") != std::string::npos);
  BOOST_TEST(!std::filesystem::exists(*path + ".part"));
}

BOOST_AUTO_TEST_CASE(a_folder_without_a_run_is_refused) {
  const folder out;
  BOOST_TEST((write_report(out.path).error().code == error_code::bad_input));
  out.write("run.json", "[]");
  BOOST_TEST((write_report(out.path).error().code == error_code::bad_input));
}

BOOST_AUTO_TEST_CASE(different_digests_are_said_aloud) {
  BOOST_TEST(digest_verdict(run_of("aa", "aa")["arms"]) == "identical tokens in all arms");
  BOOST_TEST(digest_verdict(run_of("aa", "ab")["arms"])
             == "tokens DIFFER between vanilla and natural");
  BOOST_TEST(side_by_side(run_of("aa", "ab")["arms"]).find("40.0 %") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_arm_that_the_guard_cut_is_compared_at_equal_work) {
  auto arms = run_of("aa", "ab")["arms"];
  arms[0]["rollout_seconds"] = 9.0;
  arms[1]["rollout_seconds"] = 4.0;
  arms[1]["truncated_by_guard"] = 3;
  run_record record;
  for (const auto& arm : arms)
    record.take({{"event", "arm_end"}, {"result", arm}});
  record.take({{"event", "equal_work"},
               {"arm", "natural"},
               {"lengths_of", "vanilla"},
               {"generated_tokens", 1000},
               {"time_ratio", 1.5}});
  BOOST_TEST(record.arms()[1]["equal_work"]["rollout_seconds"] == 6.0);
  BOOST_TEST(!record.arms()[0].contains("equal_work"));
  const auto table = side_by_side(record.arms());
  const auto row = table.substr(table.find("same work, s"));
  BOOST_TEST(row.find("9.00") < row.find("6.00"), row);
  BOOST_TEST(digest_verdict(record.arms()).find("guard") != std::string::npos);
}
