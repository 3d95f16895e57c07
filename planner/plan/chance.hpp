#pragma once
// Chance as an argument: a counter-based generator, so that any draw can be repeated alone.
#include <cstdint>

namespace adafloor {

/// SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Draw number `counter` of stream (seed, stream): uniform over all 64-bit values.
constexpr std::uint64_t draw_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return mix_bits(mix_bits(mix_bits(seed) ^ stream) ^ counter);
}

/// Uniform in [0, 1).
constexpr double draw_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return static_cast<double>(draw_bits(seed, stream, counter) >> 11) * 0x1.0p-53;
}

} // namespace adafloor
