#pragma once
// Everything that can be wrong with a run is found here, before a process starts or a file is
// written.
#include "actors/job.hpp"

namespace adafloor {

/// Checks the numbers of a job against each other. No files are touched. Errors: bad_input naming
/// the option, the value, what is allowed and the remedy.
result<void> check_numbers(const job& task);

/// Reads all models, prompts, the history and the sidecar's files, and checks that they fit
/// together and into the KV pool. Sets max_response_length where it is 0: to max_new_tokens of the
/// first model's generation_config.json, else to what its positions allow. Errors: bad_input.
result<void> check_files(job& task);

} // namespace adafloor
