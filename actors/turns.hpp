#pragma once
// In what turns threads of one machine get the processors, where there are fewer of those than of
// threads that want to run. Wishes: a system that knows no such thing goes on as it did.

namespace adafloor {

/// For a thread that waits for messages many times in a millisecond: where it wakes, it need not
/// let a thread of longer turns end its own, which may take milliseconds (Linux 6.12). Its share of
/// the processor stays the same.
void take_short_turns();

/// Nice values. Messages more than this and requests that move stand still for longer; less, and
/// the news of a contraction hold its first steps up.
constexpr int messages_nice = 5, copies_nice = 10;

/// For the calling thread and those that it starts from then on: where processors are short, decode
/// steps go first. Cannot be taken back.
void give_way(int by);

} // namespace adafloor
