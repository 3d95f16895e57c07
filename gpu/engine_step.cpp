// One decode step: plan, compute, and only then commit.
#include "gpu/engine_state.hpp"

#include <algorithm>

namespace adafloor {

namespace {

using clock = std::chrono::steady_clock;

/// Does the row at `position` need logits?
bool wants_logits(const live_request& r, std::uint32_t position) {
  if (r.spec.keep_logits) return true;
  if (r.stop) return false;
  if (r.forced) return position + 1 >= r.prompt_tokens + r.logprobs.size();
  return position + 1 == r.tokens.size();
}

/// Is a token drawn after it?
bool draws_token(const live_request& r, std::uint32_t position) {
  return !r.stop && !r.forced && position + 1 == r.tokens.size();
}

/// Takes in one computed row: logits, score or new token. `wanted`: its number among the rows with
/// logits.
result<void> commit_row(live_request& r, std::uint32_t position, std::size_t wanted,
                        std::uint32_t vocabulary, device& computer, step_output* out) {
  if (r.spec.keep_logits) {
    r.logits.resize(std::max(r.logits.size(), (position + std::size_t{1}) * vocabulary));
    std::copy_n(computer.logits(wanted), vocabulary,
                r.logits.data() + std::size_t{position} * vocabulary);
  }
  auto label = [&] {
    return "request " + std::to_string(r.spec.id.value) + " at position " + std::to_string(position)
           + ": ";
  };
  if (r.stop) return {};
  auto next = position + 1;
  if (r.forced && next < r.tokens.size()) {
    if (next != r.prompt_tokens + r.logprobs.size()) return {};
    auto logprob = computer.logprob(wanted, r.tokens[next]);
    if (!logprob) return fail(logprob.error().code, label() + logprob.error().text);
    r.logprobs.push_back(*logprob);
    return {};
  }
  if (r.forced || next != r.tokens.size()) return {};
  auto chosen = computer.sample(wanted, r.spec.sampling, r.spec.random_key, next);
  if (!chosen) return fail(chosen.error().code, label() + chosen.error().text);
  r.tokens.push_back(chosen->token);
  r.logprobs.push_back(chosen->logprob);
  out->tokens.push_back({r.spec.id, next - r.prompt_tokens, chosen->token, chosen->logprob});
  return {};
}

} // namespace

/// One token, or a chunk of prefill, for each running request.
result<void> engine::state::decode_step(step_output* out) {
  auto chunks = plan_step();
  std::vector<forward_row> rows;
  for (const auto& [r, count, borrowed] : chunks)
    for (auto p = r->computed; p < r->computed + count; ++p)
      rows.push_back({r->tokens[p], p, r->pages.data(), wants_logits(*r, p),
                      draws_token(*r, p) ? &r->spec.sampling : nullptr, r->spec.random_key});
  if (auto ok = device->run(rows, *pool); !ok) {
    give_back(chunks);
    return ok;
  }
  std::size_t row = 0, with_logits = 0;
  for (const auto& [r, count, borrowed] : chunks) {
    auto before = r->computed;
    for (std::uint32_t i = 0; i < count; ++i, ++row) {
      if (rows[row].wants_logits)
        if (auto ok =
                commit_row(*r, rows[row].position, with_logits++, config.vocab_size, *device, out);
            !ok)
          return ok;
      note_stop(*r);
    }
    r->computed += count;
    publish_pages(*r, before);
  }
  out->rows += static_cast<std::uint32_t>(rows.size());
  return {};
}

result<step_output> engine::step(communicator* group, const step_header& mine, bool hold) {
  auto& s = *state_;
  auto started = clock::now();
  step_output out;
  s.admit();
  const step_group what{group, mine, &s.owners, s.options.self, &s.serving};
  auto ahead = s.outlook();
  ahead.hold = hold;
  auto steps = s.device->begin(what, ahead);
  if (!steps) return tl::unexpected(steps.error());
  for (std::uint32_t i = 0; i < *steps; ++i)
    if (auto ok = s.decode_step(&out); !ok) return tl::unexpected(ok.error());
  for (auto i = s.requests.begin(); i != s.requests.end();) {
    auto& r = *i++;
    if (r.state == request_progress::held || !r.finished()) continue;
    out.finished.push_back(s.output_of(r, *r.stop));
    s.forget(r);
  }
  out.headers = s.device->headers();
  out.live_requests = live_requests();
  out.decode_steps = *steps;
  out.paused_until = s.device->paused_until();
  out.expert_rows = static_cast<std::uint32_t>(s.device->pairs_computed());
  auto waited = s.device->exchange_time();
  out.exchange = std::chrono::duration_cast<microseconds>(waited);
  out.compute = std::chrono::duration_cast<microseconds>(clock::now() - started - waited);
  s.counters.steps += *steps;
  s.counters.rows += out.rows;
  s.counters.expert_rows += out.expert_rows;
  return out;
}

time_point engine::now() const {
  return state_->device->now();
}
result<void> engine::start_rollout(communicator* group) {
  return state_->device->start_rollout(group);
}
void engine::pass_exit(std::size_t from, std::size_t to) {
  state_->device->pass_exit(from, to);
}
result<device_pause> engine::pass_restore(communicator* group) {
  return state_->device->pass_restore(group);
}

} // namespace adafloor
