#define BOOST_TEST_MODULE token_log
#include "actors/token_log.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>

using namespace adafloor;

namespace {

begin_rollout order(std::uint32_t requests) {
  begin_rollout o;
  o.rollout = rollout_id(3);
  for (std::uint32_t i = 0; i < requests; ++i) {
    o.requests.push_back({request_id(i), 100 + i, {1, 2, 3}, 50, {}});
    o.homes.emplace_back(i % 2);
  }
  return o;
}

envelope batch(std::uint32_t rank, std::uint64_t sequence, std::vector<token_run> runs) {
  envelope e;
  e.from = {rank_id(rank), role_kind::rank};
  e.body = token_batch{rollout_id(3), sequence, std::move(runs)};
  return e;
}

token_run run(std::uint64_t request, std::uint32_t first, std::vector<token_id> tokens) {
  std::vector<float> logprobs;
  for (auto t : tokens)
    logprobs.push_back(-0.1F * static_cast<float>(t));
  return {request_id(request), first, std::move(tokens), std::move(logprobs)};
}

void must(const result<void>& r) {
  BOOST_REQUIRE_MESSAGE(r.has_value(), (r ? "" : r.error().text));
}

struct written : testing::scratch_dir {
  std::string file = path() + "/tokens.log";

  written() {
    auto log = token_log::open(file);
    BOOST_REQUIRE(log.has_value());
    must(log->begin(order(130)));
    must(log->append(batch(0, 1, {run(0, 0, {5, 6}), run(2, 0, {9})})));
    must(log->append(batch(1, 1, {run(0, 4, {1})}))); // it moved; rank 0's next batch is missing
    must(log->append(batch(0, 2, {run(0, 2, {7})})));
    must(log->sync());
  }
  logged_rollout read() const {
    auto all = read_token_log(file);
    BOOST_REQUIRE_MESSAGE(all.has_value(), (all ? "" : all.error().text));
    BOOST_REQUIRE_EQUAL(all->count(rollout_id(3)), 1U);
    return all->at(rollout_id(3));
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(responses_are_rebuilt_as_far_as_they_have_no_gap) {
  const written log;
  const auto responses = log.read();
  BOOST_TEST(responses.size() == 130U);
  const auto& first = responses.at(request_id(0));
  BOOST_TEST(first.tokens == (std::vector<token_id>{5, 6, 7}), boost::test_tools::per_element());
  BOOST_TEST(first.logprobs.at(2) == -0.1F * 7.0F);
  BOOST_TEST(first.spec.random_key == 100U);
  BOOST_TEST(first.spec.prompt.size() == 3U);
  BOOST_TEST(responses.at(request_id(2)).tokens.size() == 1U);
  BOOST_TEST(responses.at(request_id(129)).tokens.empty());
  BOOST_TEST(responses.at(request_id(129)).home == rank_id(1));
}

/// Whatever the point at which the writer died, what was whole stays and the log goes on.
BOOST_AUTO_TEST_CASE(a_torn_tail_is_left_out_and_cut_off) {
  const auto whole = testing::read_file(written().file);
  for (std::size_t lost : {1U, 7U, 30U}) {
    const written log;
    std::filesystem::resize_file(log.file, whole.size() - lost);
    BOOST_TEST(log.read().at(request_id(0)).tokens.size() == 2U); // the last batch is torn
    auto again = token_log::open(log.file);
    BOOST_REQUIRE(again.has_value());
    BOOST_TEST(std::filesystem::file_size(log.file) < whole.size() - lost + 1);
    must(again->append(batch(0, 2, {run(0, 2, {7, 8})})));
    must(again->append(batch(0, 3, {run(2, 1, {4})})));
    BOOST_TEST(log.read().at(request_id(2)).tokens.size() == 2U);
    BOOST_TEST(log.read().at(request_id(0)).tokens.size() >= 4U);
  }
}

/// A writer that crashed in its first record leaves nothing: that is no error.
BOOST_AUTO_TEST_CASE(a_log_without_a_whole_record_is_empty) {
  testing::scratch_dir folder;
  const auto file = folder.path() + "/tokens.log";
  BOOST_TEST(!read_token_log(file).has_value());
  std::ofstream(file, std::ios::binary) << "torn";
  for (int time = 0; time < 2; ++time) {
    const auto read = read_token_log(file);
    BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().text));
    BOOST_TEST(read->empty());
    BOOST_REQUIRE(token_log::open(file).has_value());
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_record_ends_what_is_read) {
  const written log;
  auto bytes = testing::read_file(log.file);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  std::ofstream(log.file, std::ios::binary) << bytes;
  BOOST_TEST(log.read().at(request_id(0)).tokens.size() == 2U);
}

BOOST_AUTO_TEST_CASE(doubles_are_harmless_and_contradictions_are_named) {
  const written log;
  auto again = token_log::open(log.file);
  BOOST_REQUIRE(again.has_value());
  must(again->append(batch(0, 2, {run(0, 2, {7})})));
  BOOST_TEST(log.read().at(request_id(0)).tokens.size() == 3U);
  must(again->append(batch(0, 3, {run(0, 1, {8})})));
  const auto read = read_token_log(log.file);
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().text.find("request 0: token 1 is 6 and 8") != std::string::npos,
             read.error().text);
}
