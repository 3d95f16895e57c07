// `adafloor node`: one rank process. `adafloor run` starts these; the node itself is in actors/.
#include "actors/node.hpp"

#include "apps/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>

namespace adafloor {
namespace {

struct node_arguments {
  std::string job;
  std::uint32_t rank = 0;
  int listen_fd = -1;
  std::string master;
  int token_fd = -1;
  std::string token_file;
  int events_fd = -1;
  int liveness_fd = -1;
};

/// The cluster token never stands on the command line, where every user of the machine reads it.
result<std::string> read_token(const node_arguments& given) {
  if (given.token_fd >= 0) {
    // pread: all ranks share one memory file, and with it one file position.
    char bytes[256];
    const auto size = pread(given.token_fd, bytes, sizeof bytes, 0);
    close(given.token_fd);
    if (size > 0) return std::string(bytes, static_cast<std::size_t>(size));
    return bad_input(fmt::format("--token-fd {}: nothing to read there", given.token_fd));
  }
  if (given.token_file.empty())
    return bad_input("a node needs the cluster token: give --token-file FILE (mode 0600)");
  std::ifstream file{given.token_file, std::ios::binary};
  std::string token{std::istreambuf_iterator<char>{file}, {}};
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r'))
    token.pop_back();
  if (token.empty())
    return bad_input(fmt::format("--token-file {}: cannot be read or is empty", given.token_file));
  return token;
}

int run(const node_arguments& given) {
  auto task = load_job(given.job);
  if (!task) return print_error(task.error());
  if (given.rank >= task->world_size)
    return print_error({error_code::bad_input, fmt::format("--rank {}: the job has ranks 0 to {}",
                                                           given.rank, task->world_size - 1)});
  if (given.rank == 0 && given.listen_fd < 0)
    return print_error({error_code::bad_input, "rank 0 needs --listen-fd N, a listening socket"});
  if (given.rank > 0 && given.master.empty())
    return print_error({error_code::bad_input, "a rank above 0 needs --master HOST:PORT"});
  auto token = read_token(given);
  if (!token) return print_error(token.error());
  node_options options;
  options.task = std::move(*task);
  options.rank = given.rank;
  options.listen_fd = given.listen_fd;
  options.master = given.master;
  options.token = std::move(*token);
  options.events_fd = given.events_fd;
  options.liveness_fd = given.liveness_fd;
  return run_node(options);
}

} // namespace

void add_node(CLI::App& root, int* exit_code) {
  auto* command =
      root.add_subcommand("node", "One rank process of a run; `adafloor run` starts it");
  command->footer("Example: adafloor node --job out/job.json --rank 1 --master 127.0.0.1:7000 "
                  "--token-file token");
  auto given = std::make_shared<node_arguments>();
  command->add_option("--job", given->job, "job.json of the run")->required();
  command->add_option("--rank", given->rank, "rank in the full world, from 0")->required();
  command->add_option("--listen-fd", given->listen_fd, "rank 0: inherited listening socket");
  command->add_option("--master", given->master, "HOST:PORT of rank 0");
  command->add_option("--token-fd", given->token_fd, "inherited file with the cluster token");
  command->add_option("--token-file", given->token_file, "file with the cluster token");
  command->add_option("--events-fd", given->events_fd, "rank 0: inherited, event lines go there");
  command->add_option("--liveness-fd", given->liveness_fd,
                      "inherited; end of file there ends this process");
  command->callback([given, exit_code] { *exit_code = run(*given); });
}

} // namespace adafloor
