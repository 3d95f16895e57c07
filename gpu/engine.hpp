#pragma once
// The inference engine of one rank: Qwen3-MoE under expert parallelism, or dense Qwen3 alone.
//
// Exactness: for a request (prompt, sampling parameters, seed, random_key, weights) tokens and
// log-probabilities are the same bits whatever the batch, chunking, group, expert placement,
// migration, preemption or recomputation.
//
// Thread: one thread owns an engine and makes all calls, except those marked "any thread".
#include "gpu/communicator.hpp"
#include "gpu/expert_map.hpp"
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace adafloor {

using byte_string = std::vector<std::byte>;

/// Tokens per KV page. The order of attention sums is built on it, so it is a constant.
constexpr std::uint32_t kv_page_tokens = 16;

/// What keys and values are kept as. bfloat16 takes half the memory; a key or value is rounded (to
/// nearest, ties to even) when its position is computed and widened where it is read, so results
/// are as independent of batch, group and moves as with float32, but they are not those of float32.
enum class kv_dtype : std::uint8_t { float32, bfloat16 };
/// "float32", "bfloat16".
const char* to_string(kv_dtype type);
/// Errors: bad_input that says what there is.
result<kv_dtype> parse_kv_dtype(const std::string& text);

/// Facts of a loaded model that a scheduler or planner needs.
struct model_facts {
  std::uint32_t layers = 0, hidden = 0, vocabulary = 0;
  std::uint32_t experts = 0;                ///< 0: dense
  std::uint32_t experts_per_token = 0;      ///< 0: dense
  std::uint32_t max_positions = 0;          ///< prompt + response never exceed it
  std::uint64_t kv_page_bytes = 0;          ///< one page: all layers of kv_page_tokens positions
  std::uint64_t expert_bytes = 0;           ///< one expert of all layers
  std::uint64_t dense_bytes = 0;            ///< everything that is not an expert, as resident
  std::vector<token_id> eos_tokens;         ///< ascending
  std::uint64_t kv_page_resident_bytes = 0; ///< in whole pages of the system, as budgets count
  std::uint64_t expert_resident_bytes = 0;  ///< likewise
};

struct emulation; // gpu/emulated.hpp
class device;     // gpu/device.hpp

struct engine_options {
  rank_id self;
  std::uint32_t world_size = 1; ///< gives the home map; must divide the experts of an MoE model
  expert_map owners;            ///< initial placement; empty: the home map
  weights_id weights_version;
  std::uint32_t kv_pages = 1024;        ///< capacity of the KV pool
  kv_dtype kv_type = kv_dtype::float32; ///< of its pages; an emulated device's have no type
  std::uint32_t max_num_seqs = 64;      ///< requests that run at the same time
  std::uint32_t prefill_budget = 256;   ///< prompt tokens computed per step, all requests together
  /// Response tokens for which pages are promised at admission and before a move; 0: the whole
  /// max_tokens, then nothing is ever preempted. Otherwise a request that outgrows the promise
  /// takes free pages, and when there are none the latest admitted request is preempted (counted,
  /// recomputed).
  std::uint32_t reserved_response_tokens = 0;
  /// Bound on resident experts (each counts once, with all its layers); 0: no bound.
  std::uint32_t expert_slots = 0;
  /// Budget that dense weights, resident and reserved experts and KV pages share; 0: none. The KV
  /// pool has the pages that the others leave, at most `kv_pages`: it shrinks when experts are
  /// prepared and grows when they are given back. Buffers of a running step are not counted.
  std::uint64_t memory_bytes = 0;
  /// Null: the engine computes. Else it is emulated, and the folder that it loads is only a name.
  std::shared_ptr<const emulation> emulated;
  /// What to compute on; unset: this machine's CPU.
  std::function<result<std::unique_ptr<device>>()> make_device;
};

/// Temperature 0 is greedy: the highest logit, the lowest id among equals.
struct sampling_spec {
  float temperature = 1.0F;
  float top_p = 1.0F;      ///< (0, 1]; 1: off
  std::uint32_t top_k = 0; ///< 0: off
  std::uint64_t seed = 0;
};

struct request_spec {
  request_id id;
  /// Names the random stream together with sampling.seed and the position. Must not depend on
  /// placement: derive it from the prompt's id and the sample's number.
  std::uint64_t random_key = 0;
  std::vector<token_id> prompt;
  std::uint32_t max_tokens = 0; ///< response tokens, those of `resumed` included
  sampling_spec sampling;
  bool ignore_eos = false;
  bool keep_logits = false; ///< return the logits of every position, the last token's included
  /// Response tokens that exist already (crash rebuild): they are prefilled, then generation goes
  /// on. `resumed_logprobs` has the same length.
  std::vector<token_id> resumed;
  std::vector<float> resumed_logprobs;
  /// Not empty: score these response tokens instead of generating (stop is `scored`).
  std::vector<token_id> forced;
};

enum class stop_reason : std::uint8_t { eos, length, aborted, scored };
/// "eos", "length", "aborted", "scored".
const char* to_string(stop_reason reason);

struct request_output {
  request_id id;
  std::vector<token_id> tokens; ///< response only, the EOS token included
  /// ln of each token's probability under the model's own distribution (temperature 1, nothing
  /// truncated), whatever the sampling parameters.
  std::vector<float> logprobs;
  stop_reason stop = stop_reason::length;
  std::vector<float> logits; ///< keep_logits: [prompt + response positions][vocabulary], else empty
};

/// A token that a step produced; the token log of crash recovery is made of these.
struct token_event {
  request_id id;
  std::uint32_t index = 0; ///< 0-based in the response
  token_id token = 0;
  float logprob = 0;
};

struct request_progress {
  request_id id;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t response_tokens = 0; ///< generated so far
  std::uint32_t computed = 0;        ///< positions whose KV exists
  enum state_kind : std::uint8_t { waiting, running, held } state = waiting; ///< held: exported
};

struct engine_counters {
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;        ///< positions computed for own requests
  std::uint64_t expert_rows = 0; ///< (row, expert) pairs computed here, for anybody
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_tokens = 0; ///< admitted again after a preemption
  std::uint64_t received_tokens = 0;   ///< of requests that came from other ranks
  std::uint64_t shared_pages = 0;      ///< prompt pages taken over from another request
};

struct step_output {
  /// Of every member, by position in the communicator; just `mine` where no communicator was used.
  std::vector<step_header> headers;
  std::vector<token_event> tokens;
  std::vector<request_output> finished;
  std::uint32_t live_requests = 0; ///< after the step: waiting and running
  std::uint32_t rows = 0;          ///< own positions computed in this step
  std::uint32_t expert_rows = 0;   ///< (row, expert) pairs computed in this step
  /// Decode steps that this one covers, the same on all members: 1, except on an emulated device.
  std::uint32_t decode_steps = 1;
  /// The step began with a pause of the group that lasted until here on the device's clock; earlier
  /// than the step's begin: there was none.
  time_point paused_until;
  microseconds compute{0};  ///< wall time outside the communicator
  microseconds exchange{0}; ///< wall time inside the communicator
};

/// A piece of time on a device's clock.
struct device_pause {
  time_point begin, end;
};

struct kv_usage {
  std::uint32_t capacity = 0; ///< pages
  std::uint32_t used = 0;     ///< pages with a reference
  std::uint32_t promised = 0; ///< pages that admitted requests may still take without asking
  std::uint32_t available() const { return capacity - used - promised; }
};

/// What this rank's memory holds, in bytes.
struct memory_usage {
  std::uint64_t budget = 0;  ///< 0: none
  std::uint64_t dense = 0;   ///< weights that are not experts
  std::uint64_t experts = 0; ///< resident and reserved
  std::uint64_t kv = 0;      ///< pages with memory behind them, used or free
  std::uint64_t total() const { return dense + experts + kv; }
};

struct tensor_digest {
  std::string name;
  std::uint64_t digest = 0; ///< over type, shape and bytes as stored
  friend bool operator==(const tensor_digest& a, const tensor_digest& b) {
    return a.name == b.name && a.digest == b.digest;
  }
};

/// Any number of tensors as one figure, whatever the order: a sum modulo 2^64 of a hash of each
/// one's name and digest.
struct tensor_set {
  std::uint32_t tensors = 0;
  std::uint64_t digest = 0;
  void add(const tensor_digest& tensor);
};

/// Every tensor of a model folder, each read once. Errors: as engine::load.
result<tensor_set> checkpoint_tensors(const std::string& model_dir);

/// An expert for another rank to read in place. It stays as it is while `owner` is held, whatever
/// becomes of the slot.
struct expert_loan {
  bytes_view weights;
  byte_string foot; ///< says what they are; holds their checksum
  std::shared_ptr<const void> owner;
};

struct expert_weights;

/// Memory for an expert that a transfer writes straight where the expert will lie. Nothing stands
/// behind it before it is written. Given up where it is not imported.
struct expert_landing {
  std::byte* weights = nullptr;
  std::size_t weights_bytes = 0;
  std::uint64_t digest = 0; ///< wide_digest64 of the weights, from whoever wrote them
  byte_string foot;         ///< of the size that a loan's has
  std::shared_ptr<expert_weights> memory;
};

class kv_pool;

/// Full pages of a request for another rank to read in place. They count as used, and are neither
/// freed nor written, until engine::take_back, whatever becomes of the request or of the pool.
struct page_loan {
  std::vector<bytes_view> pages; ///< in order, each as large as all others
  byte_string foot;              ///< says what the pages are; holds a checksum of each
  std::shared_ptr<kv_pool> pool;
  std::vector<std::uint32_t> numbers; ///< of the pages, in the pool
};

/// Pages of an import for a transfer to write into before anybody knows what they are. They count
/// as used until engine::import_landed or engine::drop_landing.
struct page_landing {
  std::vector<std::byte*> pages;
  std::vector<std::uint64_t> digests; ///< wide_digest64 of each page, from whoever wrote it
  std::size_t page_bytes = 0;         ///< of each
  std::shared_ptr<kv_pool> pool;
  std::vector<std::uint32_t> numbers; ///< of the pages, in the pool
};

class engine {
public:
  /// Reads a Hugging Face folder: config.json, generation_config.json (optional), model.safetensors
  /// or its sharded form. Only the experts of `options.self` are materialised. Errors: bad_input
  /// naming file, key or tensor, what was found and what is allowed.
  static result<std::unique_ptr<engine>> load(const std::string& model_dir, engine_options options);
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  const model_facts& facts() const;
  const engine_counters& counters() const;
  weights_id weights_version() const;
  const std::string& model_dir() const;

  // --- requests ---------------------------------------------------------------------------------

  /// Queues a request; it is admitted by a later step, first come first served, when a sequence
  /// slot and the KV pages that `reserved_response_tokens` asks for are free. Errors: bad_input for
  /// unknown token ids, an empty prompt, a known id, more positions than the model has, or more
  /// pages than the whole pool has.
  result<void> add_request(request_spec spec);

  /// Ends a request now and returns what it has. Errors: bad_input when the id is not known.
  result<request_output> abort_request(request_id id);

  /// Waiting and running; requests held by an export do not count.
  std::uint32_t live_requests() const;
  /// In order of arrival.
  std::vector<request_progress> requests() const;

  // --- the step ---------------------------------------------------------------------------------

  /// One decode step: every running request gets one token or a chunk of its prefill. With nothing
  /// live it still takes part in every exchange and serves its experts. `mine` is sent as it is.
  /// `group` may be null for a dense model or when this rank owns all experts; for a dense model
  /// with a group only the headers are exchanged. Members must all use the same expert map.
  /// A failed step (communicator's errors; `internal` for a member that breaks the protocol)
  /// changes nothing: another step, with any communicator, computes the same again. Only after
  /// `internal` for logits that are not finite (damaged weights) is the engine of no more use.
  /// `hold`: no time may pass in this step, because the group waits for a decision; an emulated
  /// device then covers 0 decode steps, one that computes pays no heed.
  result<step_output> step(communicator* group, const step_header& mine, bool hold = false);

  // --- time -------------------------------------------------------------------------------------
  // On a device that computes everything takes the time that it takes, and these do nothing.

  /// The device's clock. That of an emulated device may be ahead of the machine's: wait until then
  /// before the next call that passes time. Read only by the engine's thread.
  time_point now() const;
  /// All members call it before the first step of a rollout, to agree on when it began. Errors: the
  /// communicator's.
  result<void> start_rollout(communicator* group);
  /// The group contracts: the pause of the exit passes.
  void pass_exit(std::size_t from, std::size_t to);
  /// The full world is back, `group` its communicator: members agree on the time, and the pause of
  /// a restoration passes. Errors: as above.
  result<device_pause> pass_restore(communicator* group);

  // --- KV pool ----------------------------------------------------------------------------------

  kv_usage kv() const;
  memory_usage memory() const;
  /// Sets `kv_pages`. Errors: refused when more than `pages` are used or promised; bad_input when
  /// 0.
  result<void> set_kv_capacity(std::uint32_t pages);

  // --- experts (map changes happen between steps) -----------------------------------------------

  const expert_map& owners() const;
  expert_map home_map() const;

  /// Reserves a slot for every expert that this rank owns under `next` and has not got, and says
  /// which. Replaces an earlier preparation. With a memory budget the KV pool shrinks first.
  /// Errors: bad_input (wrong size), refused (slots; or the experts would leave too few KV pages
  /// for what is used and promised, or for the largest request alone), with figures; nothing
  /// changes then.
  result<std::vector<std::uint32_t>> prepare_experts(const expert_map& next);
  /// Releases reserved slots and drops what was brought in for them; the KV pool grows back.
  void cancel_prepare();

  /// One expert of all layers, where it lies. Any thread, also during a step. Errors: bad_input
  /// when the expert is not resident.
  result<expert_loan> lend_expert(std::uint32_t expert) const;
  /// Any thread, also during a step.
  expert_landing open_expert_landing() const;
  /// Puts the weights of a loan, with their digest and its foot, into their reserved slot: they
  /// stay where they were landed. Any thread, also during a step. Idempotent. Errors: bad_input for
  /// damage, another model or version, or an expert that was not prepared.
  result<void> import_expert(expert_landing landed);
  /// Reads experts from the checkpoint into their reserved slots (recovery, home). Any thread.
  /// Errors: bad_input as in load, or when a tensor is not the one that was loaded before.
  result<void> reload_experts(const std::vector<std::uint32_t>& experts);

  /// Resident experts, ascending. Any thread.
  std::vector<std::uint32_t> resident_experts() const;

  /// From the next step on `next` holds. Verifies that each expert has an owner in `members` and
  /// that all experts of this rank are resident; drops nothing. Errors: refused, naming the expert;
  /// the old map stays.
  result<void> switch_map(epoch_id epoch, const expert_map& next,
                          const std::vector<rank_id>& members);
  /// Epoch given to the last switch_map; 0 before.
  epoch_id map_epoch() const;
  /// Frees every expert that this rank does not own; returns how many. The KV pool grows.
  std::uint32_t drop_unowned();

  // --- weights ----------------------------------------------------------------------------------

  /// Replaces all weights by those of another folder of the same architecture, through the live
  /// expert map; the KV pool is empty afterwards. All or nothing, so old and new weights are both
  /// there for a while: in the memory of the KV pages and, if those are fewer, beyond the budget.
  /// `expected`: digests that must match where names match. Errors: busy while requests are held,
  /// waiting or running; bad_input for another architecture, missing or surplus tensors, shapes,
  /// digests, or a version that is not greater than the present one.
  result<void> update_weights(const std::string& model_dir, weights_id version,
                              const std::vector<tensor_digest>& expected = {});
  /// Of every tensor that this rank read from the checkpoint, by name.
  std::vector<tensor_digest> digests() const;

  // --- moving a request to another rank ---------------------------------------------------------
  // Source: full_pages / lend_pages while it runs, export_remainder (holds it), then
  // release_exported (destination committed) or resume_exported (it did not).
  // Destination: begin_import, import_pages (any order, idempotent), finish_import or
  // cancel_import. The request continues with the same bits.

  /// Leading KV pages that are full and so never change again. Errors: bad_input for an unknown id.
  result<std::uint32_t> full_pages(request_id id) const;
  /// Pages [first, first + count), in place, until take_back. Errors: bad_input when not full.
  result<page_loan> lend_pages(request_id id, std::uint32_t first, std::uint32_t count);
  /// Nobody reads the pages any more.
  static void take_back(page_loan loan);
  /// Everything that is not in the first `pages_sent` pages: specification, tokens,
  /// log-probabilities, remaining pages. The request stops here until released or resumed.
  result<byte_string> export_remainder(request_id id, std::uint32_t pages_sent);
  /// Frees a held request. Errors: bad_input when it is not held.
  result<void> release_exported(request_id id);
  /// A held request runs again. Errors: bad_input when it is not held.
  result<void> resume_exported(request_id id);

  /// Promises `pages` pages and a sequence slot. Errors: busy when they are not there, bad_input
  /// for a known id.
  result<void> begin_import(request_id id, std::uint32_t pages);
  /// Pages that begin_import must ask for, elsewhere, for a request of this rank: by the rule of
  /// admission, and at least those of the tokens that it has. Errors: bad_input for an unknown id.
  result<std::uint32_t> pages_to_move(request_id id) const;
  /// `blob`: the pages of a loan, in order, and then its foot. A request that has outgrown what
  /// was promised takes free pages. Errors: bad_input for damage, another model or version; busy
  /// when there is no page.
  result<void> import_pages(request_id id, bytes_view blob);
  /// Pages that the import was promised, at most `count`; none for an unknown id.
  page_landing open_landing(request_id id, std::uint32_t count);
  /// The same as import_pages, for pages that lie in the landing's first places, each with its
  /// digest: they stay where they are. Whatever is not imported goes back to the import, also with
  /// an error.
  result<void> import_landed(request_id id, page_landing landing, bytes_view foot);
  /// Nobody writes into the pages any more. The import may have ended.
  void drop_landing(request_id id, page_landing landing);
  /// The request is live here afterwards. Errors: bad_input for damage, another model or version,
  /// or pages that are missing (the text says which); the import stays open.
  result<void> finish_import(bytes_view remainder);
  /// Frees what begin_import and import_pages took. Unknown ids are ignored.
  void cancel_import(request_id id);

  /// export_remainder with no page sent before.
  result<byte_string> export_request(request_id id);
  /// begin_import and finish_import of export_request's blob.
  result<void> import_request(bytes_view blob);

private:
  struct state;
  explicit engine(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

} // namespace adafloor
