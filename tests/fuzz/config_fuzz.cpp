// libFuzzer: a run's settings as TOML.
#include "apps/settings.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  adafloor::run_settings settings;
  if (auto read = settings.apply_toml(text, "fuzz.toml"); !read && read.error().text.empty())
    std::abort();
  return 0;
}
