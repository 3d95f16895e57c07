#pragma once
// Progress of a run on stderr: one line that is redrawn on a terminal, plain lines elsewhere.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace adafloor {

class progress {
public:
  progress();
  /// Shows what an event line says.
  void take(const nlohmann::json& event);
  /// Ends the redrawn line, if there is one.
  void finish();

private:
  void line(const std::string& text);
  void bar(const nlohmann::json& event);

  bool terminal_ = false;
  bool bar_shown_ = false;
  std::uint64_t shown_percent_ = 0; ///< without a terminal: the last figure that was printed
};

} // namespace adafloor
