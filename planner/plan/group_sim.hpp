#pragma once
// The moving parts of simulate.cpp: ranks, requests and clocks of one simulated step.
#include "planner/plan/exits.hpp"
#include "planner/plan/simulate.hpp"

#include <deque>

namespace adafloor {

struct sim_request {
  std::size_t prompt = 0;       ///< index into the workload
  std::int32_t length = 0;      ///< true response tokens, guard cap applied
  std::int32_t held_prompt = 0; ///< prompt tokens in the pool (0 where they are not counted)
  std::int64_t offset = 0;      ///< decode step at which it has 0 response tokens
  int rank = -1;                ///< -1: done
  bool started = false;
};

struct sim_rank {
  std::vector<int> live;
  std::deque<int> waiting;
  std::int64_t base = 0;        ///< resident tokens = live * step + base
  std::int64_t next_finish = 0; ///< decode step; only valid with live requests
  bool member = true;
};

class group_sim {
public:
  group_sim(const step_plan& plan, const std::vector<prompt_lengths>& truth,
            const std::vector<predicted_prompt>& predicted, const plan_options& options,
            const sim_controls& controls);
  step_result run();

private:
  void load(bool apply_cap);
  void start(int rank, int request);
  void stop(int rank, int request);
  void refresh(int rank);
  void admit(int rank);
  bool relieve(int rank);
  bool unload(int rank, std::int64_t room_step);
  void preempt(int rank);
  std::int64_t resident(int rank) const;
  std::int64_t capacity() const;
  std::int64_t horizon(int* widest) const;
  void decode(std::int64_t until, int widest);
  void finish_due();
  void consider_exit();
  void follow_script();
  void apply(const exit_choice& choice);
  void pause(double seconds);
  void spend(double seconds, bool decoding);

  const step_plan& plan_;
  const std::vector<prompt_lengths>& truth_;
  const std::vector<predicted_prompt>& predicted_;
  const plan_options& options_;
  const sim_controls& controls_;
  std::vector<sim_request> requests_;
  std::vector<sim_rank> ranks_;
  std::vector<rank_id> members_;
  std::vector<rank_span> open_; ///< per rank, the span being drawn
  exit_memory memory_;
  step_result result_;
  std::int64_t step_ = 0;
  double now_ = 0;
  int unfinished_ = 0; ///< requests not done
  std::size_t scripted_done_ = 0;
  int live_ = 0; ///< requests that decode
  void draw(int rank, rank_span::kind_type kind, double from, double to);
};

} // namespace adafloor
