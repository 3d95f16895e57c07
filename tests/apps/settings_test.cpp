#define BOOST_TEST_MODULE settings
#include "apps/commands.hpp"
#include "apps/settings.hpp"

#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace adafloor;

namespace {

/// Resolves a command line as `adafloor run` does.
result<job> resolve(std::vector<std::string> words) {
  CLI::App root;
  run_settings settings;
  auto* command = root.add_subcommand("run");
  settings.add_options(*command);
  words.insert(words.begin(), "run");
  std::reverse(words.begin(), words.end()); // CLI11 takes them last first
  root.parse(words);
  return settings.resolve();
}

std::string error_of(const result<job>& outcome) {
  return outcome ? "no error" : outcome.error().text;
}

struct config_file {
  std::string path;
  explicit config_file(const std::string& text) {
    path = std::filesystem::temp_directory_path()
           / ("adafloor-settings-" + std::to_string(getpid()) + ".toml");
    std::ofstream{path} << text;
  }
  ~config_file() { std::filesystem::remove(path); }
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_models_that_ship_are_the_default) {
  const auto task = resolve({});
  BOOST_REQUIRE_MESSAGE(task.has_value(), error_of(task));
  BOOST_TEST(task->world_size == 8U);
  BOOST_TEST(task->ep.floor == 2U);
  BOOST_TEST(task->ep.group_sizes == (std::vector<std::uint32_t>{8, 4, 2}));
  BOOST_TEST(task->prompts_per_step == 16U);
  BOOST_TEST(task->arms == (std::vector<std::string>{"vanilla", "natural"}));
  BOOST_TEST(holds(task->models.front(), "collatz-moe/v3-bf16"));
  BOOST_TEST(holds(task->history, "history/v2.csv"));
  for (const auto& path : {task->models.front(), task->prompts, task->history, task->sidecar.model,
                           task->sidecar.queries})
    BOOST_TEST(std::filesystem::exists(path), path);
}

BOOST_AUTO_TEST_CASE(the_history_is_that_of_the_version_before) {
  const auto home = shipped_folder();
  const auto second = resolve({"--model", home + "/models/collatz-moe/v2-bf16"});
  BOOST_REQUIRE(second.has_value());
  BOOST_TEST(holds(second->history, "history/v1.csv"));
  const auto first = resolve({"--model", home + "/models/collatz-moe/v1-bf16"});
  BOOST_REQUIRE(first.has_value());
  BOOST_TEST(first->history == "");
}

BOOST_AUTO_TEST_CASE(the_command_line_wins_over_the_file_and_lists_split) {
  const config_file file{"[ep]\nworld_size = 4\narms = [\"vanilla\"]\n"
                         "[rollout]\nsteps = 7\ntemperature = 0.5\n[guard]\nenabled = true\n"};
  const auto task = resolve({"--config", file.path, "--steps", "2", "--arms", "natural,vanilla",
                             "--model", "a", "--model", "b", "--no-guard"});
  BOOST_REQUIRE_MESSAGE(task.has_value(), error_of(task));
  BOOST_TEST(task->world_size == 4U);
  BOOST_TEST(task->steps == 2U);
  BOOST_TEST(task->rollout.temperature == 0.5);
  BOOST_TEST(task->arms == (std::vector<std::string>{"natural", "vanilla"}));
  BOOST_TEST(task->models.size() == 2U);
  BOOST_TEST(task->prompts_per_step == 8U);
  BOOST_TEST(!task->guard.enabled);
}

BOOST_AUTO_TEST_CASE(paths_in_a_file_are_relative_to_it) {
  const config_file file{"[output]\ndir = \"results\"\n"};
  const auto task = resolve({"--config", file.path});
  BOOST_REQUIRE_MESSAGE(task.has_value(), error_of(task));
  BOOST_TEST(task->out_dir == std::filesystem::temp_directory_path() / "results");
}

BOOST_AUTO_TEST_CASE(wrong_files_are_refused_with_line_and_remedy) {
  const struct {
    const char* text;
    const char* line;
    const char* said;
  } cases[] = {
      {"[rollout]\nn = 4\nmax_num_seq = 3\n", ":3:", "did you mean \"rollout.max_num_seqs\"?"},
      {"[rolout]\nsteps = 4\n", ":2:", "did you mean \"rollout.steps\"?"},
      {"[rollout]\n\nsteps = \"many\"\n", ":3:", "rollout.steps = many: must be a whole number"},
      {"[rollout]\nsteps = -1\n", ":2:", "must be a whole number from 0"},
      {"[rollout]\nsteps = [1, 2]\n", ":2:", "must be one value"},
      {"[ep\n", ":1:", "not TOML"},
  };
  for (const auto& c : cases) {
    const config_file file{c.text};
    const auto text = error_of(resolve({"--config", file.path}));
    BOOST_TEST(holds(text, file.path + c.line), text);
    BOOST_TEST(holds(text, c.said), text);
  }
  BOOST_TEST(holds(error_of(resolve({"--config", "/nonexistent.toml"})), "cannot be read"));
}

BOOST_AUTO_TEST_CASE(wrong_options_are_refused) {
  BOOST_TEST(
      holds(error_of(resolve({"--ranks", "eight"})), "--ranks eight: must be a whole number"));
  BOOST_TEST(
      holds(error_of(resolve({"--floor", "low"})), "--floor low: must be a number of ranks"));
  BOOST_TEST(holds(error_of(resolve({"--sidecar-model", "x"})), "belong together"));
  const auto none = resolve({"--sidecar-model", "none", "--history", "none"});
  BOOST_REQUIRE_MESSAGE(none.has_value(), error_of(none));
  BOOST_TEST(none->sidecar.queries == "");
  BOOST_TEST(none->history == "");
}

BOOST_AUTO_TEST_CASE(a_replay_takes_its_numbers_from_the_workload) {
  std::string csv = "epoch,position,prompt_id,sample,prompt_tokens,response_tokens\n";
  for (const char* epoch : {"a", "b"})
    for (int prompt = 0; prompt < 9; ++prompt)
      for (int sample = 0; sample < 3; ++sample)
        csv += epoch + (',' + std::to_string(prompt)) + ",p" + std::to_string(prompt) + ','
               + std::to_string(sample) + ',' + std::to_string(60 + prompt) + ",20000\n";
  const config_file lengths{csv};
  const std::vector<std::string> words{"--device",   "emulated",   "--ranks",      "2",
                                       "--workload", lengths.path, "--cost-model", "ascend-eager"};
  const auto task = resolve(words);
  BOOST_REQUIRE_MESSAGE(task.has_value(), error_of(task));
  BOOST_TEST(task->workload_epoch == "b");
  BOOST_TEST(task->history == lengths.path);
  BOOST_TEST(task->history_epochs == std::vector<std::string>{"a"});
  BOOST_TEST(task->n == 3U);
  BOOST_TEST(task->steps == 2U); // 9 prompts, 4 a step
  BOOST_TEST(task->rollout.max_prompt_length == 68U);
  BOOST_TEST(task->rollout.max_response_length == 20000U);
  BOOST_TEST(task->kv.capacity_tokens == 380800U); // the cost model's largest
  BOOST_TEST(task->sidecar.model == "");
  BOOST_TEST(!task->ep.cost_model.empty());
  const auto refused = [&](std::vector<std::string> more, const std::string& said) {
    auto all = words;
    all.insert(all.end(), more.begin(), more.end());
    const auto text = error_of(resolve(all));
    BOOST_TEST(holds(text, said), text);
  };
  refused({"--workload-epoch", "c"}, "has the epochs a, b");
  refused({"--n", "4"}, "--n 4: the prompts of --workload have 3 samples");
  refused({"--steps", "3"}, "epoch b has 9 prompts; 3 steps of 4 need more");
  refused({"--model", "x"}, "--model: not with --device emulated");
  refused({"--prompts", "x"}, "--prompts: not with --device emulated");
  refused({"--kv-capacity-tokens", "9000"}, "leave it out");
  refused({"--cost-model", "none"}, "needs --cost-model");
  refused({"--device", "cpu"}, "--workload: only with --device emulated");
  BOOST_TEST(holds(error_of(resolve({"--device", "emulated"})), "needs --workload FILE"));
  BOOST_TEST(holds(error_of(resolve({"--time-scale", "0.5"})), "only with --device emulated"));
}

BOOST_AUTO_TEST_CASE(every_key_has_an_option_of_its_own) {
  run_settings settings;
  std::vector<std::string> keys, options;
  for (const auto& row : settings.table()) {
    BOOST_TEST(holds(row.key, "."), row.key);
    BOOST_TEST(row.option.rfind("--", 0) == 0U, row.option);
    keys.push_back(row.key);
    options.push_back(row.option);
  }
  std::sort(keys.begin(), keys.end());
  std::sort(options.begin(), options.end());
  BOOST_TEST((std::adjacent_find(keys.begin(), keys.end()) == keys.end()));
  BOOST_TEST((std::adjacent_find(options.begin(), options.end()) == options.end()));
}

BOOST_AUTO_TEST_CASE(the_file_that_ships_names_every_key_and_changes_nothing) {
  const std::string path = std::string{ADAFLOOR_SOURCE_DIR} + "/config/run.toml";
  auto from_file = resolve({"--config", path});
  auto from_nothing = resolve({});
  BOOST_REQUIRE_MESSAGE(from_file.has_value(), error_of(from_file));
  from_file->out_dir = from_nothing->out_dir = ""; // may differ by a second
  BOOST_TEST(to_json_text(*from_file) == to_json_text(*from_nothing));
  std::ifstream file{path};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  run_settings settings;
  for (const auto& row : settings.table()) {
    auto name = row.key.substr(row.key.find('.') + 1);
    BOOST_TEST(holds(text, "\n" + name + " = "), row.key);
  }
}

BOOST_AUTO_TEST_CASE(the_nearest_word_is_found_and_a_far_one_is_not) {
  BOOST_TEST(nearest("flor", {"ranks", "floor", "steps"}) == "floor");
  BOOST_TEST(nearest("zzzzzzzzzzzz", {"ranks", "floor"}) == "");
}
