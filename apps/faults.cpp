// `adafloor faults`: what can be made to fail on purpose, in real runs and in simulated worlds.
#include "actors/fault_injection.hpp"
#include "apps/commands.hpp"
#include "apps/faults_run.hpp"

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
         "delay, slow and freeze; a freeze without it lasts).\nMessages between a rank and its own "
         "engine or worker, and those of the trainer, are never dropped, doubled, reordered or "
         "corrupted.\n";
  std::cout << "\nBugs that `adafloor faults run --mutant NAME` plants in simulated worlds:\n";
  for (int m = 1; m <= static_cast<int>(enum_max(sim::mutant{})); ++m)
    std::cout << fmt::format("{:<38} {}\n", name_of(static_cast<sim::mutant>(m)),
                             describe(static_cast<sim::mutant>(m)));
}

/// What the words of `faults run` say.
struct run_words {
  std::string seeds = "1..1000", kinds = "all", mutant;
  faults_run_options options;
};

/// Errors: bad_input naming the option.
result<void> read(run_words* words) {
  auto& o = words->options;
  if (auto seeds = read_seeds(words->seeds, &o); !seeds) return seeds;
  auto kinds = read_kinds(words->kinds);
  if (!kinds) return tl::unexpected(kinds.error());
  o.choice.kinds = *kinds;
  o.all_mutants = words->mutant == "all";
  if (o.all_mutants || words->mutant.empty()) return {};
  const auto bug = named_member<sim::mutant>(words->mutant);
  if (!bug)
    return bad_input("--mutant " + words->mutant
                     + ": no such bug; `adafloor faults list` names them");
  o.choice.bug = *bug;
  return {};
}

void add_run_worlds(CLI::App& faults, int* exit_code) {
  auto* run = faults.add_subcommand(
      "run", "simulated worlds of the real protocols under every kind of fault, one per seed");
  const auto words = std::make_shared<run_words>();
  auto& o = words->options;
  run->add_option("--seeds", words->seeds, "A..B; each seed is one world")->capture_default_str();
  run->add_option("--ranks", o.choice.ranks,
                  "of every world (default: drawn from the seed, 2 to 16)")
      ->check(CLI::Range(2, 64));
  run->add_option("--jobs", o.jobs, "worlds that are played at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  run->add_option("--kinds", words->kinds,
                  "kinds of fault that may strike, comma separated; all, none")
      ->capture_default_str();
  auto* leases =
      run->add_flag("--leases", o.choice.leases, "worlds that are about leases above all");
  run->add_flag("--deaths", o.choice.deaths, "worlds in which ranks die, and others go on")
      ->excludes(leases);
  run->add_option("--rollouts", o.choice.rollouts, "of every world")->check(CLI::Range(1, 100));
  run->add_option("--requests", o.choice.requests, "per rollout")->check(CLI::Range(1, 10000));
  run->add_option("--units", o.choice.units, "of work for leased ranks")
      ->check(CLI::Range(0, 10000));
  run->add_option("--mutant", words->mutant,
                  "plant this bug and see that it is caught; all: each of them in turn");
  run->add_flag("--trace", o.trace, "every message and fault, on stderr");
  run->footer("Exit status: 0 when every world kept all invariants and came to its end, or every "
              "planted bug was\ncaught; else 1, with the shortest trace and the command to play it "
              "again.\nExample: adafloor faults run --seeds 1..5000 --jobs 2");
  run->callback([words, exit_code] {
    if (auto sound = read(words.get()); !sound)
      *exit_code = print_error(sound.error());
    else
      *exit_code = run_worlds(words->options) ? 0 : 1;
  });
}

} // namespace

void add_faults(CLI::App& root, int* exit_code) {
  auto* faults =
      root.add_subcommand("faults", "faults on purpose, in real runs and in simulated worlds");
  faults->require_subcommand(1);
  auto* list = faults->add_subcommand("list", "fault points and what can be done there");
  list->callback([exit_code] {
    list_points();
    *exit_code = 0;
  });
  add_run_worlds(*faults, exit_code);
}

} // namespace adafloor
