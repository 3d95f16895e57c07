// Bytes that a neighbour reads out of this process's memory, and the reading.
#include "actors/single_copy.hpp"
#include "actors/turns.hpp"
#include "actors/ucx_bulk_loop.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace adafloor {

using namespace bulk;

namespace {

// At a time: some 60 us without a look at anything else. So much the owner reads itself.
constexpr std::size_t copy_bytes = 256 << 10;
constexpr microseconds loan_grace{5'000'000};

bool fills(const std::vector<lent_part>& parts, std::uint64_t length) {
  for (const auto& part : parts) {
    if (part.size == 0 || part.size > length) return false;
    length -= part.size;
  }
  return length == 0;
}

} // namespace

// Tells a neighbour where the bytes are and keeps them until it has read them.
void ucx_bulk::impl::lend(rank_id to, bulk_head reply, const bulk_head& asked, shared_bytes bytes) {
  reply.pid = static_cast<std::uint32_t>(::getpid());
  std::string places;
  const auto add = [&](const bytes_view& b) {
    const lent_part part{reinterpret_cast<std::uint64_t>(b.data), b.size};
    if (b.size > 0) places.append(reinterpret_cast<const char*>(&part), sizeof part);
  };
  add(bytes.bytes);
  std::for_each(bytes.rest.begin(), bytes.rest.end(), add);
  const microseconds wanted{
      static_cast<std::int64_t>(std::min<std::uint64_t>(asked.timeout_us, 3'600'000'000u))};
  if (loans.count({asked.sender, asked.request}) == 0) ++serving_now;
  loans[{asked.sender, asked.request}] = {std::move(bytes), clock_now() + wanted + loan_grace};
  send_note(to, is_loan, reply, places);
}

void ucx_bulk::impl::on_loan(std::string_view bytes) {
  bulk_head h;
  std::memcpy(&h, bytes.data(), sizeof h);
  const std::size_t count = (bytes.size() - sizeof h) / sizeof(lent_part);
  if (h.magic != magic || count == 0 || count > parts_max
      || bytes.size() != sizeof h + count * sizeof(lent_part)) {
    ++counts.undecodable;
    return;
  }
  std::vector<lent_part> parts(count);
  std::memcpy(parts.data(), bytes.data() + sizeof h, count * sizeof(lent_part));
  std::reverse(parts.begin(), parts.end());
  if (!is_current(h)) return;
  const auto it = fetches.find(h.request);
  if (it == fetches.end() || it->second.from != rank_id{h.sender}) {
    ++counts.late;
    return send_note(rank_id{h.sender}, is_loan_over, head_for(rank_id{h.sender}, h.request), "");
  }
  const std::string name = what(it->second.from, it->second.key);
  const auto& into = it->second.into;
  const auto fit = h.length <= o.transfer_bytes_max && fills(parts, h.length)
                   && (into.empty() || size_of(into) == h.length);
  result<pooled_buffer> buffer;
  if (!fit)
    buffer = fail(error_code::io, name + ": " + std::to_string(h.length)
                                      + " bytes are not what was announced or allowed");
  else if (into.empty())
    buffer = pool.take(h.length);
  if (!buffer) {
    send_note(rank_id{h.sender}, is_loan_over, head_for(rank_id{h.sender}, h.request), "");
    return finish(h.request, std::move(buffer));
  }
  auto r = std::make_unique<receiving>();
  r->bulk = this;
  r->head = h;
  r->buffer = std::move(*buffer);
  r->parts = std::move(parts);
  if (into.empty())
    r->goals.push_back({r->buffer.data(), r->buffer.size()});
  else
    r->goals.assign(into.rbegin(), into.rend());
  ++receives_pending;
  if (h.length <= copy_bytes) {
    copy_parts(*r, copy_bytes);
    return on_copied(std::move(r));
  }
  {
    std::lock_guard lock(copy_mutex);
    to_copy.push_back(std::move(r));
  }
  copy_wanted.notify_one();
  if (!copier.joinable()) copier = std::thread([this] { copy_loans(); });
}

void ucx_bulk::impl::on_loan_over(std::string_view bytes) {
  bulk_head h;
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.magic != magic || !is_current(h)) return;
  const auto it = loans.find({h.sender, h.request});
  if (it == loans.end()) return;
  ++counts.served;
  counts.served_bytes += it->second.bytes.size();
  loans.erase(it);
  --serving_now;
}

// Reads on, up to `size` bytes, and sums them up while they are in the cache.
void ucx_bulk::impl::copy_parts(receiving& r, std::size_t size) {
  while (size > 0 && !r.parts.empty()) {
    auto& part = r.parts.back();
    auto& goal = r.goals.back();
    const std::size_t now = std::min({size, static_cast<std::size_t>(part.size), goal.size});
    r.readable = read_neighbour(r.head.pid, part.address, goal.data, now);
    if (!r.readable) return;
    if (goal.digest != nullptr) r.digest.add(goal.data, now);
    size -= now;
    part.address += now;
    part.size -= now;
    if (part.size == 0) r.parts.pop_back();
    goal.data += now;
    goal.size -= now;
    if (goal.size > 0) continue;
    if (goal.digest != nullptr) *goal.digest = std::exchange(r.digest, {}).value();
    r.goals.pop_back();
  }
}

// Large copies are background work: where processors are short, decode steps go first, and so do
// the notes and small copies that they wait for.
void ucx_bulk::impl::copy_loans() {
  ::pthread_setname_np(::pthread_self(), "ucx_bulk_copy");
  give_way(copies_nice);
  std::unique_lock lock(copy_mutex);
  for (;;) {
    copy_wanted.wait(lock, [this] { return copier_ends || !to_copy.empty(); });
    if (copier_ends) return;
    auto r = std::move(to_copy.front());
    to_copy.pop_front();
    copying = r.get();
    lock.unlock();
    while (r->readable && !r->parts.empty() && !r->unwanted)
      copy_parts(*r, copy_bytes);
    lock.lock();
    copying = nullptr;
    copied.push_back(std::move(r));
    copy_over.notify_one();
    wake();
  }
}

// True: there was one.
bool ucx_bulk::impl::collect_copies() {
  std::deque<std::unique_ptr<receiving>> done;
  {
    std::lock_guard lock(copy_mutex);
    done.swap(copied);
  }
  const bool some = !done.empty();
  for (; !done.empty(); done.pop_front())
    on_copied(std::move(done.front()));
  return some;
}

void ucx_bulk::impl::on_copied(std::unique_ptr<receiving> r) {
  const bulk_head h = r->head;
  const rank_id from{h.sender};
  send_note(from, is_loan_over, head_for(from, h.request), "");
  const auto it = fetches.find(h.request);
  if (r->readable || it == fetches.end()) return on_received(std::move(r), UCS_OK);
  --receives_pending; // The lender is gone, or it is forbidden: UCX shall try.
  peers[from.value].unreadable = true;
  send_request(h.request, it->second);
}

// Nothing is written any more for a fetch that has ended.
void ucx_bulk::impl::stop_copy(std::uint64_t request) {
  std::unique_lock lock(copy_mutex);
  const auto is_it = [&](const auto& r) { return r->head.request == request; };
  const auto waiting = std::find_if(to_copy.begin(), to_copy.end(), is_it);
  if (waiting != to_copy.end()) {
    copied.push_back(std::move(*waiting));
    to_copy.erase(waiting);
  } else if (copying != nullptr && copying->head.request == request) {
    copying->unwanted = true;
    copy_over.wait(lock, [&] { return copying == nullptr || copying->head.request != request; });
  }
}

void ucx_bulk::impl::end_copier() {
  {
    std::lock_guard lock(copy_mutex);
    copier_ends = true;
  }
  copy_wanted.notify_one();
  if (copier.joinable()) copier.join();
}

void ucx_bulk::impl::end_loans(rank_id to) {
  for (auto it = loans.lower_bound({to.value, 0}); it != loans.end() && it->first.first == to.value;
       it = loans.erase(it))
    --serving_now;
}

} // namespace adafloor
