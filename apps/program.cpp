// Finds the command and runs it. No logic of its own.
#include "apps/program.hpp"

#include "apps/commands.hpp"
#include "apps/generate.hpp"

#include <iostream>

namespace adafloor {
namespace {

/// What a word that nobody expects was probably meant to be.
std::string unexpected_word(const CLI::App& root) {
  const auto chosen = root.get_subcommands();
  const CLI::App& command = chosen.empty() ? root : *chosen.front();
  const auto left = command.remaining();
  if (left.empty()) return "a word too many";
  std::vector<std::string> known;
  for (const auto* option : command.get_options())
    for (const auto& name : option->get_lnames())
      known.push_back("--" + name);
  for (const auto* sub : command.get_subcommands({}))
    if (!sub->get_group().empty()) known.push_back(sub->get_name());
  const auto word = left.front().substr(0, left.front().find('='));
  const auto near = nearest(word, known);
  return command.get_name() + ": unknown " + (word[0] == '-' ? "option " : "word ") + word
         + (near.empty() ? "" : "; did you mean " + near + "?");
}

} // namespace

int run_program(int argc, char** argv) {
  CLI::App root{"Elastic expert parallelism for MoE rollouts in RL post-training", "adafloor"};
  root.set_version_flag("--version", std::string{"adafloor "} + ADAFLOOR_VERSION);
  root.require_subcommand(1);
  root.footer("Example: adafloor run --ranks 8 --floor 2 --arms vanilla,natural");
  int exit_code = 0;
  add_run(root, &exit_code);
  add_node(root, &exit_code);
  add_model_worker(root, &exit_code);
  add_callback_worker(root, &exit_code);
  add_plan(root, &exit_code);
  add_simulate(root, &exit_code);
  add_history(root, &exit_code);
  add_calibrate(root, &exit_code);
  add_generate(root, &exit_code);
  add_faults(root, &exit_code);
  add_report(root, &exit_code);
  add_doctor(root, &exit_code);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return root.exit(e); // --help, --version
    const auto code = static_cast<CLI::ExitCodes>(e.get_exit_code());
    const bool extra = code == CLI::ExitCodes::ExtrasError
                       || (code == CLI::ExitCodes::RequiredError && root.remaining_size() > 0);
    std::cerr << "adafloor: error: " << (extra ? unexpected_word(root) : e.what())
              << "\nadafloor --help and adafloor COMMAND --help list what there is" << std::endl;
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "adafloor: error: " << e.what() << std::endl;
    return 1;
  }
  return exit_code;
}

} // namespace adafloor
