#define BOOST_TEST_MODULE recorder
#include "actors/recorder.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

using namespace adafloor;

BOOST_AUTO_TEST_CASE(lines_are_appended_and_found_again) {
  testing::scratch_dir dir;
  const auto path = dir.path() + "/a.jsonl";
  {
    auto f = durable_file::open(path);
    BOOST_REQUIRE(f.has_value());
    BOOST_TEST(f->append("one").has_value());
    BOOST_TEST(f->append("two").has_value());
    BOOST_TEST(f->sync().has_value());
  }
  auto f = durable_file::open(path);
  BOOST_REQUIRE(f.has_value());
  BOOST_TEST(f->take_earlier() == "one\ntwo\n");
  BOOST_TEST(f->append("three").has_value());
  BOOST_TEST(testing::read_file(path) == "one\ntwo\nthree\n");
}

BOOST_AUTO_TEST_CASE(a_torn_last_line_of_a_crashed_writer_is_cut_off) {
  testing::scratch_dir dir;
  const auto path = dir.path() + "/a.jsonl";
  std::ofstream(path) << "whole\nto";
  auto f = durable_file::open(path);
  BOOST_REQUIRE(f.has_value());
  BOOST_TEST(f->take_earlier() == "whole\n");
  BOOST_TEST(f->append("next").has_value());
  BOOST_TEST(testing::read_file(path) == "whole\nnext\n");
}

BOOST_AUTO_TEST_CASE(a_write_that_fails_is_an_error_and_leaves_whole_lines) {
  testing::scratch_dir dir;
  const auto path = dir.path() + "/a.jsonl";
  auto f = durable_file::open(path);
  BOOST_REQUIRE(f.has_value());
  BOOST_REQUIRE(f->append("one").has_value());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8, before.rlim_max}; // As a full disk would: the next line fits in part.
  setrlimit(RLIMIT_FSIZE, &small);
  const auto r = f->append("a line that does not fit");
  setrlimit(RLIMIT_FSIZE, &before);
  BOOST_REQUIRE(!r.has_value());
  BOOST_TEST((r.error().code == error_code::io));
  BOOST_TEST(r.error().text.find(path) != std::string::npos);
  BOOST_TEST(testing::read_file(path) == "one\n");
  BOOST_TEST(f->append("two").has_value()); // There is space again.
  BOOST_TEST(testing::read_file(path) == "one\ntwo\n");
}

BOOST_AUTO_TEST_CASE(a_path_that_is_no_file_is_refused) {
  const auto f = durable_file::open("/dev/full");
  BOOST_REQUIRE(!f.has_value());
  BOOST_TEST(f.error().text.find("/dev/full") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_missing_folder_is_an_error_that_names_the_path) {
  const auto f = durable_file::open("/no-such-folder/a.jsonl");
  BOOST_REQUIRE(!f.has_value());
  BOOST_TEST((f.error().code == error_code::io));
  BOOST_TEST(f.error().text.find("/no-such-folder/a.jsonl") != std::string::npos);
}
