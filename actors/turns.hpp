#pragma once
// In what turns threads of one machine get the processors, where there are fewer of those than of
// threads that want to run. Wishes: a system that knows no such thing goes on as it did.

namespace adafloor {

/// For a thread that waits for messages many times in a millisecond: where it wakes, it need not
/// let a thread of longer turns end its own, which may take milliseconds (Linux 6.12). Its share of
/// the processor stays the same.
void take_short_turns();

} // namespace adafloor
