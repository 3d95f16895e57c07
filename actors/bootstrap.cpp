#include "actors/bootstrap.hpp"

#include "actors/bootstrap_wire.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

namespace adafloor {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t token_bytes_min = 16;
constexpr auto newcomer_patience = std::chrono::seconds(5); // until its hello is complete

std::string random_bytes(std::size_t n) {
  std::string s(n, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(s.data()), static_cast<int>(n)) != 1)
    throw std::runtime_error("the system gives no random bytes");
  return s;
}

bool equal(const std::string& a, const std::string& b) { // in constant time
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

class descriptor {
public:
  explicit descriptor(int fd = -1) : fd_(fd) {}
  descriptor(descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  descriptor& operator=(descriptor&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

private:
  int fd_;
};

int milliseconds_left(clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 60'000));
}

std::string place(const bootstrap_options& o) {
  return o.master_host + ":" + std::to_string(o.master_port);
}

std::string number_list(const std::vector<std::uint32_t>& ranks) {
  std::string s;
  for (auto r : ranks)
    s += (s.empty() ? "" : ", ") + std::to_string(r);
  return s;
}

// First address of host and port that `use` accepts.
template <class F>
descriptor first_socket(const std::string& host, std::uint16_t port, int flags, F use,
                        std::string* why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int wrong = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (wrong != 0) {
    *why = ::gai_strerror(wrong);
    return descriptor{};
  }
  descriptor result;
  for (const addrinfo* a = found; a != nullptr && !result; a = a->ai_next) {
    descriptor s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s && use(s.get(), a))
      result = std::move(s);
    else
      *why = std::strerror(errno);
  }
  ::freeaddrinfo(found);
  return result;
}

/// Rank 0's side of the rendezvous.
class gathering {
public:
  gathering(const bootstrap_options& o, const bootstrap_entry& self, int listen_fd)
    : o_(o), listen_fd_(listen_fd), until_(clock::now() + o.timeout), claims_(o.world_size) {
    claims_[0] = self;
  }

  result<std::vector<bootstrap_entry>> run() {
    while (!missing().empty() && clock::now() < until_)
      round();
    if (const auto absent = missing(); !absent.empty()) {
      const std::string text = "launch: " + std::to_string(absent.size()) + " of "
                               + std::to_string(o_.world_size) + " ranks did not come to "
                               + place(o_) + " within " + std::to_string(o_.timeout.count() / 1000)
                               + " ms: " + number_list(absent) + "; look at their logs";
      dismiss(text);
      return fail(error_code::timed_out, text);
    }
    std::vector<bootstrap_entry> table;
    for (auto& c : claims_)
      table.push_back(*c);
    answer(table);
    return table;
  }

private:
  struct newcomer {
    descriptor socket;
    std::string nonce, their_nonce, in, out;
    std::optional<std::uint32_t> rank; // once it is accepted
    clock::time_point patience;
    bool gone = false;
  };

  std::vector<std::uint32_t> missing() const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t r = 0; r < o_.world_size; ++r)
      if (!claims_[r]) ranks.push_back(r);
    return ranks;
  }

  void round() {
    std::vector<pollfd> fds{{listen_fd_, POLLIN, 0}};
    auto wake = until_;
    for (auto& n : newcomers_) {
      fds.push_back(
          {n.socket.get(), static_cast<short>(POLLIN | (n.out.empty() ? 0 : POLLOUT)), 0});
      if (!n.rank) wake = std::min(wake, n.patience);
    }
    ::poll(fds.data(), fds.size(), milliseconds_left(wake));
    for (std::size_t i = 0; i < newcomers_.size(); ++i) {
      auto& n = newcomers_[i];
      if ((fds[i + 1].revents & POLLOUT) != 0) write_some(n);
      if ((fds[i + 1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_some(n);
      if (!n.rank && !n.gone && clock::now() > n.patience) {
        o_.log("launch: a newcomer said nothing for 5 s and was dropped");
        n.gone = true;
      }
    }
    for (auto& n : newcomers_)
      if (n.gone && n.rank) {
        o_.log("launch: rank " + std::to_string(*n.rank) + " left again before all were there");
        claims_[*n.rank].reset();
      }
    newcomers_.erase(std::remove_if(newcomers_.begin(), newcomers_.end(),
                                    [](const newcomer& n) { return n.gone; }),
                     newcomers_.end());
    if ((fds[0].revents & POLLIN) != 0) welcome();
  }

  void welcome() {
    for (;;) {
      descriptor s(::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!s) return;
      if (newcomers_.size() >= 2 * std::size_t{o_.world_size} + 64) {
        o_.log("launch: too many connections at once, one was closed");
        continue;
      }
      newcomer n;
      n.socket = std::move(s);
      n.nonce = random_bytes(nonce_bytes);
      n.patience = clock::now() + newcomer_patience;
      n.out = framed(encode(bootstrap_challenge{bootstrap_version, n.nonce}));
      write_some(n);
      newcomers_.push_back(std::move(n));
    }
  }

  static void write_some(newcomer& n) {
    const ssize_t sent = ::send(n.socket.get(), n.out.data(), n.out.size(), MSG_NOSIGNAL);
    if (sent > 0)
      n.out.erase(0, static_cast<std::size_t>(sent));
    else if (errno != EAGAIN && errno != EINTR)
      n.gone = true;
  }

  void read_some(newcomer& n) {
    char bytes[4096];
    const ssize_t got = ::recv(n.socket.get(), bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      n.gone = true;
      return;
    }
    if (got <= 0 || n.rank) return; // an accepted rank has nothing more to say
    n.in.append(bytes, static_cast<std::size_t>(got));
    std::string hello;
    const auto state = take_frame(n.in, hello_bytes_max, &hello);
    if (state == frame_state::too_long) refuse(n, "its hello is longer than allowed");
    if (state == frame_state::whole) judge(n, hello);
  }

  void judge(newcomer& n, const std::string& bytes) {
    const auto hello = decode_hello(bytes);
    if (!hello) return refuse(n, "its hello is of another program or version");
    const std::string mac = hmac_sha256(o_.token, "rank" + n.nonce + hello->nonce + hello->body);
    if (!equal(mac, hello->mac)) return refuse(n, "its cluster token is missing or wrong");
    const auto claim = decode_claim(hello->body);
    if (!claim) return refuse(n, "its hello cannot be read");
    const std::uint32_t rank = claim->entry.rank.value;
    if (claim->world_size != o_.world_size)
      return refuse(n, "it was started for " + std::to_string(claim->world_size)
                           + " ranks, rank 0 for " + std::to_string(o_.world_size));
    if (rank >= o_.world_size)
      return refuse(n, "its rank " + std::to_string(rank) + " is outside the world of "
                           + std::to_string(o_.world_size));
    if (claim->job_digest != o_.job_digest)
      return refuse(n, "rank " + std::to_string(rank) + " has another job (digest "
                           + claim->job_digest + ", rank 0 has " + o_.job_digest
                           + "); give all ranks the same model and configuration");
    if (claims_[rank] && claims_[rank]->incarnation != claim->entry.incarnation)
      return refuse(n, "rank " + std::to_string(rank) + " is here already (pid "
                           + std::to_string(claims_[rank]->pid) + " on " + claims_[rank]->host
                           + ")");
    for (auto& other : newcomers_) // the same process, after its connection broke
      if (&other != &n && other.rank == rank) {
        other.rank.reset();
        other.gone = true;
      }
    claims_[rank] = claim->entry;
    n.rank = rank;
    n.their_nonce = hello->nonce;
  }

  void refuse(newcomer& n, const std::string& why) {
    o_.log("launch: refused a newcomer: " + why);
    n.out += framed(encode(bootstrap_answer{bootstrap_verdict::refused, "", why}));
    write_some(n);
    n.gone = true;
  }

  void dismiss(const std::string& text) {
    for (auto& n : newcomers_) {
      n.out += framed(encode(bootstrap_answer{bootstrap_verdict::timed_out, "", text}));
      write_some(n);
    }
  }

  void answer(const std::vector<bootstrap_entry>& table) {
    const std::string body = encode(table);
    for (auto& n : newcomers_) {
      if (!n.rank) continue;
      const std::string mac = hmac_sha256(o_.token, "root" + n.nonce + n.their_nonce + body);
      n.out += framed(encode(bootstrap_answer{bootstrap_verdict::table, mac, body}));
    }
    const auto until = std::max(until_, clock::now() + newcomer_patience);
    for (;;) {
      std::vector<pollfd> fds;
      for (auto& n : newcomers_) {
        if (!n.out.empty() && !n.gone) write_some(n);
        if (!n.out.empty() && !n.gone) fds.push_back({n.socket.get(), POLLOUT, 0});
      }
      if (fds.empty() || clock::now() > until) return;
      ::poll(fds.data(), fds.size(), milliseconds_left(until));
    }
  }

  const bootstrap_options& o_;
  int listen_fd_;
  clock::time_point until_;
  std::vector<std::optional<bootstrap_entry>> claims_;
  std::vector<newcomer> newcomers_;
};

/// The next frame, or why there is none: `aborted` when the connection ended.
result<std::string> read_frame(int fd, std::string& buffer, std::size_t limit,
                               clock::time_point until) {
  for (;;) {
    std::string frame;
    const auto state = take_frame(buffer, limit, &frame);
    if (state == frame_state::whole) return frame;
    if (state == frame_state::too_long)
      return fail(error_code::io, "the answer is longer than allowed; is it rank 0 at all?");
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, milliseconds_left(until)) == 0 && clock::now() >= until)
      return fail(error_code::timed_out, "no answer in time");
    char bytes[16 << 10];
    const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
    if (got > 0)
      buffer.append(bytes, static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
      return fail(error_code::aborted, "connection ended");
  }
}

/// One attempt to join. `aborted`: try again.
result<std::vector<bootstrap_entry>> join(const bootstrap_options& o, const bootstrap_entry& self,
                                          clock::time_point until) {
  std::string why;
  descriptor s = first_socket(
      o.master_host, o.master_port, 0,
      [&](int fd, const addrinfo* a) {
        if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0) return true;
        if (errno != EINPROGRESS) return false;
        pollfd p{fd, POLLOUT, 0};
        ::poll(&p, 1, std::min(milliseconds_left(until), 2000));
        int wrong = 0;
        socklen_t size = sizeof wrong;
        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &wrong, &size);
        errno = wrong == 0 && (p.revents & POLLOUT) == 0 ? ETIMEDOUT : wrong;
        return errno == 0;
      },
      &why);
  if (!s) return fail(error_code::aborted, why);
  std::string in;
  auto first = read_frame(s.get(), in, 256, until);
  if (!first) return tl::unexpected<error>(first.error());
  const auto challenge = decode_challenge(*first);
  if (!challenge) return fail(error_code::refused, "what listens there is no rank 0 of a launch");
  if (challenge->version != bootstrap_version)
    return fail(error_code::refused, "rank 0 speaks version " + std::to_string(challenge->version)
                                         + " of the launch protocol, this rank "
                                         + std::to_string(bootstrap_version)
                                         + "; run the same build on all ranks");
  bootstrap_hello hello;
  hello.nonce = random_bytes(nonce_bytes);
  hello.body = encode(bootstrap_claim{o.world_size, o.job_digest, self});
  hello.mac = hmac_sha256(o.token, "rank" + challenge->nonce + hello.nonce + hello.body);
  const std::string out = framed(encode(hello));
  if (::send(s.get(), out.data(), out.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(out.size()))
    return fail(error_code::aborted, "connection ended");
  auto reply = read_frame(s.get(), in, o.world_size * table_bytes_per_rank + 4096, until);
  if (!reply) return tl::unexpected<error>(reply.error());
  const auto answer = decode_answer(*reply);
  if (!answer) return fail(error_code::io, "the answer cannot be read");
  if (answer->verdict == bootstrap_verdict::refused)
    return fail(error_code::refused, "rank 0 refused this process: " + answer->body);
  if (answer->verdict == bootstrap_verdict::timed_out)
    return fail(error_code::timed_out, "rank 0 gave up: " + answer->body);
  const std::string mac =
      hmac_sha256(o.token, "root" + challenge->nonce + hello.nonce + answer->body);
  if (!equal(mac, answer->mac))
    return fail(error_code::refused, "rank 0 does not know the cluster token");
  auto table = decode_table(answer->body, o.world_size);
  if (!table) return fail(error_code::io, "the table of ranks cannot be read");
  return *table;
}

result<std::vector<bootstrap_entry>> join_until(const bootstrap_options& o,
                                                const bootstrap_entry& self) {
  const auto until = clock::now() + o.timeout;
  const std::string me = "launch: rank " + std::to_string(self.rank.value) + " at " + place(o);
  for (int wait_ms = 20;; wait_ms = std::min(wait_ms * 2, 500)) {
    auto table = join(o, self, until);
    if (table) return table;
    if (table.error().code != error_code::aborted)
      return fail(table.error().code, me + ": " + table.error().text);
    if (clock::now() + std::chrono::milliseconds(wait_ms) >= until)
      return fail(error_code::timed_out,
                  me + ": " + table.error().text + ", for "
                      + std::to_string(o.timeout.count() / 1000)
                      + " ms; is rank 0 running, and host and port the same on all ranks?");
    ::poll(nullptr, 0, wait_ms);
  }
}

result<void> check(const bootstrap_options& o, const bootstrap_entry& self) {
  if (self.rank.value >= o.world_size)
    return bad_input("launch: rank " + std::to_string(self.rank.value) + " in a world of "
                     + std::to_string(o.world_size) + "; ranks are 0-based");
  if (o.world_size > 1 && o.token.size() < token_bytes_min)
    return bad_input("launch: the cluster token has " + std::to_string(o.token.size())
                     + " bytes, at least " + std::to_string(token_bytes_min)
                     + " are needed; give all ranks the same token file (transport.token_file)");
  if (o.job_digest.size() > 256) return bad_input("launch: job digest above 256 bytes");
  const std::string claim = encode(bootstrap_claim{o.world_size, o.job_digest, self});
  if (!decode_claim(claim) || claim.size() + 256 > hello_bytes_max)
    return bad_input("launch: an address or host name of this process is above 1024 bytes");
  return {};
}

} // namespace

std::string hmac_sha256(const std::string& key, const std::string& text) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size)
      == nullptr)
    throw std::runtime_error("HMAC-SHA256 failed");
  return std::string(reinterpret_cast<const char*>(mac), size);
}

std::string random_token() {
  std::string hex;
  for (const char c : random_bytes(32)) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(c) & 0xFFu);
    hex += digits;
  }
  return hex;
}

incarnation_id random_incarnation() {
  std::uint64_t value = 0;
  while (value == 0)
    std::memcpy(&value, random_bytes(sizeof value).data(), sizeof value);
  return incarnation_id{value};
}

result<std::string> read_token_file(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0)
    return fail(error_code::io, "token file " + path + ": " + std::strerror(errno));
  if ((s.st_mode & 077) != 0)
    return bad_input("token file " + path + " can be read by others; chmod 600 it");
  std::ifstream f(path);
  std::string token;
  std::getline(f, token);
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back())) != 0)
    token.pop_back();
  if (token.size() < token_bytes_min)
    return bad_input("token file " + path + ": its first line has " + std::to_string(token.size())
                     + " bytes, at least " + std::to_string(token_bytes_min) + " are needed");
  return token;
}

result<listening_socket> listen_on(const std::string& host, std::uint16_t port) {
  std::string why;
  descriptor s = first_socket(
      host, port, AI_PASSIVE,
      [](int fd, const addrinfo* a) {
        const int on = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        return ::bind(fd, a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd, 1024) == 0;
      },
      &why);
  if (!s)
    return fail(error_code::io, "launch: cannot listen on " + host + ":" + std::to_string(port)
                                    + ": " + why + "; choose another host or port");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(s.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  const std::uint16_t got = bound.ss_family == AF_INET6
                                ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port;
  return listening_socket{s.release(), ntohs(got)};
}

result<std::vector<bootstrap_entry>> bootstrap(const bootstrap_options& given,
                                               const bootstrap_entry& self) {
  bootstrap_options o = given;
  if (!o.log) o.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  if (auto good = check(o, self); !good) return tl::unexpected<error>(good.error());
  if (o.world_size == 1) return std::vector<bootstrap_entry>{self};
  if (self.rank.value != 0) return join_until(o, self);
  if (o.listen_fd >= 0) {
    const descriptor socket(o.listen_fd); // ours from here on
    ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    return gathering(o, self, socket.get()).run();
  }
  auto listening = listen_on(o.master_host, o.master_port);
  if (!listening) return tl::unexpected<error>(listening.error());
  const descriptor socket(listening->fd);
  return gathering(o, self, socket.get()).run();
}

} // namespace adafloor
