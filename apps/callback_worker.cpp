// `adafloor callback-worker`: the process that runs a user's own work on a leased rank. Its rank
// starts it.
#include "actors/callback_worker.hpp"

#include "apps/commands.hpp"

#include <memory>

namespace adafloor {

void add_callback_worker(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("callback-worker", "Runs linked-in work on a leased rank");
  command->group(""); // Not in --help.
  auto given = std::make_shared<callback_worker_options>();
  command->add_option("--rank", given->rank, "that it works for")->required();
  command->add_option("--socket-fd", given->socket_fd, "inherited, to that rank")->required();
  command->add_option("--device", given->device, "of the job");
  command->callback([given, exit_code] { *exit_code = run_callback_worker(*given); });
}

} // namespace adafloor
