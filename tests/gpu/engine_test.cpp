// Requests, failed steps, capacity, experts and weights of one engine and of small groups.
#define BOOST_TEST_MODULE engine
#include "tests/gpu/engine_world.hpp"
#include "tests/gpu/model_files.hpp"

#include <atomic>

using namespace adafloor;
using namespace adafloor::tests;

namespace {

std::unique_ptr<engine> load(engine_options options = {}) {
  return must(engine::load(collatz, options));
}

std::string refusal(engine& engine, const std::function<void(request_spec&)>& edit) {
  auto spec = sampled_request(5, 20);
  edit(spec);
  return text_of(engine.add_request(spec));
}

expert_map all_to(std::uint32_t rank) {
  return {std::vector<rank_id>(16, rank_id{rank})};
}

/// Rewrites a checkpoint's bfloat16 tensors whose name contains `part` as float32 of the same
/// value.
void widen(const std::string& path, const std::string& part) {
  const auto text = read_all(path);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  auto header = nlohmann::json::parse(text.substr(8, length));
  std::string data;
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t first = entry["data_offsets"][0], last = entry["data_offsets"][1];
    const auto begin = data.size();
    for (auto at = 8 + length + first; at < 8 + length + last; at += 2) {
      if (name.find(part) != std::string::npos) data.append(2, '\0'); // the lower half
      data.append(text, at, 2);
    }
    if (name.find(part) != std::string::npos) entry["dtype"] = "F32";
    entry["data_offsets"] = {begin, data.size()};
  }
  const auto changed = header.dump();
  length = changed.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  write_all(path, prefix + changed + data);
}

/// Three requests on two ranks of which one hands its experts over and leaves.
std::map<request_id, request_output> decoded(const std::string& model) {
  engine_world world(model, 2);
  for (std::uint64_t i = 1; i <= 3; ++i)
    must(world.at(1).add_request(sampled_request(i, 30)));
  for (int step = 0; step < 10; ++step)
    world.step();
  world.contract({rank_id{1}}, all_to(1));
  world.run();
  return world.outputs;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_type_that_experts_are_stored_in_changes_no_bit) {
  const auto half = collatz + "-bf16";
  scratch_folder one, all;
  one.copy_from(half);
  widen(one.file("model.safetensors"), "layers.1.mlp.experts.3.up_proj"); // then all are float32
  all.copy_from(half);
  widen(all.file("model.safetensors"), ".experts.");
  const auto expected = decoded(half);
  BOOST_TEST(expected.size() == 3U);
  BOOST_TEST(same_bits(decoded(one.path()), expected));
  BOOST_TEST(same_bits(decoded(all.path()), expected));
  auto small = must(engine::load(half, {})), large = must(engine::load(all.path(), {}));
  BOOST_TEST(2 * small->facts().expert_bytes == large->facts().expert_bytes);
  BOOST_TEST(contains(text_of(small->update_weights(all.path(), weights_id{1})),
                      "experts of another type"));
}

BOOST_AUTO_TEST_CASE(bad_requests_are_refused_by_name) {
  engine_options options;
  options.kv_pages = 4;
  auto e = load(options);
  auto has = [&](const std::function<void(request_spec&)>& edit, const std::string& part) {
    auto text = refusal(*e, edit);
    BOOST_TEST(contains(text, part), text);
    BOOST_TEST(contains(text, "request 5"), text);
  };
  has([](auto& s) { s.prompt[3] = 16; }, "prompt token 16 at position 3 is unknown");
  has([](auto& s) { s.prompt[3] = -1; }, "prompt token -1");
  has([](auto& s) { s.forced = {99}; }, "forced token 99");
  has([](auto& s) { s.prompt.clear(); }, "prompt has no tokens");
  has([](auto& s) { s.max_tokens = 0; }, "max_tokens is 0");
  has([](auto& s) { s.max_tokens = 3000; }, "max_position_embeddings 2048");
  has([](auto& s) { s.max_tokens = 60; }, "needs 5 KV pages, the pool has 4");
  has([](auto& s) { s.sampling.temperature = -1; }, "temperature");
  has([](auto& s) { s.sampling.top_p = 0; }, "top_p");
  has([](auto& s) { s.resumed = {1}; }, "log-probabilities");
  must(e->add_request(sampled_request(5, 20)));
  has([](auto&) {}, "already here");
}

BOOST_AUTO_TEST_CASE(admission_waits_for_pages_and_slots) {
  engine_options options;
  options.kv_pages = 5;
  options.max_num_seqs = 2;
  auto e = load(options);
  for (std::uint64_t id = 0; id < 4; ++id)
    must(e->add_request(sampled_request(id, 25))); // two pages each
  auto running = [&] {
    int n = 0;
    for (const auto& r : e->requests())
      n += r.state == request_progress::running ? 1 : 0;
    return n;
  };
  std::size_t finished = 0;
  while (e->live_requests() > 0) {
    finished += must(e->step(nullptr, {})).finished.size();
    BOOST_TEST(running() <= 2);
    BOOST_TEST(e->kv().used + e->kv().promised <= 5U);
  }
  BOOST_TEST(finished == 4U);
  BOOST_TEST(e->counters().preemptions == 0U);
}

BOOST_AUTO_TEST_CASE(abort_returns_what_there_is) {
  auto e = load();
  must(e->add_request(sampled_request(4, 60)));
  must(e->add_request(sampled_request(1, 60)));
  std::vector<token_id> seen;
  for (int i = 0; i < 12; ++i)
    for (const auto& event : must(e->step(nullptr, {})).tokens)
      if (event.id == request_id{4}) {
        BOOST_TEST(event.index == seen.size());
        seen.push_back(event.token);
      }
  auto out = must(e->abort_request(request_id{4}));
  BOOST_TEST((out.stop == stop_reason::aborted));
  BOOST_TEST(out.tokens == seen);
  BOOST_TEST(out.tokens.size() == 12U);
  BOOST_TEST(out.logprobs.size() == 12U);
  BOOST_TEST(contains(text_of(e->abort_request(request_id{4})), "not on this rank"));
  BOOST_TEST(e->live_requests() == 1U);
  must(e->abort_request(request_id{1}));
  BOOST_TEST(e->kv().used + e->kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(capacity_changes_at_run_time) {
  engine_options options;
  options.kv_pages = 8;
  auto e = load(options);
  must(e->add_request(sampled_request(4, 60)));
  must(e->step(nullptr, {}));
  auto refused = e->set_kv_capacity(4);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  must(e->set_kv_capacity(5));
  must(e->add_request(sampled_request(1, 60)));
  must(e->step(nullptr, {}));
  BOOST_TEST((e->requests()[1].state == request_progress::waiting));
  must(e->set_kv_capacity(10));
  must(e->step(nullptr, {}));
  BOOST_TEST((e->requests()[1].state == request_progress::running));
}

BOOST_AUTO_TEST_CASE(a_failed_step_changes_nothing) {
  engine_world steady(collatz, 2), shaken(collatz, 2);
  for (std::uint64_t id = 0; id < 4; ++id) {
    must(steady.at(id % 2).add_request(sampled_request(id, 40)));
    must(shaken.at(id % 2).add_request(sampled_request(id, 40)));
  }
  steady.run();
  auto dead = make_loopback_fabrics(2, std::chrono::milliseconds(20));
  for (int round = 0; shaken.live() > 0; ++round) {
    if (round % 7 == 3) { // the peer never comes: half a step is computed and thrown away
      auto group = must(dead[0]->make_group(epoch_id{900}, {rank_id{0}, rank_id{1}}));
      auto failed = shaken.at(0).step(group.get(), {epoch_id{900}, 0, epoch_id{900}, 1, 0});
      BOOST_REQUIRE(!failed);
      BOOST_TEST((failed.error().code == error_code::timed_out));
    }
    shaken.step();
  }
  BOOST_TEST(same_bits(steady.outputs, shaken.outputs));
}

BOOST_AUTO_TEST_CASE(pages_that_a_failed_step_was_to_fill_are_shared_by_nobody) {
  engine_options options;
  options.prefill_budget = 100; // the pages of the first request, not all rows of the others
  engine_world steady(collatz, 2, options), shaken(collatz, 2, options);
  for (auto* world : {&steady, &shaken})
    for (std::uint64_t id = 0; id < 3; ++id) {
      auto spec = sampled_request(id, 20);
      spec.prompt.assign(90, static_cast<token_id>(3));
      must(world->at(0).add_request(spec));
    }
  auto dead = make_loopback_fabrics(2, std::chrono::milliseconds(20));
  auto group = must(dead[0]->make_group(epoch_id{900}, {rank_id{0}, rank_id{1}}));
  BOOST_REQUIRE(!shaken.at(0).step(group.get(), {epoch_id{900}, 0, epoch_id{900}, 1, 0}));
  BOOST_TEST(shaken.at(0).counters().shared_pages == 0U);
  for (const auto& r : shaken.at(0).requests())
    BOOST_TEST(r.computed == 0U);
  // Without the first nobody computes the pages that the others were to take over from it.
  for (auto* world : {&steady, &shaken})
    must(world->at(0).abort_request(request_id{0}));
  steady.run();
  shaken.run();
  BOOST_TEST(same_bits(steady.outputs, shaken.outputs));
  BOOST_TEST(shaken.at(0).kv().used + shaken.at(0).kv().promised == 0U);
}

BOOST_AUTO_TEST_CASE(members_with_different_maps_are_found_out) {
  engine_world world(collatz, 2);
  must(world.at(1).prepare_experts(all_to(1)));
  for (auto expert : must(world.at(1).prepare_experts(all_to(1)))) {
    auto blob = must(expert_blob(world.at(0), expert));
    must(import_blob(world.at(1), blob));
  }
  must(world.at(1).switch_map(epoch_id{2}, all_to(1), world.members()));
  auto fabrics = make_loopback_fabrics(2);
  result<step_output> results[2];
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      auto group = *fabrics[r]->make_group(epoch_id{2}, world.members());
      results[r] = world.at(r).step(group.get(), {epoch_id{2}, 0, epoch_id{2}, 0, 0});
    });
  for (auto& thread : threads)
    thread.join();
  BOOST_TEST(contains(text_of(results[0]), "frame of rank 1 in step 0: uses another expert map"));
  BOOST_TEST(contains(text_of(results[1]), "frame of rank 0 in step 0: uses another expert map"));
}

BOOST_AUTO_TEST_CASE(experts_come_only_into_reserved_slots) {
  engine_world world(collatz, 2);
  auto& self = world.at(1);
  BOOST_TEST((self.resident_experts() == std::vector<std::uint32_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  auto blob = must(expert_blob(world.at(0), 3));
  BOOST_TEST(contains(text_of(import_blob(self, blob)), "expert 3 has no reserved slot"));
  BOOST_TEST(contains(text_of(expert_blob(world.at(0), 9)), "expert 9 is not resident"));
  auto missing = must(self.prepare_experts(all_to(1)));
  BOOST_TEST((missing == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  auto damaged = blob;
  damaged[blob.size() / 2] ^= std::byte{1};
  BOOST_TEST(contains(text_of(import_blob(self, damaged)), "checksum"));
  BOOST_TEST(contains(text_of(import_blob(self, byte_string(9))), "checksum"));
  must(import_blob(self, blob));
  must(import_blob(self, blob));
  BOOST_TEST(contains(text_of(self.switch_map(epoch_id{2}, all_to(1), {rank_id{1}})),
                      "expert 0 belongs to rank 1 but is not resident"));
  BOOST_TEST((self.owners() == self.home_map()));
  self.cancel_prepare();
  BOOST_TEST(self.resident_experts().size() == 8U);
  BOOST_TEST(contains(text_of(import_blob(self, blob)), "no reserved slot"));
  BOOST_TEST(contains(text_of(self.switch_map(epoch_id{2}, all_to(0), {rank_id{1}})),
                      "expert 0 belongs to rank 0, which is no member"));
}

BOOST_AUTO_TEST_CASE(slots_bound_the_resident_experts) {
  engine_options options;
  options.expert_slots = 10;
  engine_world world(collatz, 2, options);
  auto map = world.at(1).home_map();
  map.owner_of[0] = map.owner_of[1] = rank_id{1};
  BOOST_TEST(must(world.at(1).prepare_experts(map)).size() == 2U);
  auto refused = world.at(1).prepare_experts(all_to(1));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  BOOST_TEST(contains(refused.error().text, "16 experts"));
}

BOOST_AUTO_TEST_CASE(experts_are_exported_while_steps_run) {
  engine_world world(collatz, 2);
  for (std::uint64_t id = 0; id < 6; ++id)
    must(world.at(id % 2).add_request(sampled_request(id, 60)));
  std::atomic<bool> stop{false};
  std::atomic<int> moved{0};
  std::thread puller([&] { // the pull of a contraction that is then given up, again and again
    while (!stop) {
      auto missing = world.at(1).prepare_experts(all_to(1));
      for (auto expert : *missing)
        if (auto blob = expert_blob(world.at(0), expert))
          moved += import_blob(world.at(1), *blob) ? 1 : 0;
      world.at(1).cancel_prepare();
    }
  });
  world.run();
  stop = true;
  puller.join();
  BOOST_TEST(moved.load() > 8);
  engine_world quiet(collatz, 1);
  for (std::uint64_t id = 0; id < 6; ++id)
    must(quiet.at(0).add_request(sampled_request(id, 60)));
  quiet.run();
  BOOST_TEST(same_bits(quiet.outputs, world.outputs));
}

BOOST_AUTO_TEST_CASE(new_weights_are_verified_before_they_serve) {
  auto next = golden + "models/collatz-moe-v1";
  auto e = load();
  auto before = e->digests();
  BOOST_TEST(before.size() == 4U * (9 + 3 * 16) + 3);
  auto expected = must(engine::load(next, {}))->digests();
  BOOST_TEST(contains(text_of(e->update_weights(next, weights_id{0})), "version is 0"));
  auto wrong = expected;
  wrong[5].digest ^= 1;
  BOOST_TEST(contains(text_of(e->update_weights(next, weights_id{1}, wrong)), wrong[5].name));
  BOOST_TEST(contains(text_of(e->update_weights(golden + "models/arith-dense", weights_id{1})),
                      "another architecture"));
  BOOST_TEST((e->digests() == before));
  must(e->add_request(sampled_request(1, 20)));
  auto busy = e->update_weights(next, weights_id{1}, expected);
  BOOST_REQUIRE(!busy);
  BOOST_TEST((busy.error().code == error_code::busy));
  must(e->abort_request(request_id{1}));
  auto old_blob = must(expert_blob(*e, 0));
  must(e->update_weights(next, weights_id{1}, expected));
  BOOST_TEST((e->digests() == expected));
  BOOST_TEST((e->weights_version() == weights_id{1}));
  BOOST_TEST(e->kv().used == 0U);
  BOOST_TEST(contains(text_of(import_blob(*e, old_blob)), "weights version 0"));

  must(e->add_request(sampled_request(1, 40)));
  auto fresh = must(engine::load(next, {}));
  must(fresh->add_request(sampled_request(1, 40)));
  std::vector<float> a, b;
  while (e->live_requests() > 0)
    for (const auto& event : must(e->step(nullptr, {})).tokens)
      a.push_back(event.logprob);
  while (fresh->live_requests() > 0)
    for (const auto& event : must(fresh->step(nullptr, {})).tokens)
      b.push_back(event.logprob);
  BOOST_TEST((a == b));
}

/// After experts have moved, those of the new policy go to where they live now.
BOOST_AUTO_TEST_CASE(update_follows_the_live_map) {
  const auto next = golden + "models/collatz-moe-v1";
  engine_world world(collatz, 2), fresh(next, 1);
  world.contract({rank_id{1}}, all_to(1));
  must(world.at(1).update_weights(next, weights_id{1}));
  BOOST_TEST(world.at(1).resident_experts().size() == 16U);
  must(world.at(1).add_request(sampled_request(1, 20)));
  must(fresh.at(0).add_request(sampled_request(1, 20)));
  world.run();
  fresh.run();
  BOOST_TEST(same_bits(fresh.outputs, world.outputs));
}

BOOST_AUTO_TEST_CASE(no_kv_and_no_prefix_outlives_its_weights) {
  const auto next = golden + "models/collatz-moe-v1";
  const auto spec_of = [](std::uint64_t id) {
    auto spec = sampled_request(id, 20);
    spec.prompt.assign(90, static_cast<token_id>(3)); // whole pages that samples share
    return spec;
  };
  auto old = load();
  engine_world fresh(next, 1);
  must(old->add_request(spec_of(1)));
  for (int i = 0; i < 10; ++i)
    must(old->step(nullptr, {}));
  const auto pages = pages_of(*old, request_id{1}, 0, 2);
  must(old->abort_request(request_id{1}));
  must(old->update_weights(next, weights_id{1}));
  must(old->begin_import(request_id{7}, 4));
  BOOST_TEST(contains(text_of(old->import_pages(request_id{7}, view(pages))), "weights version 0"));
  old->cancel_import(request_id{7});
  std::map<request_id, request_output> outputs;
  for (std::uint64_t id : {1, 2}) {
    must(old->add_request(spec_of(id)));
    must(fresh.at(0).add_request(spec_of(id)));
  }
  while (old->live_requests() > 0)
    for (auto& f : must(old->step(nullptr, {})).finished)
      outputs[f.id] = f;
  fresh.run();
  BOOST_TEST(same_bits(fresh.outputs, outputs));
  BOOST_TEST(old->counters().shared_pages == fresh.at(0).counters().shared_pages);
}

BOOST_AUTO_TEST_CASE(an_expert_that_comes_twice_takes_one_slot) {
  engine_options options;
  options.expert_slots = 10; // eight of its own and, exactly, these two
  engine_world world(collatz, 2, options);
  auto& self = world.at(1);
  auto map = self.home_map();
  map.owner_of[0] = map.owner_of[1] = rank_id{1};
  BOOST_TEST(must(self.prepare_experts(map)).size() == 2U);
  for (std::uint32_t expert : {0U, 0U, 1U, 0U, 8U}) // 8 is there from the beginning
    must(import_blob(self, must(expert_blob(world.at(expert == 8 ? 1 : 0), expert))));
  BOOST_TEST(
      (self.resident_experts() == std::vector<std::uint32_t>{0, 1, 8, 9, 10, 11, 12, 13, 14, 15}));
  must(self.switch_map(epoch_id{2}, map, world.members()));
  BOOST_TEST(self.memory().experts == 10 * self.facts().expert_resident_bytes);
}

BOOST_AUTO_TEST_CASE(reload_notices_a_changed_checkpoint) {
  scratch_folder folder;
  folder.copy_from(collatz);
  engine_world world(folder.path(), 2);
  auto home = world.at(0).home_map();
  world.contract({rank_id{1}}, all_to(1));
  BOOST_TEST(world.at(0).drop_unowned() == 0U); // rank 0 still has the old map
  must(world.at(0).switch_map(epoch_id{3}, all_to(1), {rank_id{1}}));
  BOOST_TEST(world.at(0).drop_unowned() == 8U);
  auto missing = must(world.at(0).prepare_experts(home));
  BOOST_TEST(missing.size() == 8U);
  auto weights = read_all(folder.file("model.safetensors"));
  auto changed = weights;
  for (std::size_t i = changed.size() / 2; i < changed.size(); i += 64)
    changed[i] = static_cast<char>(changed[i] ^ 1);
  for (std::size_t i = 200'000; i < changed.size(); i += 64)
    changed[i] = static_cast<char>(changed[i] ^ 1);
  write_all(folder.file("model.safetensors"), changed);
  BOOST_TEST(contains(text_of(world.at(0).reload_experts(missing)), "has changed since"));
  write_all(folder.file("model.safetensors"), weights);
  must(world.at(0).reload_experts(missing));
  must(world.at(0).switch_map(epoch_id{4}, home, {rank_id{0}, rank_id{1}}));
}

BOOST_AUTO_TEST_CASE(damaged_and_foreign_request_blobs) {
  engine_world world(collatz, 2);
  must(world.at(0).add_request(sampled_request(1, 60)));
  for (int i = 0; i < 30; ++i)
    world.step();
  auto full = must(world.at(0).full_pages(request_id{1}));
  BOOST_TEST(full == 2U);
  BOOST_TEST(contains(text_of(world.at(0).lend_pages(request_id{1}, 1, 2)), "2 are full"));
  auto pages = pages_of(world.at(0), request_id{1}, 1, 1);
  auto& to = world.at(1);
  BOOST_TEST(contains(text_of(to.import_pages(request_id{1}, view(pages))), "no import was begun"));
  auto busy = to.begin_import(request_id{1}, 5000);
  BOOST_REQUIRE(!busy);
  BOOST_TEST((busy.error().code == error_code::busy));
  must(to.begin_import(request_id{1}, must(world.at(0).pages_to_move(request_id{1}))));
  BOOST_TEST(contains(text_of(to.begin_import(request_id{1}, 1)), "already here"));
  must(to.import_pages(request_id{1}, view(pages)));
  auto damaged = pages;
  damaged[100] ^= std::byte{4};
  BOOST_TEST(contains(text_of(to.import_pages(request_id{1}, view(damaged))), "checksum"));
  auto remainder = must(world.at(0).export_remainder(request_id{1}, 2));
  BOOST_TEST(world.at(0).live_requests() == 0U);
  BOOST_TEST(contains(text_of(to.finish_import(view(remainder))), "KV page 0 is missing"));
  to.cancel_import(request_id{1});
  to.cancel_import(request_id{1});
  BOOST_TEST(to.kv().used + to.kv().promised == 0U);
  must(world.at(0).resume_exported(request_id{1}));
  BOOST_TEST(contains(text_of(world.at(0).release_exported(request_id{1})), "not held"));
  world.run();
  BOOST_TEST(world.outputs.size() == 1U);
}

BOOST_AUTO_TEST_CASE(pages_of_another_type_are_half_as_large_and_refused_by_name) {
  engine_options half;
  half.kv_type = kv_dtype::bfloat16;
  engine_world wide(collatz, 1), narrow(collatz, 1, half);
  BOOST_TEST(narrow.at(0).facts().kv_page_bytes * 2 == wide.at(0).facts().kv_page_bytes);
  must(wide.at(0).add_request(sampled_request(1, 60)));
  for (int i = 0; i < 30; ++i)
    wide.step();
  const auto whole = must(wide.at(0).export_request(request_id{1}));
  const auto refused = text_of(narrow.at(0).import_request(view(whole)));
  BOOST_TEST(contains(refused, "request 1: has KV pages of float32, this rank keeps bfloat16"),
             refused);
  must(narrow.at(0).begin_import(request_id{1}, 8));
  const auto pages = pages_of(wide.at(0), request_id{1}, 0, 2);
  auto landing = narrow.at(0).open_landing(request_id{1}, 2);
  const bytes_view foot{pages.data() + 2 * wide.at(0).facts().kv_page_bytes,
                        pages.size() - 2 * wide.at(0).facts().kv_page_bytes};
  BOOST_TEST(contains(text_of(narrow.at(0).import_landed(request_id{1}, landing, foot)),
                      "has KV pages of float32"));
  narrow.at(0).cancel_import(request_id{1});
  BOOST_TEST(narrow.at(0).kv().used + narrow.at(0).kv().promised == 0U);
  must(wide.at(0).resume_exported(request_id{1}));
}

BOOST_AUTO_TEST_CASE(types_of_pages_have_names) {
  BOOST_TEST((must(parse_kv_dtype("bfloat16")) == kv_dtype::bfloat16));
  BOOST_TEST((must(parse_kv_dtype("float32")) == kv_dtype::float32));
  BOOST_TEST(text_of(parse_kv_dtype("fp8")) == "fp8: there are float32 and bfloat16");
}
