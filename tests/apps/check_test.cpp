#define BOOST_TEST_MODULE check
#include "apps/check.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>

using namespace adafloor;

namespace {

job good() {
  job task;
  task.out_dir = "/tmp/adafloor-out";
  task.arms = {"vanilla", "natural"};
  task.ep.group_sizes = {8, 4, 2};
  return task;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_good_job_passes) {
  const auto checked = check_numbers(good());
  BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().text));
}

BOOST_AUTO_TEST_CASE(each_impossible_number_is_named) {
  const struct {
    std::function<void(job&)> spoil;
    const char* said;
  } cases[] = {
      {[](job& j) { j.world_size = 0; }, "--ranks 0: from 1 to 64"},
      {[](job& j) { j.ep.floor = 9; }, "--floor 9: more than the 8 ranks"},
      {[](job& j) { j.ep.floor = 1; }, "--floor 1: at least 2"},
      {[](job& j) {
         j.ep.group_sizes = {4, 2};
       },
       "must begin with the 8 ranks"},
      {[](job& j) {
         j.ep.group_sizes = {8, 4, 4};
       },
       "must fall"},
      {[](job& j) { j.ep.floor = 4; }, "2 is below the floor of 4"},
      {[](job& j) { j.arms = {}; }, "--arms: name at least one"},
      {[](job& j) { j.arms = {"fixed4"}; }, "--arms fixed4: unknown arm"},
      {[](job& j) {
         j.arms = {"vanilla", "vanilla"};
       },
       "stands there twice"},
      {[](job& j) { j.steps = 0; }, "--steps 0"},
      {[](job& j) { j.n = 0; }, "--n 0"},
      {[](job& j) { j.prompts_per_step = 12; }, "must be a multiple of the 8 ranks"},
      {[](job& j) { j.rollout.temperature = -1; }, "--temperature -1"},
      {[](job& j) { j.rollout.top_p = 0; }, "--top-p 0"},
      {[](job& j) { j.kv.page_tokens = 32; }, "--kv-page-tokens 32: the engine has 16"},
      {[](job& j) { j.kv.margin = 0.5; }, "--kv-margin 0.5"},
      {[](job& j) { j.kv.dtype = "fp8"; }, "--kv-dtype fp8: there are float32 and bfloat16"},
      {[](job& j) { j.device = "tpu"; }, "--device tpu"},
      {[](job& j) { j.transport.collective = "mpi"; }, "--collective mpi: there are ucx, nccl"},
      {[](job& j) {
         j.device = "emulated";
         j.transport.collective = "nccl";
       },
       "--collective nccl: --device emulated has no GPU memory"},
      {[](job& j) { j.sidecar.memory_bytes = 1; }, "--lease-memory-bytes 1: at least 16777216"},
      {[](job& j) { j.sidecar.cpus = {4000}; }, "--lease-cpus 4000: not a CPU"},
      {[](job& j) { j.transport.bind = "here"; }, "--bind here: must be an IPv4 address"},
      {[](job& j) { j.runtime.failure_ms = j.runtime.heartbeat_ms; }, "twice the heartbeat"},
      {[](job& j) { j.out_dir = "/dev/null/x"; }, "--out /dev/null/x: /dev/null is not a folder"},
  };
  for (const auto& c : cases) {
    auto task = good();
    c.spoil(task);
    const auto checked = check_numbers(task);
    BOOST_REQUIRE_MESSAGE(!checked.has_value(), c.said);
    BOOST_TEST((checked.error().code == error_code::bad_input));
    BOOST_TEST(checked.error().text.find(c.said) != std::string::npos,
               checked.error().text << " should say " << c.said);
  }
}
