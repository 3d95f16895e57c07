// libFuzzer: a history CSV or a cost model as text. What is accepted is written and read again, and
// must be the same.
#include "planner/plan/cost_model.hpp"
#include "planner/plan/history.hpp"

#include <cstdlib>

using namespace adafloor;

namespace {

std::string written(const length_history& history) {
  std::string out(history_header());
  for (const auto& row : history.rows)
    out += format_row(history, row);
  return out;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto history = parse_history(text, "fuzz.csv")) {
    const auto once = written(*history);
    const auto again = parse_history(once, "again.csv");
    if (!again || written(*again) != once) std::abort();
    for (std::uint32_t epoch = 0; epoch < history->epochs.size(); ++epoch)
      epoch_prompts(*history, epoch);
  }
  if (const auto costs = parse_cost_model(text, "fuzz.costs")) {
    const auto once = format_cost_model(*costs);
    const auto again = parse_cost_model(once, "again.costs");
    if (!again || format_cost_model(*again) != once) std::abort();
  }
  return 0;
}
