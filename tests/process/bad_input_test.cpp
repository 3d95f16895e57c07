// Wrong input ends with one clear error and exit status 2, before anything was started or written.
#define BOOST_TEST_MODULE bad_input
#include "tests/process/program.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace adafloor::testing;
namespace fs = std::filesystem;

namespace {

struct workplace : scratch_dir {
  std::string out = path() + "/out";

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream{path() + "/" + name, std::ios::binary} << text;
    return path() + "/" + name;
  }
  /// A copy of the v3 model whose files a test may damage.
  std::string model_copy() const {
    const auto to = path() + "/model";
    fs::remove_all(to);
    fs::copy(shipped_models() + "/collatz-moe/v3-bf16", to);
    return to;
  }
  std::string edited_config(const std::string& key, const nlohmann::json& value) const {
    const auto model = model_copy();
    auto config = nlohmann::json::parse(read_file(model + "/config.json"));
    config[key] = value;
    std::ofstream{model + "/config.json"} << config.dump();
    return model;
  }

  void refuses(std::vector<std::string> arguments, const std::vector<std::string>& said) const {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"--out", out, "--json"});
    const auto ended = run_program(arguments, path());
    BOOST_TEST(ended.exit_code == 2, ended.err);
    BOOST_TEST(ended.out == "");
    for (const auto& part : said)
      BOOST_TEST(ended.err.find(part) != std::string::npos, ended.err << " should say " << part);
    BOOST_TEST(std::count(ended.err.begin(), ended.err.end(), '\n') <= 2, ended.err);
    BOOST_TEST(!fs::exists(out));
    BOOST_TEST(processes_with(out).empty());
  }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(impossible_combinations, workplace) {
  refuses({"--ranks", "8", "--floor", "9"}, {"--floor 9", "more than the 8 ranks"});
  refuses({"--ranks", "3"}, {"--ranks 3", "does not divide the 16 experts", "1, 2, 4, 8, 16"});
  refuses({"--kv-capacity-tokens", "512"},
          {"--kv-capacity-tokens 512", "too small for one request", "raise it to"});
  refuses({"--max-response-length", "5000"}, {"--max-response-length 5000", "2048 positions"});
  refuses({"--steps", "1000"}, {"512 prompts", "lower --steps"});
  refuses({"--arms", "vanila"}, {"vanila", "vanilla"});
  refuses({"--kv-dtype", "fp8"}, {"--kv-dtype fp8", "float32 and bfloat16"});
  refuses({"--device", "emulated"}, {"needs --workload FILE"});
  const auto lengths = write("lengths.csv", "epoch,prompt_id,sample,response_tokens\n"
                                            "a,p,0,5\na,q,0,7\n");
  const auto replay = [&](std::vector<std::string> more, const std::vector<std::string>& said) {
    more.insert(more.begin(), {"--device", "emulated", "--workload", lengths, "--ranks", "2",
                               "--prompts-per-step", "2", "--cost-model", "ascend-eager"});
    refuses(more, said);
  };
  replay({"--time-scale", "0"}, {"--time-scale 0", "above 0"});
  replay({"--emulated-experts", "5"}, {"--emulated-experts 5", "multiple of the 2 ranks"});
  replay({"--kv-dtype", "bfloat16"}, {"--kv-dtype bfloat16", "--emulated-kv-page-bytes"});
  replay({"--workload-epoch", "z"}, {"--workload-epoch z", "has the epochs a"});
  replay({"--workload", path() + "/none.csv"}, {"none.csv", "cannot be read"});
}

BOOST_FIXTURE_TEST_CASE(unknown_options_and_keys_name_the_nearest, workplace) {
  refuses({"--flor", "2"}, {"--flor", "--floor"});
  refuses({"--config", write("run.toml", "[ep]\nflor = 2\n")},
          {"run.toml:2", "\"ep.flor\"", "\"ep.floor\""});
  refuses({"--config", write("run.toml", "[ep]\nfloor =\n")}, {"run.toml:2", "not TOML"});
  refuses({"--config", path() + "/missing.toml"}, {"missing.toml", "cannot be read"});
}

BOOST_FIXTURE_TEST_CASE(malformed_files_are_named_with_their_line, workplace) {
  const std::string prompt = "{\"prompt_id\": \"a\", \"prompt_token_ids\": [11, 6]}\n";
  refuses({"--prompts", write("p.jsonl", prompt + "{\"prompt_token_ids\": [11,\n")},
          {"p.jsonl:2", "not a JSON object"});
  refuses({"--prompts", write("p.jsonl", prompt + "{\"prompt_token_ids\": [11, 99]}\n")},
          {"p.jsonl:2", "99", "unknown token id", "0 to 15"});
  refuses({"--prompts", path() + "/missing.jsonl"}, {"missing.jsonl", "cannot be read"});
  refuses(
      {"--history", write("h.csv", "epoch,prompt_id,sample,response_tokens\n1,a,0,12\n1,a,1,x\n")},
      {"h.csv:3", "response_tokens"});
  refuses({"--history", write("h.csv", "epoch,prompt,len\n1,a,0\n")}, {"h.csv", "prompt_id"});
  refuses({"--history", path() + "/missing.csv"}, {"missing.csv", "cannot be read"});
  const auto dense = shipped_models() + "/arith-dense-bf16";
  refuses({"--sidecar-model", dense, "--sidecar-queries", write("q.jsonl", "nonsense\n")},
          {"q.jsonl:1", "not a JSON object"});
}

BOOST_FIXTURE_TEST_CASE(damaged_models_are_refused, workplace) {
  refuses({"--model", path() + "/nowhere"}, {path() + "/nowhere"});
  auto model = model_copy();
  fs::remove(model + "/model.safetensors");
  refuses({"--model", model}, {"model.safetensors"});
  model = model_copy();
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") - 1000);
  refuses({"--model", model}, {"model.safetensors"});
  model = model_copy();
  fs::resize_file(model + "/model.safetensors", 100);
  refuses({"--model", model}, {"model.safetensors"});
  refuses({"--model", edited_config("hidden_size", 96)}, {"model.safetensors"});
  refuses({"--model", edited_config("use_sliding_window", true)},
          {"config.json", "sliding_window"});
  refuses({"--model", edited_config("rope_scaling", {{"type", "yarn"}})},
          {"config.json", "rope_scaling"});
  refuses({"--model", shipped_models() + "/arith-dense-bf16"}, {"arith-dense-bf16", "dense"});
  const auto moe = shipped_models() + "/collatz-moe/v3-bf16";
  refuses({"--sidecar-model", moe, "--sidecar-queries",
           shipped_models() + "/arith-dense-bf16/queries_heldout.jsonl"},
          {"--sidecar-model", "dense"});
}

BOOST_FIXTURE_TEST_CASE(an_output_folder_that_cannot_be_is_refused, workplace) {
  const auto file = write("file", "not a folder");
  const auto ended = run_program({"run", "--out", file + "/out"}, path());
  BOOST_TEST(ended.exit_code == 2, ended.err);
  BOOST_TEST(ended.err.find("is not a folder") != std::string::npos, ended.err);
}

BOOST_FIXTURE_TEST_CASE(usage, workplace) {
  BOOST_TEST(run_program({"--help"}, path()).exit_code == 0);
  for (const char* command : {"run", "node", "plan", "simulate", "history", "calibrate", "generate",
                              "report", "doctor"}) {
    const auto help = run_program({command, "--help"}, path());
    BOOST_TEST(help.exit_code == 0);
    BOOST_TEST(help.out.find(std::string{"Example: adafloor "} + command) != std::string::npos,
               command);
  }
  BOOST_TEST(run_program({}, path()).exit_code == 2);
  BOOST_TEST(run_program({"rnu"}, path()).exit_code == 2);
  BOOST_TEST(run_program({"report", path()}, path()).exit_code == 2);
  BOOST_TEST(run_program({"node", "--job", path() + "/none", "--rank", "0"}, path()).exit_code
             != 0);
}

BOOST_FIXTURE_TEST_CASE(the_doctor_prints_one_object, workplace) {
  const auto ended = run_program({"doctor", "--json"}, path());
  const auto found = nlohmann::json::parse(ended.out, nullptr, false);
  BOOST_REQUIRE(found.is_object());
  BOOST_TEST(ended.exit_code == (found["usable"] == true ? 0 : 1));
  BOOST_TEST(found["findings"].size() >= 8U);
  for (const auto& finding : found["findings"])
    BOOST_TEST((finding["state"] == "ok" || finding["remedy"] != ""), finding.dump());
}
