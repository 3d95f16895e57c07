#pragma once
// A run on the emulated device: past response lengths are generated again, at a cost model's pace.
#include "actors/job.hpp"
#include "actors/prompts.hpp"
#include "gpu/emulated.hpp"
#include "messages/catalog.hpp"
#include "planner/plan/history.hpp"

#include <map>

namespace adafloor {

/// Prompts of one recorded epoch in dataset order, with the lengths that their responses had.
struct recorded_epoch {
  std::vector<prompt> prompts; ///< as long as recorded; what stands in them means nothing
  std::vector<std::vector<std::int32_t>> lengths; ///< [prompt][sample], tokens, at least 1
};

/// `task.workload_epoch` of `history`. Errors: bad_input naming `task.workload` if it has no such
/// epoch, or if its prompts do not all have equally many samples, at least one.
result<recorded_epoch> recorded_epoch_of(const job& task, const length_history& history);

/// The device of a job: sizes and time scale as it says, times from its cost model. Errors:
/// bad_input for a cost model that cannot be read.
result<std::shared_ptr<const emulation>> emulation_of(const job& task);

/// Pages of a rank's KV pool that hold `kv.capacity_tokens` as the planner counts them, whatever
/// part of their last page the requests leave empty.
std::uint32_t emulated_kv_pages(const job& task);

/// Books what follows the last token of a rollout as the cost model has it, whatever a rank did in
/// that time: transition until `restored_at`, then idle until `ended_at`. Time lines must reach
/// `decoded_at`. No instant is earlier than the one before.
void book_fixed_time(std::map<rank_id, rollout_report>& reports, microseconds decoded_at,
                     microseconds restored_at, microseconds ended_at);

} // namespace adafloor
