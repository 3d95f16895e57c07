// `adafloor node`: one rank process. `adafloor run` starts these; the node itself is in actors/.
#include "actors/node.hpp"

#include "actors/bootstrap.hpp"
#include "actors/launch_environment.hpp"
#include "apps/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

namespace adafloor {
namespace {

struct node_arguments {
  std::string job;
  std::optional<std::uint32_t> rank;
  int listen_fd = -1;
  std::string master;
  std::string bind;
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
  return read_token_file(given.token_file);
}

/// From the command line, and where that is silent from what the launcher of the cluster set.
result<launch_place> place_of(const node_arguments& given, const job& task) {
  launch_flags flags;
  flags.rank = given.rank;
  flags.world_size = task.world_size;
  if (!given.master.empty()) {
    const auto colon = given.master.rfind(':');
    std::uint16_t port = 0;
    const auto* end = given.master.data() + given.master.size();
    if (colon == std::string::npos || colon == 0
        || std::from_chars(given.master.data() + colon + 1, end, port).ptr != end || port == 0)
      return bad_input(fmt::format("--master {}: must be HOST:PORT", given.master));
    flags.master_host = given.master.substr(0, colon);
    flags.master_port = port;
  }
  return read_launch_place(flags, process_environment());
}

constexpr const char* after_term = "ADAFLOOR_AFTER_TERM";

/// The job; for a rank that joins again the one that was started after it lost rank 0.
result<job> load_job_to_join(const std::string& path) {
  auto task = load_job(path);
  const char* before = std::getenv(after_term); // NOLINT(concurrency-mt-unsafe)
  if (!task || !before) return task;
  const auto past = std::strtoull(before, nullptr, 10);
  const auto give_up =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(task->runtime.start_ms);
  while (task && task->term <= past) {
    if (std::chrono::steady_clock::now() > give_up)
      return fail(
          error_code::peer_lost,
          fmt::format("rank 0 did not start again within {} ms; start this rank again after "
                      "adafloor run --resume {}",
                      task->runtime.start_ms, task->out_dir));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    task = load_job(path);
  }
  return task;
}

/// This process becomes the rank of the next try of the job, with the same arguments.
int join_again(const job& task) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');)
    words.push_back(word);
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::cerr << "waits for rank 0 to start again, to join it" << std::endl;
  setenv(after_term, std::to_string(task.term).c_str(), 1); // NOLINT(concurrency-mt-unsafe)
  execv("/proc/self/exe", arguments.data());
  return print_error({error_code::io, fmt::format("cannot start again: {}", std::strerror(errno))});
}

int run(const node_arguments& given) {
  auto task = load_job_to_join(given.job);
  if (!task) return print_error(task.error());
  const auto place = place_of(given, *task);
  if (!place) return print_error(place.error());
  if (place->rank == rank_id(0) && given.listen_fd < 0)
    return print_error({error_code::bad_input,
                        "rank 0 is started by `adafloor run`, which listens for the others; start "
                        "that on its host, with --local-ranks"});
  auto token = read_token(given);
  if (!token) return print_error(token.error());
  node_options options;
  options.task = std::move(*task);
  options.rank = place->rank.value;
  options.listen_fd = given.listen_fd;
  options.master = fmt::format("{}:{}", place->master_host, place->master_port);
  options.bind = given.bind;
  options.token = std::move(*token);
  options.events_fd = given.events_fd;
  options.liveness_fd = given.liveness_fd;
  const int status = run_node(options);
  if (status != status_orphaned) return status;
  const bool by_hand = given.liveness_fd < 0; // else `adafloor run` starts it again
  constexpr int status_lost_rank = 3;
  return by_hand && options.task.runtime.max_restarts > 0 ? join_again(options.task)
                                                          : status_lost_rank;
}

} // namespace

void add_node(CLI::App& root, int* exit_code) {
  auto* command = root.add_subcommand(
      "node", "One rank process of a run; `adafloor run` starts those of its own host");
  command->footer("Example: adafloor node --job out/job.json --rank 1 --master 127.0.0.1:7000 "
                  "--token-file token");
  auto given = std::make_shared<node_arguments>();
  command->add_option("--job", given->job, "job.json of the run")->required();
  command->add_option("--rank", given->rank,
                      "rank in the full world; else torchrun, mpirun or srun must have set it");
  command->add_option("--listen-fd", given->listen_fd, "rank 0: inherited listening socket");
  command->add_option("--master", given->master, "HOST:PORT of rank 0; else from the same source");
  command->add_option("--bind", given->bind,
                      "IPv4 address of this host that the others reach; else transport.bind");
  command->add_option("--token-fd", given->token_fd, "inherited file with the cluster token");
  command->add_option("--token-file", given->token_file, "file with the cluster token");
  command->add_option("--events-fd", given->events_fd, "rank 0: inherited, event lines go there");
  command->add_option("--liveness-fd", given->liveness_fd,
                      "inherited; end of file there ends this process");
  command->callback([given, exit_code] { *exit_code = run(*given); });
}

} // namespace adafloor
