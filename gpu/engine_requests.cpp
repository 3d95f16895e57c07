// Requests: arrival, abort, inventory.
#include "gpu/engine_state.hpp"

#include <algorithm>
#include <cmath>

namespace adafloor {

namespace {

std::string label(request_id id) {
  return "request " + std::to_string(id.value);
}

result<void> check_tokens(request_id id, const char* what, const std::vector<token_id>& tokens,
                          std::uint32_t vocabulary) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || static_cast<std::uint32_t>(tokens[i]) >= vocabulary)
      return bad_input(label(id) + ": " + what + " token " + std::to_string(tokens[i])
                       + " at position " + std::to_string(i) + " is unknown, allowed are 0 to "
                       + std::to_string(vocabulary - 1));
  return {};
}

result<void> check_sampling(request_id id, const sampling_spec& s) {
  if (!(s.temperature >= 0.0F) || !std::isfinite(s.temperature))
    return bad_input(label(id) + ": temperature is " + std::to_string(s.temperature)
                     + ", allowed are finite numbers from 0 (greedy)");
  if (!(s.top_p > 0.0F) || s.top_p > 1.0F)
    return bad_input(label(id) + ": top_p is " + std::to_string(s.top_p)
                     + ", allowed is more than 0 and at most 1");
  return {};
}

} // namespace

const char* to_string(stop_reason reason) {
  switch (reason) {
  case stop_reason::eos:
    return "eos";
  case stop_reason::length:
    return "length";
  case stop_reason::aborted:
    return "aborted";
  case stop_reason::scored:
    return "scored";
  }
  return "?";
}

live_request* engine::state::find(request_id id) {
  auto i = by_id.find(id);
  return i == by_id.end() ? nullptr : &*i->second;
}

std::uint32_t engine::state::pages_for(std::uint64_t positions) const {
  return static_cast<std::uint32_t>((positions + kv_page_tokens - 1) / kv_page_tokens);
}

result<void> engine::state::check(const request_spec& spec) const {
  auto id = spec.id;
  if (by_id.count(id) > 0 || imports.count(id) > 0)
    return bad_input(label(id) + ": is already here");
  if (spec.prompt.empty()) return bad_input(label(id) + ": the prompt has no tokens");
  for (auto [what, tokens] :
       {std::pair{"prompt", &spec.prompt}, {"resumed", &spec.resumed}, {"forced", &spec.forced}})
    if (auto ok = check_tokens(id, what, *tokens, config.vocab_size); !ok) return ok;
  if (auto ok = check_sampling(id, spec.sampling); !ok) return ok;
  if (!spec.forced.empty() && !spec.resumed.empty())
    return bad_input(label(id) + ": has both forced and resumed tokens, allowed is one of them");
  if (spec.resumed.size() != spec.resumed_logprobs.size())
    return bad_input(label(id) + ": has " + std::to_string(spec.resumed.size())
                     + " resumed tokens and " + std::to_string(spec.resumed_logprobs.size())
                     + " log-probabilities, allowed are equal numbers");
  if (spec.keep_logits && options.emulated)
    return bad_input(label(id) + ": keeps its logits, but an emulated device has none");
  auto response = spec.forced.empty() ? std::uint64_t{spec.max_tokens} : spec.forced.size();
  if (response == 0 || spec.resumed.size() > response)
    return bad_input(label(id) + ": max_tokens is " + std::to_string(response)
                     + ", allowed is at least 1 and at least the "
                     + std::to_string(spec.resumed.size()) + " resumed tokens");
  auto positions = spec.prompt.size() + response;
  if (positions > config.max_position_embeddings)
    return bad_input(
        label(id) + ": prompt of " + std::to_string(spec.prompt.size()) + " and response of "
        + std::to_string(response) + " tokens exceed max_position_embeddings "
        + std::to_string(config.max_position_embeddings) + "; lower the maximal response length");
  if (pages_for(positions) > pool->usage().capacity)
    return bad_input(label(id) + ": needs " + std::to_string(pages_for(positions))
                     + " KV pages, the pool has " + std::to_string(pool->usage().capacity)
                     + "; raise the KV capacity or lower the maximal response length");
  return {};
}

/// Sets `stop` when the last response token ends the request.
void engine::state::note_stop(live_request& r) const {
  if (r.stop || r.response_tokens() == 0) return;
  if (r.forced) {
    if (r.logprobs.size() == r.tokens.size() - r.prompt_tokens) r.stop = stop_reason::scored;
    return;
  }
  if (!r.spec.ignore_eos
      && std::binary_search(facts.eos_tokens.begin(), facts.eos_tokens.end(), r.tokens.back()))
    r.stop = stop_reason::eos;
  else if (r.response_tokens() >= r.spec.max_tokens)
    r.stop = stop_reason::length;
}

void engine::state::free_pages(live_request& r) {
  for (auto page : r.pages)
    pool->release(page);
  r.pages.clear();
  pool->withdraw(r.promised);
  r.promised = 0;
}

void engine::state::forget(live_request& r) {
  free_pages(r);
  waiting.remove(&r);
  running.remove(&r);
  auto i = by_id.find(r.spec.id);
  requests.erase(i->second);
  by_id.erase(i);
}

request_output engine::state::output_of(live_request& r, stop_reason stop) const {
  request_output out;
  out.id = r.spec.id;
  out.tokens.assign(r.tokens.begin() + r.prompt_tokens,
                    r.tokens.begin() + r.prompt_tokens + r.response_tokens());
  out.logprobs = std::move(r.logprobs);
  out.stop = stop;
  out.logits = std::move(r.logits);
  return out;
}

result<void> engine::add_request(request_spec spec) {
  auto& s = *state_;
  if (auto ok = s.check(spec); !ok) return ok;
  live_request r;
  r.prompt_tokens = static_cast<std::uint32_t>(spec.prompt.size());
  r.forced = !spec.forced.empty();
  r.tokens = std::move(spec.prompt);
  const auto& known = r.forced ? spec.forced : spec.resumed;
  r.tokens.insert(r.tokens.end(), known.begin(), known.end());
  r.logprobs = std::move(spec.resumed_logprobs);
  if (r.forced) spec.max_tokens = static_cast<std::uint32_t>(spec.forced.size());
  r.spec = std::move(spec);
  r.spec.prompt = {};
  r.spec.resumed = r.spec.forced = {};
  r.spec.resumed_logprobs = {};
  s.note_stop(r);
  s.requests.push_back(std::move(r));
  auto here = std::prev(s.requests.end());
  s.by_id.emplace(here->spec.id, here);
  s.waiting.push_back(&*here);
  return {};
}

result<request_output> engine::abort_request(request_id id) {
  auto* r = state_->find(id);
  if (!r) return bad_input(label(id) + ": is not on this rank");
  auto out = state_->output_of(*r, stop_reason::aborted);
  state_->forget(*r);
  return out;
}

std::uint32_t engine::live_requests() const {
  return static_cast<std::uint32_t>(state_->waiting.size() + state_->running.size());
}

std::vector<request_progress> engine::requests() const {
  std::vector<request_progress> all;
  for (const auto& r : state_->requests)
    all.push_back({r.spec.id, r.prompt_tokens, r.response_tokens(), r.computed, r.state});
  return all;
}

} // namespace adafloor
