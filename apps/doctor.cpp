// `adafloor doctor`: what this machine offers, what is wrong, how to mend it.
#include "actors/ucx_options.hpp"
#include "apps/commands.hpp"
#include "apps/settings.hpp"
#include "gpu/plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

namespace adafloor {
namespace {

using nlohmann::json;

/// One thing that was looked at.
struct finding {
  enum state_kind { ok, note, wrong } state = ok; ///< note: works, with less; wrong: will not work
  std::string what;
  std::string found;
  std::string remedy{}; ///< empty when ok
};

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

/// Standard output of a shell command; empty when it fails.
std::string output_of(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe{popen((command + " 2>/dev/null").c_str(), "r"),
                                             pclose};
  std::string text;
  std::array<char, 4096> bytes{};
  while (pipe != nullptr && fgets(bytes.data(), bytes.size(), pipe.get()) != nullptr)
    text += bytes.data();
  return text;
}

/// The name of the first of these libraries that loads.
std::string first_library(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL); handle != nullptr) {
      dlclose(handle);
      return name;
    }
  return {};
}

/// The number of a "Key:  N kB" line of a /proc file, in bytes; -1 when it is not there.
double kib_line(const char* path, const std::string& key) {
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key + ":", 0) == 0) return 1024 * std::stod(line.substr(key.size() + 1));
  return -1;
}

finding check_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto found = fmt::format("{} usable", usable);
  if (usable >= 2) return {finding::ok, "processors", found};
  return {finding::note, "processors", found, "all ranks share one core; give the machine more"};
}

finding check_vector_units() {
  std::ifstream file{"/proc/cpuinfo"};
  std::string flags;
  for (std::string line; std::getline(file, line);)
    if (line.rfind("flags", 0) == 0) {
      flags = line + " ";
      break;
    }
  std::string best = "none that the kernels use";
  for (const char* unit : {"avx2", "avx512f"})
    if (flags.find(fmt::format(" {} ", unit)) != std::string::npos) best = unit;
  const bool has = best.rfind("avx", 0) == 0;
  return {has ? finding::ok : finding::note, "vector units", best,
          has ? "" : "portable kernels are used; tokens are the same, only slower"};
}

finding check_memory() {
  const double available = kib_line("/proc/meminfo", "MemAvailable");
  const auto found = fmt::format("{:.1f} GiB available", available / gib);
  if (available >= 2 * gib) return {finding::ok, "memory", found};
  return {finding::wrong, "memory", found,
          "8 ranks of the models that ship want 2 GiB; end other programs or lower --ranks and "
          "--kv-capacity-tokens"};
}

finding check_shared_memory() {
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0)
    return {finding::wrong, "/dev/shm", "missing",
            "mount it: mount -t tmpfs -o size=1g tmpfs /dev/shm, or use --tls tcp,self"};
  const double free_bytes = static_cast<double>(fs.f_bavail) * static_cast<double>(fs.f_frsize);
  const auto found = fmt::format("{:.2f} GiB free", free_bytes / gib);
  if (free_bytes >= 0.5 * gib) return {finding::ok, "/dev/shm", found};
  return {finding::wrong, "/dev/shm", found,
          "shared-memory transports want 0.5 GiB; in a container start it with --shm-size=1g, or "
          "use --tls tcp,self"};
}

finding check_ucx() {
  const auto library = first_library({"libucp.so.0"});
  if (library.empty())
    return {finding::wrong, "UCX", "libucp.so.0 does not load", "apt-get install libucx0"};
  std::istringstream lines{output_of("ucx_info -d")};
  std::set<std::string> transports;
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find("Transport: "); at != std::string::npos)
      transports.insert(line.substr(at + 11));
  if (transports.empty())
    return {finding::note, "UCX", library + ", transports not listed", "apt-get install ucx-utils"};
  const auto found = fmt::format("{}: {}", library, fmt::join(transports, " "));
  if (transports.count("tcp") == 0 && transports.count("posix") == 0)
    return {finding::wrong, "UCX", found,
            "neither tcp nor posix is offered; unset UCX_TLS or bring up the loopback interface"};
  if (transports.count("cma") == 0)
    return {finding::note, "UCX", found,
            "no cma: bulk copies between ranks take two copies; allow process_vm_readv (in a "
            "container: --cap-add SYS_PTRACE)"};
  return {finding::ok, "UCX", found};
}

finding check_ucx_memory() {
  const auto kinds = ucx_memory_kinds();
  if (!kinds) return {finding::wrong, "UCX memory", "unknown", kinds.error().text};
  const auto found = fmt::format("{}", fmt::join(*kinds, " "));
  const bool cuda = std::find(kinds->begin(), kinds->end(), "cuda") != kinds->end();
  return {finding::ok, "UCX memory",
          found
              + (cuda ? "; KV pages and experts of GPUs go through host memory all the same"
                      : "; KV pages and experts of GPUs go through it")};
}

finding check_ucx_environment() {
  const char* tls = std::getenv("UCX_TLS"); // NOLINT(concurrency-mt-unsafe)
  if (tls == nullptr) return {finding::ok, "UCX_TLS", "not set"};
  return {finding::note, "UCX_TLS", tls, "it limits what UCX may use; unset it unless you mean it"};
}

finding check_ptrace() {
  std::ifstream file{"/proc/sys/kernel/yama/ptrace_scope"};
  int scope = 0;
  if (!(file >> scope) || scope == 0) return {finding::ok, "ptrace scope", "open"};
  return {finding::note, "ptrace scope", std::to_string(scope),
          "single-copy transfers may be refused; sysctl kernel.yama.ptrace_scope=0"};
}

finding check_cuda_driver() {
  if (first_library({"libcuda.so.1"}).empty())
    return {finding::note, "CUDA driver", "none", "ranks compute on the processors (--device cpu)"};
  return {finding::ok, "CUDA driver", "libcuda.so.1"};
}

/// What --device cuda would say.
finding check_cuda() {
  const auto found = find_cuda();
  if (!found) return {finding::note, "CUDA plug-in", "not usable", found.error().text};
  if (found->devices > 0) return {finding::ok, "CUDA plug-in", found->text};
  return {finding::note, "CUDA plug-in", "loads, but there is no GPU to use: " + found->text,
          "install the NVIDIA driver where there is a GPU; --device cpu works without"};
}

/// What --collective nccl would say.
finding check_nccl() {
  const auto found = find_nccl();
  if (!found) return {finding::note, "NCCL plug-in", "not usable", found.error().text};
  const auto loads = "loads, NCCL " + found->version;
  if (found->devices > 0)
    return {finding::ok, "NCCL plug-in",
            fmt::format("{}, for up to {} ranks (--collective nccl)", loads, found->devices)};
  return {finding::note, "NCCL plug-in", loads + ", but there is no GPU to use: " + found->text,
          "--collective ucx works without"};
}

finding check_limit(const char* what, decltype(RLIMIT_NOFILE) which, rlim_t wanted,
                    const char* remedy) {
  rlimit limit{};
  getrlimit(which, &limit);
  const bool enough = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted;
  const auto found = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
  return {enough ? finding::ok : finding::wrong, what, found, enough ? "" : remedy};
}

finding check_models() {
  const auto home = shipped_folder();
  if (!home.empty()) return {finding::ok, "models that ship", home + "/models"};
  return {finding::note, "models that ship", "not found",
          "set ADAFLOOR_HOME to the folder that holds models/, or give --model and --prompts"};
}

std::vector<finding> look_at_everything() {
  return {check_processors(),
          check_vector_units(),
          check_memory(),
          check_shared_memory(),
          check_limit("open files", RLIMIT_NOFILE, 1024, "ulimit -n 4096"),
          check_limit("processes", RLIMIT_NPROC, 256, "ulimit -u 4096"),
          check_ucx(),
          check_ucx_memory(),
          check_ucx_environment(),
          check_ptrace(),
          check_cuda_driver(),
          check_cuda(),
          check_nccl(),
          check_models()};
}

int run(bool as_json) {
  static const std::array<const char*, 3> names{"ok", "note", "wrong"};
  bool usable = true;
  json list = json::array();
  for (const auto& f : look_at_everything()) {
    usable = usable && f.state != finding::wrong;
    if (as_json) {
      list.push_back(
          {{"what", f.what}, {"state", names[f.state]}, {"found", f.found}, {"remedy", f.remedy}});
      continue;
    }
    std::cout << fmt::format("{:<6} {:<17} {}\n", names[f.state], f.what, f.found);
    if (!f.remedy.empty()) std::cout << fmt::format("{:<24} -> {}\n", "", f.remedy);
  }
  if (as_json)
    std::cout << json{{"usable", usable}, {"findings", list}}.dump() << std::endl;
  else
    std::cout << (usable ? "This machine can run adafloor.\n"
                         : "Something is wrong; mend the lines marked so.\n");
  return usable ? 0 : 1;
}

} // namespace

void add_doctor(CLI::App& root, int* exit_code) {
  auto* command =
      root.add_subcommand("doctor", "What this machine offers, what is wrong, the remedy");
  command->footer("Example: adafloor doctor --json");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print one object on stdout");
  command->callback([as_json, exit_code] { *exit_code = run(*as_json); });
}

} // namespace adafloor
