// Bytes that a neighbour reads out of this process's memory, and the reading.
#include "actors/single_copy.hpp"
#include "actors/ucx_bulk_loop.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace adafloor {

using namespace bulk;

namespace {

// At a time: some 60 us without a look at anything else.
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
  copies.push_back(std::move(r));
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

// Reads on, up to `size` bytes, and sums them up while they are in the cache. False: the lender
// cannot be read.
bool ucx_bulk::impl::copy_parts(receiving& r, std::size_t size) {
  while (size > 0 && !r.parts.empty()) {
    auto& part = r.parts.back();
    auto& goal = r.goals.back();
    const std::size_t now = std::min({size, static_cast<std::size_t>(part.size), goal.size});
    if (!read_neighbour(r.head.pid, part.address, goal.data, now)) return false;
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
  return true;
}

// Goes on with the oldest copy. True: there was one.
bool ucx_bulk::impl::copy_some() {
  if (copies.empty()) return false;
  auto& r = *copies.front();
  const bulk_head h = r.head;
  const rank_id from{h.sender};
  const auto it = fetches.find(h.request);
  const bool wanted = it != fetches.end() && it->second.from == from;
  const bool good = wanted && copy_parts(r, copy_bytes);
  if (good && !r.parts.empty()) return true;
  send_note(from, is_loan_over, head_for(from, h.request), "");
  auto whole = std::move(copies.front());
  copies.pop_front();
  if (good || !wanted) {
    on_received(std::move(whole), UCS_OK);
  } else { // gone, or forbidden: UCX shall try
    --receives_pending;
    peers[from.value].unreadable = true;
    send_request(h.request, it->second);
  }
  return true;
}

void ucx_bulk::impl::end_loans(rank_id to) {
  for (auto it = loans.lower_bound({to.value, 0}); it != loans.end() && it->first.first == to.value;
       it = loans.erase(it))
    --serving_now;
}

} // namespace adafloor
