#pragma once
// A worker process's line to the rank that started it: orders come in, what became of them goes
// out.
#include "actors/envelope_stream.hpp"

namespace adafloor {

/// Thread: one makes all calls.
class rank_line : public envelope_stream {
public:
  rank_line(std::uint32_t rank, int fd) : envelope_stream(fd), self_(rank) {}

  template <class M>
  void tell(M message) {
    send({{self_, role_kind::worker}, {self_, role_kind::sidecar}, {}, {}, std::move(message)});
  }
  /// Hands what has come to `handle(const run_unit&)` and `handle(const stop_worker&)`. False once
  /// the rank is gone. Errors: internal.
  template <class Handler>
  result<bool> take_orders(Handler handle) {
    for (;;) {
      const auto order = receive();
      if (!order && order.error().code == error_code::peer_lost) return false;
      if (!order) return tl::unexpected(order.error());
      if (!*order) return true;
      if (const auto* unit = std::get_if<run_unit>(&(*order)->body))
        handle(*unit);
      else if (const auto* end = std::get_if<stop_worker>(&(*order)->body))
        handle(*end);
    }
  }

private:
  rank_id self_;
};

} // namespace adafloor
