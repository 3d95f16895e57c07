// What a user of AuxWork writes: work of their own, registered under a name, and a main that makes
// the program `adafloor` with that work. For instance
//   callback_user run --lease-callback longest-chain --lease-callback-file ranges.jsonl ...
// The other work is what tests need: it misbehaves as its input says.
#include "actors/aux_work.hpp"
#include "apps/program.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace {

using namespace adafloor;
using json = nlohmann::json;

/// Input {"from": A, "to": B}: the number in [A, B) whose Collatz chain is longest, and its steps.
class longest_chain : public aux_work {
public:
  result<std::string> run(std::uint64_t, const std::string& input,
                          const aux_lease& lease) override {
    const auto range = json::parse(input, nullptr, false);
    if (!range.is_object() || !range.contains("from") || !range.contains("to"))
      return bad_input("must be {\"from\": A, \"to\": B}");
    std::uint64_t best = 0, steps_of_best = 0;
    const auto to = range["to"].get<std::uint64_t>();
    for (auto start = range["from"].get<std::uint64_t>(); start < to; ++start) {
      if (lease.stop_requested()) return fail(error_code::aborted, "the rank is wanted back");
      std::uint64_t steps = 0;
      for (auto n = start; n > 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1)
        ++steps;
      if (steps < steps_of_best) continue;
      best = start;
      steps_of_best = steps;
    }
    return json{{"start", best}, {"steps", steps_of_best}}.dump();
  }
};

class unruly : public aux_work {
public:
  result<std::string> run(std::uint64_t unit, const std::string& input,
                          const aux_lease& lease) override {
    constexpr std::chrono::milliseconds a_while{20};
    std::this_thread::sleep_for(a_while);
    if (input == "die") _exit(9);
    if (input == "throw") throw std::runtime_error("thrown");
    if (input == "too long") return std::string(text_bytes_max + 1, 'x');
    if (input == "deaf")
      for (;;)
        std::this_thread::sleep_for(a_while);
    if (input == "until stopped") {
      while (!lease.stop_requested())
        std::this_thread::sleep_for(a_while);
      return fail(error_code::aborted, "stopped");
    }
    using seconds = std::chrono::duration<double>;
    return json{{"calls", ++calls_},
                {"unit", unit},
                {"lease", lease.id},
                {"rank", lease.rank.value},
                {"device", lease.device},
                {"left", seconds(lease.needed_at - std::chrono::steady_clock::now()).count()}}
        .dump();
  }

private:
  int calls_ = 0; ///< of this process
};

} // namespace

int main(int argc, char** argv) {
  register_aux_work("longest-chain", [] { return std::make_unique<longest_chain>(); });
  register_aux_work("unruly", [] { return std::make_unique<unruly>(); });
  return run_program(argc, argv);
}
