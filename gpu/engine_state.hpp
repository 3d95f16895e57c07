#pragma once
// The inside of `engine`, shared by its source files only.
#include "gpu/device.hpp"
#include "gpu/engine.hpp"

#include <list>
#include <mutex>
#include <unordered_map>

namespace adafloor {

/// The page before (-1: none) and the tokens of a full prompt page.
using shared_page_key = std::pair<std::int64_t, page_tokens>;

/// A request anywhere between arrival and its end.
struct live_request {
  request_spec spec;            ///< prompt, resumed and forced are moved into `tokens`
  std::vector<token_id> tokens; ///< prompt, then response
  std::uint32_t prompt_tokens = 0;
  std::vector<float> logprobs; ///< of the response, as far as known
  std::vector<float> logits;   ///< keep_logits: [computed][vocabulary]
  bool forced = false;
  std::optional<stop_reason> stop; ///< set: no more tokens will come

  std::uint32_t computed = 0;    ///< positions with KV
  std::vector<page_index> pages; ///< page table
  std::uint32_t promised = 0;    ///< pages promised to it and not taken yet
  bool preempted = false;        ///< waits to be computed again

  request_progress::state_kind state = request_progress::waiting;

  std::uint32_t response_tokens() const {
    return forced ? static_cast<std::uint32_t>(logprobs.size())
                  : static_cast<std::uint32_t>(tokens.size()) - prompt_tokens;
  }
  bool finished() const { return stop && (!spec.keep_logits || computed == tokens.size()); }
};

/// A request on its way in: promised pages, some of them filled.
struct pending_import {
  std::uint32_t promised = 0; ///< pages still promised
  std::map<std::uint32_t, page_index> pages;
};

/// What a request's blobs come from and must go to.
struct blob_origin {
  std::uint64_t fingerprint = 0; ///< of the architecture
  weights_id version;
  kv_dtype kv = kv_dtype::float32;
};

struct engine::state {
  std::string dir;
  engine_options options;
  model_config config;
  model_facts facts;
  std::uint64_t fingerprint = 0; ///< of the architecture; stands in every blob
  weights_id version;
  engine_counters counters;

  std::unique_ptr<adafloor::device> device;
  std::unique_ptr<expert_store> experts;
  expert_map owners;
  epoch_id map_epoch;
  std::vector<expert_ptr> serving; ///< by expert; null where this rank is not the owner
  mutable std::mutex digest_mutex; // guards digests
  std::map<std::string, std::uint64_t> digests;

  std::shared_ptr<kv_pool> pool; ///< page loans hold it, too

  std::list<live_request> requests; ///< in order of arrival
  std::unordered_map<request_id, std::list<live_request>::iterator> by_id;
  std::list<live_request*> waiting; ///< next first
  std::list<live_request*> running; ///< in order of admission
  std::map<request_id, pending_import> imports;

  blob_origin origin() const { return {fingerprint, version, pool->layout().type}; }

  // engine_requests.cpp
  live_request* find(request_id id);
  result<void> check(const request_spec& spec) const;
  std::uint32_t pages_for(std::uint64_t positions) const;
  void note_stop(live_request& r) const;
  void free_pages(live_request& r);
  void forget(live_request& r);
  request_output output_of(live_request& r, stop_reason stop) const;

  // engine_schedule.cpp
  std::uint32_t reservation_of(const live_request& r) const;
  struct chunk {
    live_request* request = nullptr;
    std::uint32_t rows = 0;
    std::uint32_t borrowed = 0; ///< pages just taken over that this very step fills
  };
  using page_table = std::map<shared_page_key, page_index>;
  void admit();
  std::vector<chunk> plan_step();
  std::uint32_t adopt_shared_pages(live_request& r, const page_table& in_flight);
  void give_back(const std::vector<chunk>& chunks);
  bool cover(live_request& r, std::uint32_t positions);
  void preempt(live_request& r);
  void publish_pages(const live_request& r, std::uint32_t before);
  step_outlook outlook() const;

  // engine_step.cpp
  result<void> decode_step(step_output* out);

  // engine_memory.cpp
  std::uint64_t weight_bytes(std::size_t resident_experts) const;
  std::uint32_t kv_room(std::size_t resident_experts) const;
  result<void> check_budget() const;
  result<void> make_room(std::size_t resident_experts) const;
  void resize_kv();

  // engine.cpp
  void serve_owned();
};

} // namespace adafloor
