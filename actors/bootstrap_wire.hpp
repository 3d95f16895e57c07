#pragma once
// What goes over the wire of a launch's rendezvous. Every frame is a 32-bit length, checked before
// memory is allocated, and that many bytes. Decoding is total.
#include "actors/bootstrap.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adafloor {

constexpr std::uint16_t bootstrap_version = 1;
constexpr std::size_t nonce_bytes = 32, mac_bytes = 32;
constexpr std::size_t hello_bytes_max = 8 << 10; ///< the largest frame before authentication
constexpr std::size_t table_bytes_per_rank = 8 << 10;

struct bootstrap_challenge { ///< rank 0 -> newcomer
  std::uint16_t version = bootstrap_version;
  std::string nonce;
};

struct bootstrap_hello { ///< newcomer -> rank 0; `mac` proves the token
  std::string nonce;
  std::string mac;  ///< of "rank" + both nonces + body
  std::string body; ///< encoded bootstrap_claim
};

struct bootstrap_claim {
  std::uint32_t world_size = 0;
  std::string job_digest;
  bootstrap_entry entry;
};

enum class bootstrap_verdict : std::uint8_t { table = 1, refused = 2, timed_out = 3 };

struct bootstrap_answer { ///< rank 0 -> newcomer
  bootstrap_verdict verdict = bootstrap_verdict::refused;
  std::string mac;  ///< table: of "root" + both nonces + body
  std::string body; ///< encoded table, or the reason
};

std::string encode(const bootstrap_challenge& c);
std::string encode(const bootstrap_hello& h);
std::string encode(const bootstrap_claim& c);
std::string encode(const bootstrap_answer& a);
std::string encode(const std::vector<bootstrap_entry>& table);

std::optional<bootstrap_challenge> decode_challenge(std::string_view bytes);
std::optional<bootstrap_hello> decode_hello(std::string_view bytes);
std::optional<bootstrap_claim> decode_claim(std::string_view bytes);
std::optional<bootstrap_answer> decode_answer(std::string_view bytes);
std::optional<std::vector<bootstrap_entry>> decode_table(std::string_view bytes,
                                                         std::uint32_t world_size);

/// Length and bytes.
std::string framed(std::string_view bytes);
/// Takes one whole frame off the front of `buffer`, if it is there. `too_long`: above `limit`.
enum class frame_state : std::uint8_t { whole = 1, incomplete, too_long };
frame_state take_frame(std::string& buffer, std::size_t limit, std::string* frame);

} // namespace adafloor
