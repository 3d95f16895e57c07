#pragma once
// Errors are values. A function that can fail returns result<T>.
#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace adafloor {

/// What a caller can react to; everything else is in the text.
enum class error_code : std::uint8_t {
  bad_input = 1, ///< file, flag, config or message is wrong; exit status 2
  io,            ///< the operating system or the network refused
  refused,       ///< a peer said no
  busy,          ///< a bound is reached; try again later
  timed_out,     ///< a deadline passed
  aborted,       ///< stopped on request
  peer_lost,     ///< a rank died or froze; exit status 3
  internal,      ///< a bug
};

/// `text` names the place, the value and the remedy, in one line without a final full stop.
struct error {
  error_code code = error_code::internal;
  std::string text;
};

template <class T>
using result = tl::expected<T, error>;

inline tl::unexpected<error> fail(error_code code, std::string text) {
  return tl::unexpected<error>(error{code, std::move(text)});
}
inline tl::unexpected<error> bad_input(std::string text) {
  return fail(error_code::bad_input, std::move(text));
}

} // namespace adafloor
