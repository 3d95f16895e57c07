// `adafloor faults`: what can be made to fail on purpose.
#include "actors/fault_injection.hpp"
#include "apps/commands.hpp"

#include <fmt/format.h>

#include <iostream>

namespace adafloor {
namespace {

void list_points() {
  std::cout << fmt::format("{:<22} {}\n", "at", "do");
  for (const auto& point : fault_points()) {
    std::string actions;
    for (const auto a : point.actions)
      actions += (actions.empty() ? "" : " ") + std::string(name_of(a));
    std::cout << fmt::format("{:<22} {}\n", point.name, actions);
  }
  std::cout
      << "\nA fault point is the arrival of a message at its role. Example:\n"
         "  adafloor run --fault \"at=kv_ready rank=3 do=drop count=2\" ...\n"
         "Words of a rule: at, do; rank (where it arrives), from (rank that sent it), role; "
         "skip (arrivals let through\nfirst, 0), count (arrivals hit then, 1; 0: all), ms (of "
         "delay and freeze; a freeze without it lasts).\nMessages between a rank and its own "
         "engine or worker, and those of the trainer, are never dropped or doubled.\n";
}

} // namespace

void add_faults(CLI::App& root, int* exit_code) {
  auto* faults = root.add_subcommand("faults", "what can be made to fail on purpose");
  faults->require_subcommand(1);
  auto* list = faults->add_subcommand("list", "fault points and what can be done there");
  list->callback([exit_code] {
    list_points();
    *exit_code = 0;
  });
}

} // namespace adafloor
