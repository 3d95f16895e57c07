#pragma once
// Hosts of one machine: network and process namespaces, each with an address of its own.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace adafloor::testing {

/// How frames fare on their way from host to host.
struct weather {
  std::chrono::microseconds delay{0};
  double loss = 0; ///< share of frames that never arrive
};

/// A switch in user space between taps, since not every kernel has netem.
class slow_switch {
public:
  slow_switch(std::vector<int> taps, weather w)
    : taps_(std::move(taps)), weather_(w), stop_(eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}
  slow_switch(const slow_switch&) = delete;
  slow_switch& operator=(const slow_switch&) = delete;
  ~slow_switch() { stop(); }

  /// Carries nothing from here on. Frames that arrived, and that were lost.
  std::pair<std::uint64_t, std::uint64_t> stop() {
    if (!thread_.joinable()) return {carried_, lost_};
    eventfd_write(stop_, 1);
    thread_.join();
    for (const int tap : taps_)
      close(tap);
    close(stop_);
    return {carried_, lost_};
  }

private:
  using clock = std::chrono::steady_clock;
  using mac = std::array<unsigned char, 6>;
  struct frame {
    clock::time_point due;
    std::size_t from;
    std::string bytes;
  };

  void run() {
    for (;;) {
      std::vector<pollfd> fds{{stop_, POLLIN, 0}};
      for (const int tap : taps_)
        fds.push_back({tap, POLLIN, 0});
      timespec wait{60, 0};
      if (!late_.empty()) {
        const auto left = std::chrono::nanoseconds(late_.front().due - clock::now()).count();
        wait = {0, left < 0 ? 0 : static_cast<long>(left)};
      }
      ppoll(fds.data(), fds.size(), &wait, nullptr);
      if (fds[0].revents != 0) return;
      for (std::size_t i = 0; i < taps_.size(); ++i)
        if ((fds[i + 1].revents & POLLIN) != 0) take(i);
      for (; !late_.empty() && late_.front().due <= clock::now(); late_.pop_front())
        deliver(late_.front());
    }
  }

  void take(std::size_t from) {
    char bytes[65536];
    for (ssize_t size = 0; (size = read(taps_[from], bytes, sizeof bytes)) >= 14;) {
      mac source;
      std::memcpy(source.data(), bytes + 6, source.size());
      port_of_[source] = from;
      if (chance_(dice_) < weather_.loss)
        ++lost_;
      else
        late_.push_back({clock::now() + weather_.delay, from, {bytes, std::size_t(size)}});
    }
  }

  void deliver(const frame& f) {
    ++carried_;
    mac target;
    std::memcpy(target.data(), f.bytes.data(), target.size());
    const auto known = port_of_.find(target);
    for (std::size_t i = 0; i < taps_.size(); ++i)
      if (i != f.from && (known == port_of_.end() || known->second == i)) [[maybe_unused]]
        const auto sent = write(taps_[i], f.bytes.data(), f.bytes.size());
  }

  std::vector<int> taps_;
  weather weather_;
  int stop_;
  std::deque<frame> late_;
  std::map<mac, std::size_t> port_of_;
  std::mt19937 dice_{1};
  std::uniform_real_distribution<> chance_;
  std::uint64_t carried_ = 0, lost_ = 0;
  std::thread thread_;
};

/// Namespaces of this test alone, gone when it ends: hosts behind a bridge or a `slow_switch`.
class lan {
public:
  explicit lan(int hosts, std::optional<weather> slow = {}) : hosts_(hosts) {
    bool good = slow
                || (done("ip netns add " + name("lan")) && in_switch("ip link add br0 type bridge")
                    && in_switch("ip link set br0 up"));
    if (!good) missing_ = "network namespaces (needs root, iproute2, bridge and veth)";
    std::vector<int> taps;
    for (int host = 0; good && host < hosts; ++host) {
      good = done("ip netns add " + name(host)) && done(unshared(host) + "true");
      if (!good) missing_ = "network and process namespaces (needs root, iproute2 and unshare)";
      if (good && slow) {
        taps.push_back(tap_of(host));
        good = taps.back() >= 0;
        if (!good) missing_ = "taps (/dev/net/tun)";
      } else if (good) {
        good =
            in_switch("ip link add " + port(host) + " type veth peer name eth0 netns " + name(host))
            && in_switch("ip link set " + port(host) + " master br0 up");
        if (!good) missing_ = "veth";
      }
      good = good && done(netns(host) + "ip address add " + address(host) + "/24 dev eth0")
             && done(netns(host) + "ip link set eth0 up")
             && done(netns(host) + "ip link set lo up");
      if (!good && missing_.empty()) missing_ = "addresses in network namespaces";
    }
    if (good && slow) switch_.emplace(taps, *slow);
  }
  ~lan() {
    for (int host = 0; host < hosts_; ++host)
      done("ip netns delete " + name(host));
    done("ip netns delete " + name("lan"));
  }
  lan(const lan&) = delete;
  lan& operator=(const lan&) = delete;

  /// What this machine lacks; empty when the hosts are up.
  const std::string& missing() const { return missing_; }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  /// Words before a program's own that start it on `host`. No process there can see those of other
  /// hosts, or ranks would read each other's memory instead of using the network.
  std::string inside(int host) const { return unshared(host); }
  slow_switch* wire() { return switch_ ? &*switch_ : nullptr; }

  /// The cable of a host behind the bridge is pulled, or put in again.
  bool set_link(int host, bool up) const {
    return in_switch("ip link set " + port(host) + (up ? " up" : " down"));
  }

private:
  static bool done(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0; // NOLINT
  }
  bool in_switch(const std::string& command) const {
    return done("ip netns exec " + name("lan") + " " + command);
  }
  std::string netns(int host) const { return "ip netns exec " + name(host) + " "; }
  std::string unshared(int host) const {
    return netns(host) + "unshare --pid --fork --kill-child --mount-proc ";
  }
  static std::string port(int host) { return "port" + std::to_string(host); }
  static std::string name(const std::string& what) {
    return "adafloor-" + std::to_string(getpid()) + "-" + what;
  }
  static std::string name(int host) { return name(std::to_string(host)); }

  /// The other end of the host's eth0, or -1.
  static int tap_of(int host) {
    const int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    const int there = open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    int tap = -1;
    if (setns(there, CLONE_NEWNET) == 0) {
      tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
      setns(here, CLONE_NEWNET);
    }
    close(here);
    close(there);
    ifreq eth{};
    std::strcpy(eth.ifr_name, "eth0");
    eth.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (tap >= 0 && ioctl(tap, TUNSETIFF, &eth) == 0) return tap;
    if (tap >= 0) close(tap);
    return -1;
  }

  int hosts_;
  std::string missing_;
  std::optional<slow_switch> switch_;
};

} // namespace adafloor::testing
