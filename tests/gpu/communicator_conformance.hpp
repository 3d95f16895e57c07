#pragma once
// What every implementation of communicator and collective_fabric must do. A test program calls
// run_communicator_conformance(factory) from a test case of its own.
#include "gpu/communicator.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

namespace adafloor::tests {

/// Fabrics of a fresh world; element r belongs to rank r. All ranks live in this process.
using fabric_factory =
    std::function<std::vector<std::unique_ptr<collective_fabric>>(std::uint32_t world_size)>;

/// Complaints of threads, since the test framework's checks are for one thread.
class complaints {
public:
  void check(bool ok, const std::string& what) {
    if (ok) return;
    std::lock_guard lock(mutex_);
    all_.push_back(what);
  }
  void report() {
    for (const auto& text : all_)
      BOOST_ERROR(text);
    all_.clear();
  }

private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

/// Bytes that member `from` sends to member `to` in `step`: length and content depend on all three.
inline std::vector<std::byte> conformance_bytes(std::size_t from, std::size_t to,
                                                std::uint64_t step, std::size_t scale) {
  std::vector<std::byte> bytes((from * 7 + to * 3 + step) % 5 * scale);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(from * 31 + to * 17 + step * 5 + i);
  return bytes;
}

inline std::vector<rank_id> first_ranks(std::uint32_t count) {
  std::vector<rank_id> members;
  for (std::uint32_t r = 0; r < count; ++r)
    members.emplace_back(r);
  return members;
}

/// One exchange; checks what came in.
inline void checked_exchange(communicator& group, exchange_id id, std::size_t scale,
                             complaints& wrong) {
  auto count = group.members().size(), self = group.self_index();
  std::vector<std::vector<std::byte>> out(count);
  std::vector<bytes_view> outgoing(count), incoming;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = conformance_bytes(self, i, id.step, scale);
    outgoing[i] = {out[i].data(), out[i].size()};
  }
  auto done = group.exchange(id, outgoing, &incoming);
  if (!done) return wrong.check(false, "exchange failed: " + done.error().text);
  for (auto& bytes : out) // outgoing is ours again
    std::fill(bytes.begin(), bytes.end(), std::byte{0xEE});
  wrong.check(incoming.size() == count, "one view per member");
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    auto expected = conformance_bytes(i, self, id.step, scale);
    wrong.check(std::vector<std::byte>(incoming[i].data, incoming[i].data + incoming[i].size)
                    == expected,
                "bytes of member " + std::to_string(i) + " in step " + std::to_string(id.step));
  }
}

/// Runs `body(member index, communicator)` in one thread per member of a group.
template <class F>
void in_group(std::vector<std::unique_ptr<collective_fabric>>& fabrics, epoch_id epoch,
              const std::vector<rank_id>& members, F body) {
  std::vector<std::thread> threads;
  complaints wrong;
  for (std::size_t i = 0; i < members.size(); ++i)
    threads.emplace_back([&, i] {
      auto group = fabrics[members[i].value]->make_group(epoch, members);
      if (!group) return wrong.check(false, "make_group: " + group.error().text);
      wrong.check((*group)->epoch() == epoch, "epoch");
      wrong.check((*group)->members() == members, "members");
      wrong.check((*group)->self_index() == i, "self_index");
      body(i, **group);
    });
  for (auto& thread : threads)
    thread.join();
  wrong.report();
}

/// Frames of zero and many bytes arrive unchanged, step after step, in every phase.
inline void conformance_delivery(const fabric_factory& make) {
  for (std::uint32_t ranks : {1U, 2U, 4U, 8U}) {
    auto fabrics = make(ranks);
    complaints wrong;
    in_group(fabrics, epoch_id{1}, first_ranks(ranks), [&](std::size_t, communicator& group) {
      for (std::uint64_t step = 0; step < 30; ++step)
        for (auto phase : {exchange_id::dispatch, exchange_id::combine, exchange_id::header})
          checked_exchange(group, {step, static_cast<std::uint16_t>(step % 4), phase},
                           step == 7 ? 100'000 : 9, wrong);
    });
    wrong.report();
  }
}

/// The world contracts to a part of its members and comes back; frames of groups never mix.
inline void conformance_regrouping(const fabric_factory& make) {
  auto fabrics = make(4);
  complaints wrong;
  std::uint64_t epoch = 1;
  for (const auto& members : {first_ranks(4),
                              std::vector<rank_id>{rank_id{1}, rank_id{3}},
                              {rank_id{3}},
                              first_ranks(4)}) {
    in_group(fabrics, epoch_id{epoch}, members, [&](std::size_t, communicator& group) {
      for (std::uint64_t step = epoch; step < epoch + 10; ++step)
        checked_exchange(group, {step, 0, exchange_id::dispatch}, 50, wrong);
    });
    ++epoch;
  }
  wrong.report();
}

/// Groups that are kept go on in a newer epoch, in turn with others that have the same ranks.
inline void conformance_kept_groups(const fabric_factory& make) {
  auto fabrics = make(3);
  complaints wrong;
  std::vector<std::thread> threads;
  const std::vector<rank_id> pair{rank_id{1}, rank_id{2}};
  for (std::size_t r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      auto world = fabrics[r]->make_group(epoch_id{1}, first_ranks(3));
      result<std::unique_ptr<communicator>> kept;
      if (r > 0) kept = fabrics[r]->make_group(epoch_id{1}, pair);
      for (std::uint64_t epoch = 2; epoch <= 9; ++epoch) {
        const bool small = epoch % 2 == 0;
        if (small && r == 0) continue;
        auto& group = small ? **kept : **world;
        const auto entered = group.enter(epoch_id{epoch});
        wrong.check(entered.has_value() && group.epoch() == epoch_id{epoch}, "enter");
        wrong.check(!group.enter(epoch_id{epoch}).has_value(), "an epoch is entered once");
        for (std::uint64_t step = 0; step < 5; ++step)
          checked_exchange(group, {step, 0, exchange_id::dispatch}, 50, wrong);
      }
    });
  for (auto& thread : threads)
    thread.join();
  wrong.report();
}

/// A member that switches early sends into the next group before others have made it.
inline void conformance_early_frames(const fabric_factory& make) {
  auto fabrics = make(3);
  complaints wrong;
  std::vector<std::thread> threads;
  auto members = first_ranks(3);
  for (std::size_t r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) {
        if ((r + epoch) % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        auto group = fabrics[r]->make_group(epoch_id{epoch}, members);
        if (!group) return wrong.check(false, "make_group: " + group.error().text);
        checked_exchange(**group, {epoch, 0, exchange_id::header}, 20, wrong);
      }
    });
  for (auto& thread : threads)
    thread.join();
  wrong.report();
}

inline void conformance_bad_groups(const fabric_factory& make) {
  auto fabrics = make(3);
  for (const auto& members :
       std::vector<std::vector<rank_id>>{{},
                                         {rank_id{1}, rank_id{2}},             // without self
                                         {rank_id{1}, rank_id{0}},             // not ascending
                                         {rank_id{0}, rank_id{0}, rank_id{1}}, // twice
                                         {rank_id{0}, rank_id{3}}}) {          // unknown
    auto group = fabrics[0]->make_group(epoch_id{1}, members);
    BOOST_REQUIRE(!group);
    BOOST_TEST((group.error().code == error_code::bad_input));
  }
}

/// abort() wakes a waiting exchange, and every later one fails too.
inline void conformance_abort(const fabric_factory& make) {
  auto fabrics = make(2);
  auto made = fabrics[0]->make_group(epoch_id{1}, first_ranks(2));
  BOOST_REQUIRE_MESSAGE(made, made.error().text);
  auto& group = **made;
  std::vector<bytes_view> outgoing(2), incoming;
  result<void> waited;
  std::thread waiter([&] {
    waited = group.exchange({0, 0, exchange_id::dispatch}, outgoing, &incoming);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  group.abort();
  waiter.join();
  BOOST_REQUIRE(!waited);
  BOOST_TEST((waited.error().code == error_code::aborted));
  auto later = group.exchange({1, 0, exchange_id::dispatch}, outgoing, &incoming);
  BOOST_REQUIRE(!later);
  BOOST_TEST((later.error().code == error_code::aborted));
}

/// A member in another exchange is a protocol error that names it.
inline void conformance_wrong_exchange(const fabric_factory& make) {
  auto fabrics = make(2);
  std::string errors[2];
  in_group(fabrics, epoch_id{1}, first_ranks(2), [&](std::size_t i, communicator& group) {
    std::vector<bytes_view> outgoing(2), incoming;
    auto done =
        group.exchange({i == 0 ? 5ULL : 6ULL, 0, exchange_id::dispatch}, outgoing, &incoming);
    if (!done) errors[i] = done.error().text;
  });
  bool named = errors[0].find("rank 1") != std::string::npos
               || errors[1].find("rank 0") != std::string::npos;
  BOOST_TEST(named, "errors: '" << errors[0] << "' and '" << errors[1] << "'");
}

/// The others learn of a dead rank: by name where the implementation sees it, else by time.
inline void conformance_death(const fabric_factory& make) {
  auto fabrics = make(3);
  fabrics[1].reset();
  auto made = fabrics[0]->make_group(epoch_id{1}, first_ranks(3));
  if (!made) {
    BOOST_TEST((made.error().code == error_code::peer_lost));
    return;
  }
  std::vector<bytes_view> outgoing(3), incoming;
  auto done = (*made)->exchange({0, 0, exchange_id::dispatch}, outgoing, &incoming);
  BOOST_REQUIRE(!done);
  BOOST_TEST(
      (done.error().code == error_code::peer_lost || done.error().code == error_code::timed_out));
  BOOST_TEST(done.error().text.find("rank 1") != std::string::npos, done.error().text);
}

/// Those that a contraction leaves out end while the others take their new group into use. Not for
/// implementations that need the left-out ranks to make it.
inline void conformance_leavers_exit(const fabric_factory& make) {
  for (int round = 0; round < 10; ++round) {
    auto fabrics = make(4);
    complaints wrong;
    std::vector<std::thread> threads;
    std::atomic<int> regrouped{0};
    for (std::size_t r = 0; r < 4; ++r)
      threads.emplace_back([&, r] {
        auto all = fabrics[r]->make_group(epoch_id{1}, first_ranks(4));
        if (!all) return wrong.check(false, "make_group: " + all.error().text);
        for (std::uint64_t step = 0; step < 5; ++step)
          checked_exchange(**all, {step, 0, exchange_id::dispatch}, 50, wrong);
        all->reset();
        if (r % 2 == 0) { // leaves when the others have confirmed
          while (regrouped < 2)
            std::this_thread::yield();
          fabrics[r].reset();
          return;
        }
        auto pair = fabrics[r]->make_group(epoch_id{2}, {rank_id{1}, rank_id{3}});
        ++regrouped;
        if (!pair) return wrong.check(false, "make_group: " + pair.error().text);
        for (std::uint64_t step = 0; step < 200; ++step)
          checked_exchange(**pair, {step, 0, exchange_id::dispatch}, 50, wrong);
      });
    for (auto& thread : threads)
      thread.join();
    BOOST_TEST(regrouped == 2);
    wrong.report();
  }
}

/// Calls every check above.
inline void run_communicator_conformance(const fabric_factory& make) {
  conformance_delivery(make);
  conformance_regrouping(make);
  conformance_kept_groups(make);
  conformance_early_frames(make);
  conformance_bad_groups(make);
  conformance_abort(make);
  conformance_wrong_exchange(make);
  conformance_death(make);
}

} // namespace adafloor::tests
