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

/// Takes in one computed row: logits, score or new token. `logits` null where none were wanted.
result<void> commit_row(live_request& r, std::uint32_t position, const float* logits,
                        std::uint32_t vocabulary, sampler& chooser, step_output* out) {
  if (!logits) return {};
  if (r.spec.keep_logits) {
    r.logits.resize(std::max(r.logits.size(), (position + std::size_t{1}) * vocabulary));
    std::copy_n(logits, vocabulary, r.logits.data() + std::size_t{position} * vocabulary);
  }
  auto label = [&] {
    return "request " + std::to_string(r.spec.id.value) + " at position " + std::to_string(position)
           + ": ";
  };
  if (r.stop) return {};
  auto next = position + 1;
  if (r.forced && next < r.tokens.size()) {
    if (next != r.prompt_tokens + r.logprobs.size()) return {};
    auto logprob = chooser.logprob(logits, r.tokens[next]);
    if (!logprob) return fail(logprob.error().code, label() + logprob.error().text);
    r.logprobs.push_back(*logprob);
    return {};
  }
  if (r.forced || next != r.tokens.size()) return {};
  auto chosen = chooser.sample(logits, r.spec.sampling, r.spec.random_key, next);
  if (!chosen) return fail(chosen.error().code, label() + chosen.error().text);
  r.tokens.push_back(chosen->token);
  r.logprobs.push_back(chosen->logprob);
  out->tokens.push_back({r.spec.id, next - r.prompt_tokens, chosen->token, chosen->logprob});
  return {};
}

} // namespace

result<step_output> engine::step(communicator* group, const step_header& mine) {
  auto& s = *state_;
  auto started = clock::now();
  step_output out;
  s.admit();
  auto chunks = s.plan_step();
  std::vector<forward_row> rows;
  for (const auto& [r, count] : chunks)
    for (auto p = r->computed; p < r->computed + count; ++p)
      rows.push_back({r->tokens[p], p, r->pages.data(), wants_logits(*r, p)});

  if (auto ok = s.exchange->begin({group, mine, &s.owners, s.options.self, &s.serving}); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = s.forward->run(rows, *s.pool, *s.exchange); !ok) return tl::unexpected(ok.error());

  std::size_t row = 0, with_logits = 0;
  for (const auto& [r, count] : chunks) {
    auto before = r->computed;
    for (std::uint32_t i = 0; i < count; ++i, ++row) {
      const float* logits = rows[row].wants_logits ? s.forward->logits(with_logits++) : nullptr;
      if (auto ok =
              commit_row(*r, rows[row].position, logits, s.config.vocab_size, *s.chooser, &out);
          !ok)
        return tl::unexpected(ok.error());
      s.note_stop(*r);
    }
    r->computed += count;
    s.publish_pages(*r, before);
  }
  for (auto i = s.requests.begin(); i != s.requests.end();) {
    auto& r = *i++;
    if (r.state == request_progress::held || !r.finished()) continue;
    out.finished.push_back(s.output_of(r, *r.stop));
    s.forget(r);
  }
  out.headers = s.exchange->headers();
  out.live_requests = live_requests();
  out.rows = static_cast<std::uint32_t>(rows.size());
  out.expert_rows = static_cast<std::uint32_t>(s.exchange->pairs_computed());
  auto waited = s.exchange->exchange_time();
  out.exchange = std::chrono::duration_cast<microseconds>(waited);
  out.compute = std::chrono::duration_cast<microseconds>(clock::now() - started - waited);
  ++s.counters.steps;
  s.counters.rows += out.rows;
  s.counters.expert_rows += out.expert_rows;
  return out;
}

} // namespace adafloor
