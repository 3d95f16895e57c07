// The program without plug-ins, with them, and with something else in their place.
#define BOOST_TEST_MODULE plugin
#include "gpu/plugin.hpp"
#include "gpu/plugin_abi.hpp"
#include "tests/gpu/model_files.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;
using namespace adafloor::tests;

// Each answer is kept for the life of the process, so there is one look per kind of plug-in.
BOOST_AUTO_TEST_CASE(a_missing_or_broken_plugin_is_an_error_with_a_remedy) {
  scratch_folder folder;
  write_all(folder.file("libadafloor_nccl.so"), "not a library");
  ::setenv("ADAFLOOR_PLUGINS", folder.path().c_str(), 1);
  const auto nccl = find_nccl();
  BOOST_REQUIRE(!nccl);
  BOOST_TEST(nccl.error().text.find("does not load") != std::string::npos, nccl.error().text);
  BOOST_TEST(!make_nccl_world_id());
  BOOST_TEST(!join_nccl_world({}));
  ::unsetenv("ADAFLOOR_PLUGINS");
}

BOOST_AUTO_TEST_CASE(the_cuda_plugin_says_what_it_found) {
  const auto found = find_cuda();
  if (!found) {
    BOOST_TEST_MESSAGE("skipped: " << found.error().text);
    BOOST_TEST(found.error().text.find("libadafloor_cuda.so: not found in") == 0U);
    BOOST_TEST(!make_cuda_device(rank_id{0}));
    return;
  }
  BOOST_TEST_MESSAGE(found->devices << " devices: " << found->text);
  BOOST_TEST(!found->text.empty());
  BOOST_TEST(!open_cuda(found->devices)); // one too many
  BOOST_TEST(make_cuda_device(rank_id{5}).has_value() == (found->devices > 0));
}
