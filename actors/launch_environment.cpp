#include "actors/launch_environment.hpp"

#include <charconv>
#include <cstdlib>
#include <vector>

namespace adafloor {

namespace {

constexpr std::uint16_t default_port = 29431;

template <class T>
result<T> read_number(const std::string& name, const std::string& text, std::uint64_t least,
                      std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (wrong != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    return bad_input(name + "=\"" + text + "\": a whole number from " + std::to_string(least)
                     + " to " + std::to_string(most) + " is needed");
  return static_cast<T>(value);
}

/// Names of the variables of one launcher.
struct launcher {
  const char* source;
  const char* rank;
  const char* world_size;
  const char* master_host;
};
constexpr launcher launchers[] = {
    {"adafloor", "ADAFLOOR_RANK", "ADAFLOOR_WORLD_SIZE", "ADAFLOOR_MASTER_HOST"},
    {"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MASTER_ADDR"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR"},
};

result<std::uint16_t> port_from(const launch_flags& flags, const environment& env) {
  if (flags.master_port) return *flags.master_port;
  if (const auto own = env("ADAFLOOR_MASTER_PORT"))
    return read_number<std::uint16_t>("ADAFLOOR_MASTER_PORT", *own, 1, 65'535);
  if (const auto torch = env("MASTER_PORT")) {
    auto port = read_number<std::uint16_t>("MASTER_PORT", *torch, 1, 65'534);
    if (port) ++*port;
    return port;
  }
  return default_port;
}

// Where rank 0 is when nobody says so.
result<std::string> guess_host(const std::string& source, std::uint32_t world_size,
                               const environment& env) {
  if (source == "slurm") {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
      if (const auto nodes = env(name)) return first_slurm_host(*nodes);
  }
  const auto local = env("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (source == "openmpi" && local && *local == std::to_string(world_size)) return "127.0.0.1";
  if (source == "flags" || source == "adafloor") return "127.0.0.1";
  return bad_input("launch: " + source
                   + " does not say where rank 0 is; set MASTER_ADDR or give --master-host");
}

} // namespace

environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

result<std::string> first_slurm_host(const std::string& nodes) {
  const auto wrong = [&nodes] {
    return bad_input("Slurm node list \"" + nodes
                     + "\" cannot be read; set MASTER_ADDR or give --master-host");
  };
  const std::size_t open = nodes.find('['), comma = nodes.find(',');
  if (open == std::string::npos || comma < open) { // a plain name comes first
    const std::string host = nodes.substr(0, comma);
    if (host.empty()) return wrong();
    return host;
  }
  const std::size_t close = nodes.find(']', open);
  if (close == std::string::npos) return wrong();
  const std::string inside = nodes.substr(open + 1, close - open - 1);
  const std::string number = inside.substr(0, inside.find_first_of(",-"));
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return wrong();
  const std::size_t end = nodes.find(',', close);
  const std::string suffix =
      nodes.substr(close + 1, end == std::string::npos ? end : end - close - 1);
  if (suffix.find('[') != std::string::npos) return wrong(); // several ranges in one name
  return nodes.substr(0, open) + number + suffix;
}

result<launch_place> read_launch_place(const launch_flags& flags, const environment& env) {
  launch_place p;
  const launcher* found = nullptr;
  for (const auto& l : launchers)
    if (found == nullptr && env(l.rank) && env(l.world_size)) found = &l;
  if (found == nullptr && !(flags.rank && flags.world_size)) {
    for (const auto& l : launchers)
      if (env(l.rank) || env(l.world_size))
        return bad_input(std::string("launch: ") + (env(l.rank) ? l.rank : l.world_size)
                         + " is set but " + (env(l.rank) ? l.world_size : l.rank)
                         + " is not; set both, or give --rank and --world-size");
    return bad_input("launch: no rank and world size; give --rank and --world-size, or start "
                     "with torchrun, mpirun or srun");
  }
  p.source = flags.rank && flags.world_size ? "flags" : found->source;
  if (flags.world_size)
    p.world_size = *flags.world_size;
  else {
    auto size = read_number<std::uint32_t>(found->world_size, *env(found->world_size), 1, 65'536);
    if (!size) return tl::unexpected<error>(size.error());
    p.world_size = *size;
  }
  if (flags.rank)
    p.rank = rank_id{*flags.rank};
  else {
    auto rank = read_number<std::uint32_t>(found->rank, *env(found->rank), 0, 65'535);
    if (!rank) return tl::unexpected<error>(rank.error());
    p.rank = rank_id{*rank};
  }
  if (p.rank.value >= p.world_size)
    return bad_input("launch: rank " + std::to_string(p.rank.value) + " in a world of "
                     + std::to_string(p.world_size) + "; ranks are 0-based");
  auto port = port_from(flags, env);
  if (!port) return tl::unexpected<error>(port.error());
  p.master_port = *port;
  if (flags.master_host)
    p.master_host = *flags.master_host;
  else if (found != nullptr && env(found->master_host))
    p.master_host = *env(found->master_host);
  else {
    auto host = guess_host(p.source, p.world_size, env);
    if (!host) return tl::unexpected<error>(host.error());
    p.master_host = *host;
  }
  return p;
}

} // namespace adafloor
