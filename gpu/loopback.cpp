#include "gpu/loopback.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace adafloor {

namespace {

struct frame {
  exchange_id id;
  std::vector<std::byte> bytes;
};

/// What all ranks of the process share.
struct hub {
  /// (epoch, members, sender, receiver); frames of a later epoch wait here for their group.
  using mailbox_key = std::tuple<epoch_id, std::vector<rank_id>, rank_id, rank_id>;

  struct rank_state {
    std::condition_variable arrived;
    bool alive = true;
  };

  std::mutex mutex; // guards all below
  std::map<mailbox_key, std::deque<frame>> mailboxes;
  std::deque<rank_state> ranks;
  std::chrono::milliseconds timeout{0};

  explicit hub(std::uint32_t world_size) : ranks(world_size) {}
};

std::string text_of(const exchange_id& id) {
  static const char* const phases[] = {"dispatch", "combine", "header"};
  return "step " + std::to_string(id.step) + " layer " + std::to_string(id.layer) + " "
         + phases[id.phase % 3];
}

class loopback_communicator : public communicator {
public:
  loopback_communicator(std::shared_ptr<hub> shared, epoch_id epoch, std::vector<rank_id> members,
                        std::size_t self)
    : hub_(std::move(shared)), epoch_(epoch), members_(std::move(members)), self_(self),
      received_(members_.size()) {}

  ~loopback_communicator() override { forget_mail(); }

  epoch_id epoch() const override { return epoch_; }
  const std::vector<rank_id>& members() const override { return members_; }
  std::size_t self_index() const override { return self_; }

  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    if (outgoing.size() != members_.size())
      return bad_input("loopback: " + std::to_string(outgoing.size()) + " outgoing frames for "
                       + std::to_string(members_.size()) + " members");
    auto deadline = std::chrono::steady_clock::now() + hub_->timeout;
    std::unique_lock lock(hub_->mutex);
    if (aborted_) return aborted(id);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto& bytes = outgoing[i];
      hub_->mailboxes[key(members_[self_], members_[i])].push_back(
          {id, {bytes.data, bytes.data + bytes.size}});
      if (i != self_) hub_->ranks[members_[i].value].arrived.notify_all();
    }
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (auto ok = receive(id, i, deadline, lock); !ok) return ok;
    incoming->resize(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i)
      (*incoming)[i] = {received_[i].data(), received_[i].size()};
    return {};
  }

  result<void> enter(epoch_id epoch) override {
    if (!(epoch_ < epoch))
      return bad_input("loopback: epoch " + std::to_string(epoch.value) + " after epoch "
                       + std::to_string(epoch_.value) + "; epochs grow");
    forget_mail();
    epoch_ = epoch;
    return {};
  }

  void abort() noexcept override {
    std::lock_guard lock(hub_->mutex);
    aborted_ = true;
    hub_->ranks[members_[self_].value].arrived.notify_all();
  }

private:
  void forget_mail() {
    std::lock_guard lock(hub_->mutex);
    for (auto sender : members_)
      hub_->mailboxes.erase(key(sender, members_[self_]));
  }

  hub::mailbox_key key(rank_id sender, rank_id receiver) const {
    return {epoch_, members_, sender, receiver};
  }

  tl::unexpected<error> aborted(const exchange_id& id) const {
    return fail(error_code::aborted, "loopback: group of epoch " + std::to_string(epoch_.value)
                                         + " was aborted in " + text_of(id));
  }

  result<void> receive(const exchange_id& id, std::size_t member,
                       std::chrono::steady_clock::time_point deadline,
                       std::unique_lock<std::mutex>& lock) {
    auto& box = hub_->mailboxes[key(members_[member], members_[self_])];
    auto& peer = hub_->ranks[members_[member].value];
    auto& self = hub_->ranks[members_[self_].value];
    auto waiting_for = [&] {
      return "rank " + std::to_string(members_[member].value) + " in " + text_of(id) + " of epoch "
             + std::to_string(epoch_.value);
    };
    bool woken = self.arrived.wait_until(lock, deadline,
                                         [&] { return aborted_ || !box.empty() || !peer.alive; });
    if (aborted_) return aborted(id);
    if (!woken)
      return fail(error_code::timed_out, "loopback: timed out waiting for " + waiting_for());
    if (box.empty()) return fail(error_code::peer_lost, "loopback: lost " + waiting_for());
    auto got = std::move(box.front());
    box.pop_front();
    if (!(got.id == id))
      return fail(error_code::internal, "loopback: expected a frame of " + waiting_for()
                                            + ", it sent one of " + text_of(got.id));
    received_[member] = std::move(got.bytes);
    return {};
  }

  std::shared_ptr<hub> hub_;
  epoch_id epoch_;
  std::vector<rank_id> members_;
  std::size_t self_;
  std::vector<std::vector<std::byte>> received_;
  bool aborted_ = false; // guarded by the hub's mutex
};

class loopback_fabric : public collective_fabric {
public:
  loopback_fabric(std::shared_ptr<hub> shared, rank_id self)
    : hub_(std::move(shared)), self_(self) {}

  ~loopback_fabric() override {
    std::lock_guard lock(hub_->mutex);
    hub_->ranks[self_.value].alive = false;
    for (auto& rank : hub_->ranks)
      rank.arrived.notify_all();
  }

  result<std::unique_ptr<communicator>> make_group(epoch_id epoch,
                                                   std::vector<rank_id> members) override {
    auto ascending = std::adjacent_find(members.begin(), members.end(),
                                        [](rank_id a, rank_id b) { return !(a < b); })
                     == members.end();
    auto self = std::find(members.begin(), members.end(), self_);
    if (!ascending || self == members.end() || members.back().value >= hub_->ranks.size())
      return bad_input("loopback: members must be ascending ranks below "
                       + std::to_string(hub_->ranks.size()) + " and contain rank "
                       + std::to_string(self_.value));
    auto index = static_cast<std::size_t>(self - members.begin());
    return std::unique_ptr<communicator>(
        new loopback_communicator(hub_, epoch, std::move(members), index));
  }

private:
  std::shared_ptr<hub> hub_;
  rank_id self_;
};

} // namespace

std::vector<std::unique_ptr<collective_fabric>>
make_loopback_fabrics(std::uint32_t world_size, std::chrono::milliseconds timeout) {
  auto shared = std::make_shared<hub>(world_size);
  shared->timeout = timeout;
  std::vector<std::unique_ptr<collective_fabric>> fabrics;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    fabrics.push_back(std::make_unique<loopback_fabric>(shared, rank_id{rank}));
  return fabrics;
}

} // namespace adafloor
