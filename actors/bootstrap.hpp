#pragma once
// How the processes of a launch find each other: rank 0 listens on TCP, everybody proves that it
// knows the cluster token, says where it can be reached, and gets the whole table back.
#include "messages/result.hpp"
#include "messages/types.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace adafloor {

/// What one process tells the others.
struct bootstrap_entry {
  rank_id rank;
  incarnation_id incarnation;
  std::string control_address;    ///< ucx_link::address()
  std::string bulk_address;       ///< ucx_bulk::address()
  std::string collective_address; ///< rank_fabric::address()
  std::string host;               ///< host name, for people
  std::uint32_t pid = 0;          ///< for people
};

struct bootstrap_options {
  std::uint32_t world_size = 1;
  std::string master_host = "127.0.0.1"; ///< where rank 0 listens and the others connect
  std::uint16_t master_port = 0;
  int listen_fd = -1;     ///< rank 0: an inherited listening socket, closed here afterwards
  std::string token;      ///< shared secret; at least 16 bytes
  std::string job_digest; ///< must be equal on all ranks (model, configuration); at most 256 bytes
  microseconds timeout{30'000'000};
  std::function<void(const std::string&)> log; ///< refusals and retries; default: stderr
};

/// Blocks until every rank is there; the same table, in order of rank, on every rank.
/// Errors: timed_out (names the ranks that did not come), refused (token, version, world size, job
/// digest or rank; says which), bad_input, io.
result<std::vector<bootstrap_entry>> bootstrap(const bootstrap_options& o,
                                               const bootstrap_entry& self);

/// A listening loopback socket on a port of the system's choice, to be inherited by rank 0.
/// The descriptor is close-on-exec: clear FD_CLOEXEC in the child that shall keep it.
struct listening_socket {
  int fd = -1;
  std::uint16_t port = 0;
};
result<listening_socket> listen_on(const std::string& host, std::uint16_t port);

std::string random_token();          ///< 32 random bytes in hexadecimal
incarnation_id random_incarnation(); ///< never 0
/// The first line of a file that only its owner may read. Errors: bad_input, io.
result<std::string> read_token_file(const std::string& path);

/// HMAC-SHA256, 32 bytes.
std::string hmac_sha256(const std::string& key, const std::string& text);

} // namespace adafloor
