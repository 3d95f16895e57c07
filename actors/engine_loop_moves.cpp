// How the loop takes part in moves of requests: every command comes to its place between two steps.
#include "actors/engine_loop.hpp"

namespace adafloor {

kv_moves::surroundings engine_loop::around_moves() {
  kv_moves::surroundings around;
  around.tell = [this](any_message m) { tell(std::move(m)); };
  around.fetch = around_.fetch;
  around.arrived = [this](kv_arrival a) { enqueue(std::move(a)); };
  return around;
}

/// Those that stand still on their way to another rank are live: the group must not stop for them.
std::uint32_t engine_loop::live_requests() const {
  return engine_->live_requests() + moves_.held();
}

void engine_loop::on(const engine_move_begin& m) {
  moves_.on(m);
}

void engine_loop::on(const engine_move_round& m) {
  moves_.on(m, rollout_steps_);
}

void engine_loop::on(const engine_move_end& m) {
  moves_.on(m);
  if (live_requests() != live_told_) report_progress();
}

void engine_loop::on(const engine_receive_begin& m) {
  moves_.on(m);
}

void engine_loop::on(const engine_receive_cancel& m) {
  moves_.on(m);
}

void engine_loop::handle(const kv_arrival& a) {
  moves_.take(a, rollout_steps_);
  if (live_requests() != live_told_) report_progress();
}

} // namespace adafloor
