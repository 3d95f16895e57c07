// libFuzzer: any bytes may reach the decoder; what it accepts must survive a second round.
#include "messages/codec.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view frame(reinterpret_cast<const char*>(data), size);
  if (const auto got = adafloor::decode(frame)) {
    const auto bytes = adafloor::encode(*got);
    const auto again = adafloor::decode(bytes);
    if (!again || adafloor::encode(*again) != bytes) std::abort();
  }
  return 0;
}
