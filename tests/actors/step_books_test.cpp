// What a job leaves on disk to go on from.
#define BOOST_TEST_MODULE step_books
#include "actors/response_log.hpp"
#include "actors/step_books.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <fstream>

using namespace adafloor;

namespace {

lease_record lease(std::uint64_t epoch) {
  lease_record l;
  l.lease = {epoch_id(epoch), 1};
  l.window = microseconds{-5};
  return l;
}

books_line line(const job_point& next, std::uint64_t rollouts, std::uint64_t epoch) {
  books_line l;
  l.next = next;
  l.rollouts = rollouts;
  l.sums.ledger.rank_seconds = 0.1 + static_cast<double>(rollouts);
  l.sums.ledger.by_state[2] = 1e-7;
  l.sums.lending.slowdown_ppm = -3;
  l.added.leases.push_back(lease(epoch));
  l.added.moves.push_back({{rollout_id(1), request_id(2), 3}, rank_id(4), move_outcome::refused});
  return l;
}

std::uint32_t bits(float x) {
  std::uint32_t out = 0;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

} // namespace

BOOST_FIXTURE_TEST_CASE(the_lines_of_the_newest_arm_are_added_up, testing::scratch_dir) {
  const auto file = path() + "/books.jsonl";
  {
    auto books = step_books::open(file).value();
    BOOST_TEST(!books.continues());
    BOOST_TEST(books.seconds_since_first() == 0);
    for (const auto& l : {line({0, 0, 0}, 0, 1), line({0, 0, 1}, 1, 2), line({1, 0, 0}, 2, 3),
                          line({1, 0, 1}, 3, 4), line({1, 0, 2}, 4, 5)})
      BOOST_TEST(books.append(l).has_value());
  }
  std::ofstream(file, std::ios::app) << R"({"next":)"; // torn by a crash
  const auto books = step_books::open(file).value();
  BOOST_REQUIRE(books.continues());
  const auto& newest = books.earlier();
  BOOST_TEST((newest.next == job_point{1, 0, 2}));
  BOOST_TEST(newest.rollouts == 4U);
  BOOST_TEST((newest.sums == line({}, 4, 5).sums));
  BOOST_REQUIRE(newest.added.leases.size() == 3U);
  BOOST_TEST((newest.added.leases[0] == lease(3)));
  BOOST_TEST((newest.added.leases[2] == lease(5)));
  BOOST_TEST((newest.added.moves == std::vector<request_moved>(3, line({}, 0, 0).added.moves[0])));
  BOOST_TEST(books.seconds_since_first() >= books.seconds_since_newest());
}

BOOST_FIXTURE_TEST_CASE(a_line_of_another_kind_is_named, testing::scratch_dir) {
  const auto file = path() + "/books.jsonl";
  BOOST_TEST(step_books::open(file).value().append(line({}, 1, 1)).has_value());
  std::ofstream(file, std::ios::app) << "{\"next\":{\"arm\":1}}\n";
  const auto books = step_books::open(file);
  BOOST_REQUIRE(!books.has_value());
  BOOST_TEST((books.error().code == error_code::bad_input));
  BOOST_TEST(books.error().text.find("books.jsonl:2: \"next.epoch\" is missing")
                 != std::string::npos,
             books.error().text);
}

BOOST_AUTO_TEST_CASE(a_response_is_read_with_the_bits_that_were_written) {
  const response_head head{{1, 2, 3}, "natural", R"(a",tokens":[1)", 4};
  const kept_response r{{7, -1, 0}, {-0.0F, -1.17549435e-38F, -16.2345676F}, finish_reason::guard};
  const auto text = response_line(head, r);
  BOOST_TEST(json::parse(text).at("prompt_id") == head.prompt_id);
  const auto read = read_response_line(text, {"vanilla", "natural"}, "here:1");
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST((read->first.at == head.at));
  BOOST_TEST(read->first.prompt_id == head.prompt_id);
  BOOST_TEST(read->first.sample == 4U);
  BOOST_TEST((read->second.tokens == r.tokens));
  BOOST_TEST((read->second.stop == r.stop));
  for (std::size_t i = 0; i < r.logprobs.size(); ++i)
    BOOST_TEST(bits(read->second.logprobs[i]) == bits(r.logprobs[i]));
}

BOOST_AUTO_TEST_CASE(what_is_no_response_is_named) {
  const kept_response r{{1}, {-1}, finish_reason::eos};
  const auto good = response_line({{}, "natural", "p", 0}, r);
  for (const auto& bad :
       {std::string{}, std::string{"{}"}, good.substr(0, good.size() - 3),
        response_line({{}, "unknown", "p", 0}, r),
        response_line({{}, "natural", "p", 0}, {{1, 2}, {-1}, finish_reason::eos}),
        response_line({{}, "natural", "p", 0}, {{1}, {NAN}, finish_reason::eos})}) {
    const auto read = read_response_line(bad, {"natural"}, "here:1");
    BOOST_REQUIRE_MESSAGE(!read.has_value(), bad);
    BOOST_TEST(read.error().text.find("here:1: is no response of this job") == 0U);
  }
}
