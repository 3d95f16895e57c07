#include "messages/checksum.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace adafloor {

namespace {

constexpr std::uint32_t polynomial = 0x82F63B78u; // reflected

using byte_table = std::array<std::uint32_t, 256>;

// table[k][b]: what byte b contributes when k more bytes follow.
const std::array<byte_table, 8>& tables() {
  static const auto made = [] {
    std::array<byte_table, 8> t{};
    for (std::uint32_t b = 0; b < 256; ++b) {
      std::uint32_t crc = b;
      for (int bit = 0; bit < 8; ++bit)
        crc = (crc >> 1) ^ ((crc & 1u) != 0 ? polynomial : 0u);
      t[0][b] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k)
      for (std::size_t b = 0; b < 256; ++b)
        t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFFu];
    return t;
  }();
  return made;
}

#if defined(__x86_64__)

// Advances a checksum over `zeros` zero bytes, a byte of it per table: lets three runs of bytes be
// summed side by side (the instruction has a latency of three cycles) and joined afterwards.
struct zero_shift {
  std::array<byte_table, 4> t{};
  explicit zero_shift(std::size_t zeros) {
    const auto& one = tables()[0];
    for (std::size_t k = 0; k < 4; ++k) {
      for (int bit = 0; bit < 8; ++bit) {
        std::uint32_t crc = 1u << (8 * k + static_cast<std::size_t>(bit));
        for (std::size_t i = 0; i < zeros; ++i)
          crc = (crc >> 8) ^ one[crc & 0xFFu];
        t[k][std::size_t{1} << bit] = crc;
      }
      for (std::size_t b = 1; b < 256; ++b)
        t[k][b] = t[k][b & (b - 1)] ^ t[k][b & (~b + 1)];
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return t[0][crc & 0xFFu] ^ t[1][(crc >> 8) & 0xFFu] ^ t[2][(crc >> 16) & 0xFFu]
           ^ t[3][crc >> 24];
  }
};

constexpr std::size_t run = 1024; // bytes per run; a multiple of 8

std::uint64_t word(const unsigned char* p) {
  std::uint64_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* p,
                                                               std::size_t n, std::uint32_t crc) {
  static const zero_shift over_run(run);
  while (n >= 3 * run) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < run; i += 8) {
      a = _mm_crc32_u64(a, word(p + i));
      b = _mm_crc32_u64(b, word(p + run + i));
      c = _mm_crc32_u64(c, word(p + 2 * run + i));
    }
    crc = over_run(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    crc = over_run(crc) ^ static_cast<std::uint32_t>(c);
    p += 3 * run;
    n -= 3 * run;
  }
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8)
    wide = _mm_crc32_u64(wide, word(p));
  crc = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n, ++p)
    crc = _mm_crc32_u8(crc, *p);
  return crc;
}

#endif

std::uint32_t by_table(const unsigned char* p, std::size_t n, std::uint32_t crc) {
  const auto& t = tables();
  for (; n >= 8; n -= 8, p += 8) {
    const std::uint32_t low = crc
                              ^ (std::uint32_t{p[0]} | std::uint32_t{p[1]} << 8
                                 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24);
    crc = t[7][low & 0xFFu] ^ t[6][(low >> 8) & 0xFFu] ^ t[5][(low >> 16) & 0xFFu] ^ t[4][low >> 24]
          ^ t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
  }
  for (; n > 0; --n, ++p)
    crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xFFu];
  return crc;
}

} // namespace

std::uint32_t detail::crc32c_by_table(const void* data, std::size_t size, std::uint32_t before) {
  return ~by_table(static_cast<const unsigned char*>(data), size, ~before);
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction)
    return ~by_instruction(static_cast<const unsigned char*>(data), size, ~before);
#endif
  return detail::crc32c_by_table(data, size, before);
}

} // namespace adafloor
