#include "gpu/digest.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace adafloor {

namespace {

constexpr std::uint64_t prime1 = 0x9E3779B185EBCA87ULL, prime2 = 0xC2B2AE3D27D4EB4FULL,
                        prime3 = 0x165667B19E3779F9ULL, prime4 = 0x85EBCA77C2B2AE63ULL,
                        prime5 = 0x27D4EB2F165667C5ULL;

std::uint64_t rotate(std::uint64_t x, int bits) {
  return (x << bits) | (x >> (64 - bits));
}

template <class T>
T load(const unsigned char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
  return rotate(lane + input * prime2, 31) * prime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ round(0, lane)) * prime1 + prime4;
}

std::uint64_t finish(std::uint64_t hash, const unsigned char* p, std::size_t left) {
  for (; left >= 8; p += 8, left -= 8)
    hash = rotate(hash ^ round(0, load<std::uint64_t>(p)), 27) * prime1 + prime4;
  if (left >= 4) {
    hash = rotate(hash ^ load<std::uint32_t>(p) * prime1, 23) * prime2 + prime3;
    p += 4;
    left -= 4;
  }
  for (; left > 0; ++p, --left)
    hash = rotate(hash ^ *p * prime5, 11) * prime1;
  hash = (hash ^ (hash >> 33)) * prime2;
  hash = (hash ^ (hash >> 29)) * prime3;
  return hash ^ (hash >> 32);
}

// 64 lanes in four vectors of the compiler's, which any processor can do, some at once.
using lanes = std::uint32_t __attribute__((vector_size(64)));
constexpr std::size_t vectors = 4, stripe = vectors * sizeof(lanes);

__attribute__((always_inline)) inline void add_stripes(const unsigned char* p, std::size_t stripes,
                                                       std::uint32_t* state) {
  lanes a[vectors];
  std::memcpy(a, state, stripe);
  for (; stripes > 0; --stripes)
    for (std::size_t v = 0; v < vectors; ++v, p += sizeof(lanes)) {
      lanes words;
      std::memcpy(&words, p, sizeof words);
      a[v] = (a[v] ^ words) * 0x01000193u;
      a[v] = (a[v] << 13) | (a[v] >> 19);
    }
  std::memcpy(state, a, stripe);
}

using stripe_adder = void (*)(const unsigned char* p, std::size_t stripes, std::uint32_t* state);

void add_plainly(const unsigned char* p, std::size_t stripes, std::uint32_t* state) {
  add_stripes(p, stripes, state);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_by_avx2(const unsigned char* p, std::size_t stripes,
                                                 std::uint32_t* state) {
  add_stripes(p, stripes, state);
}

__attribute__((target("avx512f"))) void add_by_avx512(const unsigned char* p, std::size_t stripes,
                                                      std::uint32_t* state) {
  add_stripes(p, stripes, state);
}
#endif

stripe_adder best_adder() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return add_by_avx512;
  if (__builtin_cpu_supports("avx2")) return add_by_avx2;
#endif
  return add_plainly;
}

} // namespace

std::uint64_t wide_digest64(const void* data, std::size_t size) {
  wide_digest digest;
  digest.add(data, size);
  return digest.value();
}

wide_digest::wide_digest() {
  static_assert(sizeof lanes_ == stripe);
  for (std::uint32_t i = 0; i < std::size(lanes_); ++i)
    lanes_[i] = 0x811C9DC5u + i;
}

void wide_digest::add(const void* data, std::size_t size) {
  static const stripe_adder add_stripes = best_adder();
  if (size == 0) return;
  const auto* p = static_cast<const unsigned char*>(data);
  const auto held = size_ % stripe;
  size_ += size;
  if (held > 0) {
    const auto more = std::min(size, stripe - held);
    std::memcpy(rest_ + held, p, more);
    if (held + more < stripe) return;
    add_stripes(rest_, 1, lanes_);
    p += more;
    size -= more;
  }
  add_stripes(p, size / stripe, lanes_);
  std::memcpy(rest_, p + size / stripe * stripe, size % stripe);
}

std::uint64_t wide_digest::value() const {
  return digest64(rest_, size_ % stripe, digest64(lanes_, sizeof lanes_, size_));
}

std::uint64_t digest64(const void* data, std::size_t size, std::uint64_t seed) {
  auto p = static_cast<const unsigned char*>(data);
  if (size < 32) return finish(seed + prime5 + size, p, size);
  std::uint64_t a = seed + prime1 + prime2, b = seed + prime2, c = seed, d = seed - prime1;
  auto left = size;
  for (; left >= 32; p += 32, left -= 32) {
    a = round(a, load<std::uint64_t>(p));
    b = round(b, load<std::uint64_t>(p + 8));
    c = round(c, load<std::uint64_t>(p + 16));
    d = round(d, load<std::uint64_t>(p + 24));
  }
  auto hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
  hash = merge(merge(merge(merge(hash, a), b), c), d);
  return finish(hash + size, p, left);
}

} // namespace adafloor
