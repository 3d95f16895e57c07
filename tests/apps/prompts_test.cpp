#define BOOST_TEST_MODULE prompts
#include "actors/prompts.hpp"

#include <boost/test/unit_test.hpp>

using namespace adafloor;

namespace {

std::string error_of(std::string_view text) {
  const auto parsed = parse_prompts(text, "p.jsonl", 16);
  return parsed ? "no error" : parsed.error().text;
}

} // namespace

BOOST_AUTO_TEST_CASE(prompts_are_read_in_order) {
  const auto read =
      parse_prompts("{\"prompt_id\": \"a\", \"prompt_token_ids\": [0, 15], \"n\": 3}\r\n"
                    "\n"
                    "{\"prompt_id\": 7, \"prompt_token_ids\": [1], "
                    "\"answer_token_ids\": [2, 12]}\n"
                    "{\"prompt_token_ids\": [3]}",
                    "p.jsonl", 16);
  BOOST_REQUIRE(read.has_value());
  BOOST_REQUIRE(read->size() == 3U);
  BOOST_TEST((*read)[0].id == "a");
  BOOST_TEST((*read)[0].tokens == (std::vector<token_id>{0, 15}));
  BOOST_TEST((*read)[0].answer.empty());
  BOOST_TEST((*read)[1].id == "7");
  BOOST_TEST((*read)[1].answer == (std::vector<token_id>{2, 12}));
  BOOST_TEST((*read)[2].id == "line-4");
}

BOOST_AUTO_TEST_CASE(each_malformed_line_is_named) {
  const std::string good = "{\"prompt_id\": \"a\", \"prompt_token_ids\": [1]}\n";
  const struct {
    std::string line;
    const char* said;
  } cases[] = {
      {"{\"prompt_token_ids\": [1, ", "p.jsonl:2: not a JSON object"},
      {"[1, 2]", "p.jsonl:2: not a JSON object"},
      {"{\"prompt_id\": \"b\"}", "p.jsonl:2: \"prompt_token_ids\" is missing"},
      {"{\"prompt_token_ids\": []}", "p.jsonl:2: \"prompt_token_ids\" must be a list"},
      {"{\"prompt_token_ids\": \"1 2\"}", "p.jsonl:2: \"prompt_token_ids\" must be a list"},
      {"{\"prompt_token_ids\": [1, 16]}", "\"prompt_token_ids\"[1] = 16: unknown token id"},
      {"{\"prompt_token_ids\": [-1]}", "= -1: unknown token id, the model has 0 to 15"},
      {"{\"prompt_token_ids\": [1.5]}", "= 1.5: unknown token id"},
      {"{\"prompt_token_ids\": [99999999999999999999]}", "unknown token id"},
      {"{\"prompt_token_ids\": [1], \"answer_token_ids\": [77]}", "\"answer_token_ids\"[0] = 77"},
      {"{\"prompt_id\": \"a\", \"prompt_token_ids\": [2]}", "stands on line 1 already"},
      {"{\"prompt_id\": [], \"prompt_token_ids\": [2]}", "\"prompt_id\" must be a string"},
  };
  for (const auto& c : cases) {
    const auto said = error_of(good + c.line + "\n");
    BOOST_TEST(said.find(c.said) != std::string::npos, said << " should say " << c.said);
  }
  BOOST_TEST(error_of("\n \n") == "p.jsonl: holds no prompt");
  BOOST_TEST(!load_prompts("/nonexistent.jsonl", 16).has_value());
}
