#pragma once
// A main for test programs that start themselves again as child processes: define
// BOOST_TEST_NO_MAIN before the Boost.Test header, and `run_child`.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <string>
#include <vector>

namespace adafloor::testing {
int run_child(const std::vector<std::string>& arguments);
}

inline bool no_further_set_up() {
  return true;
}

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--child") == 0)
    return adafloor::testing::run_child({argv + 2, argv + argc});
  return boost::unit_test::unit_test_main(&no_further_set_up, argc, argv);
}
