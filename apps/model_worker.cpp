// `adafloor model-worker`: the process that works on a leased rank. Its rank starts it.
#include "actors/model_worker.hpp"

#include "apps/commands.hpp"

#include <memory>

namespace adafloor {

void add_model_worker(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand("model-worker", "Answers and scores on a leased rank");
  command->group(""); // Not in --help.
  auto given = std::make_shared<model_worker_options>();
  command->add_option("--rank", given->rank, "that it works for")->required();
  command->add_option("--socket-fd", given->socket_fd, "inherited, to that rank")->required();
  command->add_option("--kv-pages", given->kv_pages, "of each model");
  add_kv_dtype(*command, given->kv_type);
  command->add_option("--max-num-seqs", given->max_num_seqs, "units that a model does together");
  command->add_option("--model", given->models, "folder to load ahead; more than one: again");
  command->callback([given, exit_code] { *exit_code = run_model_worker(*given); });
}

} // namespace adafloor
