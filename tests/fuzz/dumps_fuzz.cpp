// libFuzzer: a trainer's dump, plain, gzip or zstd, as `adafloor history import` reads it. Every
// row that comes out must be a row of a history.
#include "apps/dump_import.hpp"
#include "apps/text_input.hpp"
#include "tests/fuzz/scratch_file.hpp"

#include <unistd.h>

using namespace adafloor;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::scratch_file file("dump.jsonl");
  file.write(data, size);
  std::size_t rows = 0;
  dump_importer importer({}, [&](const imported_row& out) {
    if (out.row.response_tokens < 0 || out.row.prompt_tokens < 0 || out.row.sample < 0)
      std::abort();
    ++rows;
  });
  const auto read = importer.read_file(file.path());
  if (rows != importer.rows()) std::abort();
  if (read) importer.summary();
  return 0;
}
