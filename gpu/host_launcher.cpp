// Kernel bodies on this machine's processor, one block after the other.
#include "gpu/launcher.hpp"

#include <cassert>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

namespace adafloor {

namespace {

/// One block; its threads take turns between barriers.
class host_block {
public:
  host_block(std::uint32_t threads, thread_order order, std::vector<std::byte>& memory)
    : order_(order), threads_(threads), memory_(memory) {}

  std::uint32_t x = 0, y = 0, z = 0;

  template <class F>
  void each(F f) {
    for (std::uint32_t i = 0; i < threads_; ++i)
      f(thread_at(i));
  }
  template <class T>
  T* shared(std::size_t count) {
    const auto at = (used_ + 15) / 16 * 16;
    used_ = at + count * sizeof(T);
    assert(used_ <= memory_.size());
    return reinterpret_cast<T*>(memory_.data() + at);
  }
  template <class T>
  class local {
  public:
    explicit local(const host_block& b) : of_thread_(b.threads_) {}
    T& operator[](std::uint32_t t) { return of_thread_[t]; }

  private:
    std::vector<T> of_thread_;
  };

private:
  std::uint32_t thread_at(std::uint32_t i) const {
    switch (order_) {
    case thread_order::ascending:
      return i;
    case thread_order::descending:
      return threads_ - 1 - i;
    case thread_order::interleaved:
      break;
    }
    return (i * 37 + 11) % threads_; // a permutation: numbers of threads are powers of two
  }

  thread_order order_;
  std::uint32_t threads_;
  std::vector<std::byte>& memory_;
  std::size_t used_ = 0;
};

class host_launcher final : public launcher {
public:
  explicit host_launcher(thread_order order) : order_(order) {}
  std::string name() const override { return "this processor"; }

  result<void*> allocate(std::size_t bytes) override {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr)
      return fail(error_code::refused,
                  "host launcher: no memory for " + std::to_string(bytes) + " bytes");
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }

  result<void> launch(const any_kernel& any) override {
    if (capturing_)
      graphs_[*capturing_].push_back(any);
    else
      std::visit([this](const auto& kernel) { run(kernel); }, any);
    return {};
  }
  result<void> upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }
  result<void> download(void* to, const void* from, std::size_t bytes) override {
    return upload(to, from, bytes);
  }

  /// Kernels are kept with their addresses, as a GPU's graph keeps them.
  bool replay(std::uint64_t key) override {
    const auto kept = graphs_.find(key);
    if (kept == graphs_.end()) return false;
    for (const auto& any : kept->second)
      std::visit([this](const auto& kernel) { run(kernel); }, any);
    return true;
  }
  result<void> begin_graph(std::uint64_t key) override {
    capturing_ = key;
    return {};
  }
  result<void> end_graph() override {
    const auto key = *capturing_;
    capturing_.reset();
    replay(key);
    return {};
  }
  void forget_graphs() override { graphs_.clear(); }

private:
  template <class Kernel>
  void run(const Kernel& kernel) {
    static_assert((Kernel::threads & (Kernel::threads - 1)) == 0);
    const auto grid = kernel.grid();
    shared_.assign(kernel.shared_bytes() + 15, std::byte{0x5A});
    for (std::uint32_t z = 0; z < grid.z; ++z)
      for (std::uint32_t y = 0; y < grid.y; ++y)
        for (std::uint32_t x = 0; x < grid.x; ++x) {
          host_block block(Kernel::threads, order_, shared_);
          block.x = x;
          block.y = y;
          block.z = z;
          kernel(block);
        }
  }

  thread_order order_;
  std::vector<std::byte> shared_;
  std::map<std::uint64_t, std::vector<any_kernel>> graphs_;
  std::optional<std::uint64_t> capturing_;
};

} // namespace

std::unique_ptr<launcher> make_host_launcher(thread_order order) {
  return std::make_unique<host_launcher>(order);
}

} // namespace adafloor
