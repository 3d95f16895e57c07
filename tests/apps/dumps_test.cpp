#define BOOST_TEST_MODULE dumps
// Trainers' dumps: recognised by content, counted as their trainer counts, damaged ones refused.
#include "apps/dump_import.hpp"
#include "apps/plan_inputs.hpp"

#include <boost/test/unit_test.hpp>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>

using namespace adafloor;
using nlohmann::json;

namespace {

struct expected {
  const char* line;
  dump_format format;
  long prompt_tokens, response_tokens, step;
  bool truncated;
};

const expected samples[] = {
    {R"({"input":"abcd","output":"12345678","step":3})", dump_format::verl, 2, 3, 3, false},
    {R"({"prompt":"Q","tokens":[1,2,3,9,9],"response":"A","response_length":2,)"
     R"("status":"truncated"})",
     dump_format::slime, 3, 2, -1, true},
    {R"({"task_id":1,"seqlen":40,"prompt_len":25,"tail_version":7,"prompt":"Q","completion":"A"})",
     dump_format::areal, 25, 15, 7, false},
    {R"({"input_lengths":[9],"token_ids":[[1,2,3,4,5,6,7,8,9,0]],)"
     R"("token_loss_mask":[[0,0,0,0,1,1,1,1,1,0]]})",
     dump_format::nemo_rl, 4, 5, -1, false},
    {R"({"global_step":[5],"id":["a1"],"prompt":["Q"],"responses":["12345"]})", dump_format::roll,
     1, 2, 5, false},
    {R"({"input_prompt":"Q","output_response":"A","stop_reason":"length"})", dump_format::skyrl, 1,
     1, -1, true},
    {R"({"task":{"key":"k"},"run":{"work":{"step":12}},"traces":[{"calls":[)"
     R"({"finish_reason":"stop","usage":{"prompt_tokens":101,"completion_tokens":40}},)"
     R"({"finish_reason":"length","usage":{"prompt_tokens":150,"completion_tokens":2}}]}]})",
     dump_format::prime_rl, 101, 42, 12, true},
    {R"({"step":4,"token_ids":[1,2,3],"loss_mask":[0,1,1]})", dump_format::prime_rl_export, 1, 2, 4,
     false},
    {R"({"step":10,"prompt":"Q","completion":"A","reward":0.5})", dump_format::trl, 1, 1, 10,
     false},
};

struct folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("adafloor-dumps-" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(path); }
  ~folder() { std::filesystem::remove_all(path); }
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream{path / name, std::ios::binary} << text;
    return (path / name).string();
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(each_format_is_recognised_and_counted) {
  for (const auto& s : samples) {
    auto value = json::parse(s.line);
    auto format = recognise(value);
    BOOST_REQUIRE_MESSAGE(format.has_value(), s.line);
    BOOST_TEST((*format == s.format), s.line);
    auto rows = read_dump(*format, value, 1 / 3.6);
    BOOST_REQUIRE_MESSAGE(rows.has_value(), s.line);
    BOOST_REQUIRE(rows->size() == 1U);
    BOOST_TEST(rows->front().prompt_tokens == s.prompt_tokens, s.line);
    BOOST_TEST(rows->front().response_tokens == s.response_tokens, s.line);
    BOOST_TEST(rows->front().step == s.step, s.line);
    BOOST_TEST(rows->front().truncated == s.truncated, s.line);
  }
  BOOST_TEST(!recognise(json::parse(R"({"a":1})")).has_value());
  BOOST_TEST(!recognise(json::parse("[1]")).has_value());
}

BOOST_AUTO_TEST_CASE(damaged_rows_are_refused_with_key_and_value) {
  const char* lines[] = {R"({"input":3,"output":"x"})",
                         R"({"seqlen":-4,"prompt_len":1,"prompt":"Q"})",
                         R"({"seqlen":4,"prompt_len":9,"prompt":"Q"})",
                         R"({"input_lengths":[9,9],"token_ids":[[1]],"token_loss_mask":[[1]]})",
                         R"({"input_lengths":[1],"token_ids":[[1,2]],"token_loss_mask":[[1]]})",
                         R"({"responses":"x","prompt":["Q"]})",
                         R"({"responses":["x"],"prompt":["Q","R"]})",
                         R"({"task":{"key":"k"},"traces":[{"calls":[{"usage":{}}]}]})",
                         R"({"response_length":1.5,"prompt":"Q"})"};
  for (const char* line : lines) {
    auto value = json::parse(line);
    auto format = recognise(value);
    BOOST_REQUIRE_MESSAGE(format.has_value(), line);
    auto rows = read_dump(*format, value, 0.3);
    BOOST_REQUIRE_MESSAGE(!rows.has_value(), line);
    BOOST_TEST(rows.error().text.find("allowed") != std::string::npos, rows.error().text);
  }
}

BOOST_AUTO_TEST_CASE(compressed_files_and_folders_in_order_of_their_numbers) {
  folder f;
  auto line = [](int step, const char* answer) {
    return "{\"input\":\"Q\",\"output\":\"" + std::string{answer}
           + "\",\"step\":" + std::to_string(step) + "}\n";
  };
  f.put("2.jsonl", line(2, "aaaa") + line(2, "aaaaaaaa"));
  auto text = line(10, "aaaaaaaaaaaaaaaa");
  auto* gz = gzopen((f.path / "10.jsonl.gz").c_str(), "wb");
  gzwrite(gz, text.data(), static_cast<unsigned>(text.size()));
  gzclose(gz);
  auto last = line(11, "a");
  std::string packed(ZSTD_compressBound(last.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), last.data(), last.size(), 1));
  f.put("11.jsonl.zst", packed);
  auto h = load_history(f.path.string());
  BOOST_REQUIRE(h.has_value());
  BOOST_REQUIRE(h->rows.size() == 4U);
  BOOST_TEST(h->epochs.size() == 3U); // the prompt's first, second and third step
  BOOST_TEST(h->rows[1].sample == 1);
  BOOST_TEST(h->rows[2].response_tokens == 5);
  BOOST_TEST(h->rows[3].response_tokens == 1);
  auto cut = f.put("cut.zst", packed.substr(0, packed.size() - 3));
  BOOST_TEST(!load_history(cut).has_value());
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_read_name_the_remedy) {
  folder f;
  auto text_of = [](const result<length_history>& r) { return r ? std::string{} : r.error().text; };
  BOOST_TEST(text_of(load_history(f.put("a.parquet", "PAR1xxxx"))).find("pandas")
             != std::string::npos);
  BOOST_TEST(text_of(load_history(f.put("a.pt", std::string{"PK\3\4"}))).find("torch")
             != std::string::npos);
  BOOST_TEST(text_of(load_history(f.put("empty.csv", ""))).find("empty") != std::string::npos);
  BOOST_TEST(text_of(load_history((f.path / "none").string())).find("cannot be opened")
             != std::string::npos);
  auto model = load_cost_model("ascend-eagr");
  BOOST_REQUIRE(!model.has_value());
  BOOST_TEST(model.error().text.find("nearest: ascend-eager") != std::string::npos);
  for (const char* name : {"ascend-eager", "h200"})
    BOOST_TEST(load_cost_model(name).has_value());
}

BOOST_AUTO_TEST_CASE(strict_stops_and_lenient_counts) {
  folder f;
  auto path = f.put("bad.jsonl", "{\"input\":\"x\",\"output\":\"y\"}\nnot json\n{\"input\":1,"
                                 "\"output\":\"y\"}\n");
  dump_importer lenient{{}, [](const imported_row&) {}};
  BOOST_TEST(lenient.read_file(path).has_value());
  BOOST_TEST(lenient.rows() == 1U);
  BOOST_TEST(lenient.bad_rows() == 2U);
  import_options options;
  options.strict = true;
  dump_importer strict{options, [](const imported_row&) {}};
  auto stopped = strict.read_file(path);
  BOOST_REQUIRE(!stopped.has_value());
  BOOST_TEST(stopped.error().text.find("bad.jsonl:2") != std::string::npos);
}
