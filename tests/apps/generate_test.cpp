#define BOOST_TEST_MODULE generate
#include "apps/generate.hpp"
#include "gpu/npy.hpp"
#include "tests/gpu/model_files.hpp"

#include <iostream>

using namespace adafloor;
using namespace adafloor::tests;
using nlohmann::json;

namespace {

const std::string model = ADAFLOOR_SOURCE_DIR "/tests/golden/fixtures/moe_e8k2_norm_tied_kv1";

struct outcome {
  int code = -1;
  std::string out, err;
};

outcome run(std::vector<std::string> arguments) {
  outcome got;
  CLI::App root{"test"};
  add_generate(root, &got.code);
  std::ostringstream out, err;
  auto* old_out = std::cout.rdbuf(out.rdbuf());
  auto* old_err = std::cerr.rdbuf(err.rdbuf());
  arguments.insert(arguments.begin(), "generate");
  std::reverse(arguments.begin(), arguments.end());
  try {
    root.parse(arguments);
  } catch (const CLI::ParseError&) {
    got.code = 2;
  }
  std::cout.rdbuf(old_out);
  std::cerr.rdbuf(old_err);
  got.out = out.str();
  got.err = err.str();
  return got;
}

} // namespace

BOOST_AUTO_TEST_CASE(json_and_logits) {
  scratch_folder folder;
  auto one = run({"--model", model, "--prompt-ids", "19,71,89", "--max-tokens", "9", "--ignore-eos",
                  "--dump-logits", folder.file("x.npy"), "--json"});
  BOOST_REQUIRE_EQUAL(one.code, 0);
  auto outputs = json::parse(one.out)["outputs"];
  BOOST_REQUIRE_EQUAL(outputs.size(), 1U);
  BOOST_TEST(outputs[0]["tokens"].size() == 9U);
  BOOST_TEST(outputs[0]["logprobs"].size() == 9U);
  BOOST_TEST(outputs[0]["stop"] == "length");
  auto logits = read_npy(folder.file("x.npy"));
  BOOST_REQUIRE_MESSAGE(logits, logits.error().text);
  BOOST_TEST(logits->rows == 12U);
  BOOST_TEST(logits->columns == 97U);
}

BOOST_AUTO_TEST_CASE(files_and_ranks) {
  scratch_folder folder;
  write_all(folder.file("p.jsonl"), "{\"prompt_token_ids\": [1, 2, 3], \"n\": 5}\n\n"
                                    "{\"prompt_token_ids\": [7]}\n");
  auto arguments = [&](const char* ranks, const char* seed) {
    return std::vector<std::string>{"--model",      model,    "--prompts", folder.file("p.jsonl"),
                                    "--max-tokens", "12",     "--json",    "--temperature",
                                    "1.5",          "--seed", seed,        "--ranks",
                                    ranks};
  };
  auto one = run(arguments("1", "3")), four = run(arguments("4", "3")),
       other = run(arguments("1", "4"));
  BOOST_TEST(one.code == 0);
  BOOST_TEST(one.out == four.out);
  BOOST_TEST(one.out != other.out);
  auto dump = arguments("2", "3");
  dump.insert(dump.end(), {"--dump-logits", folder.file("y.npy")});
  BOOST_TEST(run(dump).code == 0);
  for (const char* name : {"y.0.npy", "y.1.npy"})
    BOOST_TEST(read_npy(folder.file(name)).has_value());
  BOOST_TEST(!file_exists(folder.file("y.npy")));
}

BOOST_AUTO_TEST_CASE(bad_input_is_one_line_and_status_2) {
  scratch_folder folder;
  write_all(folder.file("bad.jsonl"), "{\"prompt_token_ids\": [1]}\n{\"prompt_token_ids\": [1,\n");
  write_all(folder.file("ids.jsonl"), "{\"prompt_token_ids\": [1, 97]}\n");
  write_all(folder.file("none.jsonl"), "\n");
  write_all(folder.file("text.jsonl"), "{\"prompt\": \"hello\"}\n");
  auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), {"--model", model});
    auto got = run(arguments);
    BOOST_TEST(got.code == 2);
    BOOST_TEST(got.out == "");
    BOOST_TEST(got.err.find(part) != std::string::npos, got.err);
    BOOST_TEST(std::count(got.err.begin(), got.err.end(), '\n') == 1);
  };
  refused({"--prompts", folder.file("bad.jsonl")}, "bad.jsonl:2: is no JSON object");
  refused({"--prompts", folder.file("ids.jsonl")}, "ids.jsonl:1: token 97 is unknown");
  refused({"--prompts", folder.file("none.jsonl")}, "none.jsonl: has no prompts");
  refused({"--prompts", folder.file("text.jsonl")}, "text.jsonl:1: needs prompt_token_ids");
  refused({"--prompts", folder.file("absent.jsonl")}, "absent.jsonl: cannot be opened");
  refused({"--prompt-ids", "500"}, "token 500 is unknown");
  refused({"--prompt-ids", "5", "--ranks", "3"}, "3 ranks do not divide 8 experts");
  refused({"--prompt-ids", "5", "--ranks", "0"}, "--ranks is 0");
  refused({"--prompt-ids", "5", "--max-tokens", "512"}, "at most 511");
  refused({"--prompt-ids", "5", "--top-p", "2"}, "top_p");
  refused({"--prompt-ids", "5", "--dump-logits", "/nowhere/x.npy"}, "/nowhere/ does not exist");
  refused({}, "either --prompt-ids or --prompts");
  BOOST_TEST(run({"--model", "/nowhere", "--prompt-ids", "5"}).code == 2);
}
