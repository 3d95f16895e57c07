#define BOOST_TEST_MODULE recorder
#include "actors/recorder.hpp"
#include "tests/support/scratch.hpp"

#include <boost/test/unit_test.hpp>

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
  BOOST_TEST(f->earlier() == "one\ntwo\n");
  BOOST_TEST(f->append("three").has_value());
  BOOST_TEST(testing::read_file(path) == "one\ntwo\nthree\n");
}

BOOST_AUTO_TEST_CASE(a_torn_last_line_of_a_crashed_writer_is_cut_off) {
  testing::scratch_dir dir;
  const auto path = dir.path() + "/a.jsonl";
  std::ofstream(path) << "whole\nto";
  auto f = durable_file::open(path);
  BOOST_REQUIRE(f.has_value());
  BOOST_TEST(f->earlier() == "whole\n");
  BOOST_TEST(f->append("next").has_value());
  BOOST_TEST(testing::read_file(path) == "whole\nnext\n");
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_an_error_that_names_the_file) {
  auto f = durable_file::open("/dev/full");
  if (!f) { // Some systems cannot truncate the device; then opening says so.
    BOOST_TEST(f.error().text.find("/dev/full") != std::string::npos);
    return;
  }
  const auto r = f->append("x");
  BOOST_REQUIRE(!r.has_value());
  BOOST_TEST(r.error().text.find("/dev/full") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_missing_folder_is_an_error_that_names_the_path) {
  const auto f = durable_file::open("/no-such-folder/a.jsonl");
  BOOST_REQUIRE(!f.has_value());
  BOOST_TEST((f.error().code == error_code::io));
  BOOST_TEST(f.error().text.find("/no-such-folder/a.jsonl") != std::string::npos);
}
