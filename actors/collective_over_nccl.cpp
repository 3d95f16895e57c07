#include "actors/collective_over_nccl.hpp"

#include "gpu/plugin.hpp"
#include "gpu/plugin_abi.hpp"

#include <algorithm>

namespace adafloor {

struct collective_over_nccl::world {
  std::vector<std::byte> id;
  std::vector<rank_id> members;
  std::unique_ptr<collective_fabric> fabric; ///< null until it is joined
};

/// One group. What the plug-in made for it goes with the world that it was made of.
class nccl_group final : public communicator {
public:
  nccl_group(collective_over_nccl& f, std::shared_ptr<collective_over_nccl::world> world,
             epoch_id epoch, std::vector<rank_id> members)
    : fabric_(f), world_(std::move(world)), epoch_(epoch.value), members_(std::move(members)) {
    self_ = static_cast<std::size_t>(std::find(members_.begin(), members_.end(), f.options_.self)
                                     - members_.begin());
    std::lock_guard lock(f.mutex_);
    f.groups_.insert(this);
  }
  ~nccl_group() override {
    std::lock_guard lock(fabric_.mutex_);
    fabric_.groups_.erase(this);
  }

  epoch_id epoch() const override { return epoch_id{epoch_.load()}; }
  const std::vector<rank_id>& members() const override { return members_; }
  std::size_t self_index() const override { return self_; }

  result<void> exchange(const exchange_id& id, const std::vector<bytes_view>& outgoing,
                        std::vector<bytes_view>* incoming) override {
    if (stopped_ || fabric_.is_aborted(epoch()))
      return fail(error_code::aborted,
                  "group of epoch " + std::to_string(epoch().value) + " was aborted");
    if (auto made = make_inner(); !made) return made;
    auto done = inner_->exchange(id, outgoing, incoming);
    failed_ = failed_ || !done;
    return done;
  }

  result<void> enter(epoch_id next) override {
    if (!(epoch() < next))
      return bad_input("group of epoch " + std::to_string(epoch().value) + " used again for epoch "
                       + std::to_string(next.value) + "; epochs never fall");
    auto world = fabric_.world_of(members_);
    if (!world) return tl::unexpected(world.error());
    const bool another = *world != world_ || stopped_ || failed_;
    if (another) drop();
    world_ = std::move(*world);
    epoch_ = next.value;
    stopped_ = failed_ = false;
    return inner_ ? inner_->enter(next) : result<void>{};
  }

  void abort() noexcept override {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (inner_) inner_->abort();
  }

  /// Engine's thread.
  void drop() {
    std::unique_ptr<communicator> old;
    std::lock_guard lock(mutex_);
    old.swap(inner_);
  }

private:
  result<void> make_inner() {
    if (inner_) return {};
    auto fabric = fabric_.joined(*world_, &stopped_);
    if (!fabric) return tl::unexpected(fabric.error());
    auto made = (*fabric)->make_group(epoch(), members_);
    if (!made) return tl::unexpected(made.error());
    std::lock_guard lock(mutex_);
    inner_ = std::move(*made);
    if (stopped_) inner_->abort();
    return {};
  }

  collective_over_nccl& fabric_;
  std::shared_ptr<collective_over_nccl::world> world_;
  std::atomic<std::uint64_t> epoch_;
  std::vector<rank_id> members_;
  std::size_t self_ = 0;
  std::atomic<bool> stopped_{false};
  bool failed_ = false;
  std::mutex mutex_; // guards inner_ against abort
  std::unique_ptr<communicator> inner_;
};

result<std::unique_ptr<collective_over_nccl>> collective_over_nccl::open(options o) {
  if (o.self.value >= o.world_size)
    return bad_input("rank " + std::to_string(o.self.value) + " in a world of "
                     + std::to_string(o.world_size) + "; ranks are 0-based");
  const auto found = find_nccl();
  if (!found) return tl::unexpected(found.error());
  if (found->devices == 0)
    return fail(error_code::refused, "NCCL: no GPU for rank " + std::to_string(o.self.value) + ": "
                                         + found->text + "; use --collective ucx");
  std::unique_ptr<collective_over_nccl> made(new collective_over_nccl(o));
  made->ordinal_ = static_cast<int>(o.self.value % found->devices);
  made->offers_world_ = o.self == rank_id{0};
  if (made->offers_world_) {
    auto id = make_nccl_world_id();
    if (!id) return tl::unexpected(id.error());
    made->fresh_ = std::move(*id);
  }
  return made;
}

collective_over_nccl::~collective_over_nccl() = default;

/// One byte says which of the two follow; both are of one size.
std::string collective_over_nccl::address() {
  if (offers_world_ && fresh_.empty())
    if (auto id = make_nccl_world_id()) fresh_ = std::move(*id); // Else a peer may have one.
  const id_bytes joined = world_ ? world_->id : id_bytes{};
  std::string text(1, static_cast<char>((joined.empty() ? 0 : 1) + (fresh_.empty() ? 0 : 2)));
  for (const auto* id : {&joined, static_cast<const id_bytes*>(&fresh_)})
    text.append(reinterpret_cast<const char*>(id->data()), id->size());
  return text;
}

result<void> collective_over_nccl::follow(rank_id peer, const std::string& address) {
  if (address.empty()) return {};
  const auto what = static_cast<unsigned char>(address[0]);
  const bool has_joined = (what & 1U) != 0, has_fresh = (what & 2U) != 0;
  const std::size_t parts = (has_joined ? 1 : 0) + (has_fresh ? 1 : 0), rest = address.size() - 1;
  if (peer.value >= options_.world_size || what > 3 || (parts == 0 ? rest > 0 : rest % parts != 0))
    return bad_input("NCCL: rank " + std::to_string(peer.value)
                     + " has an address that this rank cannot read; do all ranks run with the same "
                       "transport.collective?");
  const auto* bytes = reinterpret_cast<const std::byte*>(address.data()) + 1;
  const auto size = parts == 0 ? 0 : rest / parts;
  offer told;
  if (has_joined) told.joined.assign(bytes, bytes + size);
  if (has_fresh) told.fresh.assign(bytes + rest - size, bytes + rest);
  offers_[peer] = std::move(told);
  return {};
}

/// The world of a group of these: where they all are, or the one that they start.
result<std::shared_ptr<collective_over_nccl::world>>
collective_over_nccl::world_of(const std::vector<rank_id>& members) {
  const auto& first = offers_[members.front()].joined;
  const bool together = world_ && first == world_->id
                        && std::all_of(members.begin(), members.end(),
                                       [&](rank_id r) { return offers_[r].joined == world_->id; });
  if (together) return world_;
  const auto starter = std::find_if(members.begin(), members.end(),
                                    [&](rank_id r) { return !offers_[r].fresh.empty(); });
  if (starter == members.end())
    return fail(error_code::internal,
                "NCCL: no member of the group offers the start of a world; start the ranks again");
  auto next = std::make_shared<world>();
  next->id = offers_[*starter].fresh;
  next->members = members;
  if (*starter == options_.self) fresh_.clear(); // It serves for one.
  for (const auto r : members) {
    offers_[r].joined = next->id;
    if (r == *starter) offers_[r].fresh.clear();
  }
  world_ = next;
  return next;
}

result<collective_fabric*> collective_over_nccl::joined(world& w, const std::atomic<bool>* stop) {
  if (w.fabric) return w.fabric.get();
  if (world_.get() != &w)
    return fail(error_code::aborted, "NCCL: the world of this group was given up");
  auto fabric = join_nccl_world(
      {w.id, options_.self, w.members, ordinal_, options_.setup, options_.exchange, stop});
  if (!fabric) return tl::unexpected(fabric.error());
  w.fabric = std::move(*fabric);
  w.fabric->set_weights_version(weights_);
  return w.fabric.get();
}

result<void> collective_over_nccl::join() {
  std::vector<rank_id> everybody;
  for (std::uint32_t r = 0; r < options_.world_size; ++r)
    everybody.emplace_back(r);
  if (auto self = follow(options_.self, address()); !self) return self;
  auto first = world_of(everybody);
  if (!first) return tl::unexpected(first.error());
  offers_world_ = false; // Until a rank is lost.
  if (auto fabric = joined(**first, nullptr); !fabric) return tl::unexpected(fabric.error());
  return {};
}

/// Groups first: they are of the world's.
result<void> collective_over_nccl::renew() {
  {
    std::lock_guard lock(mutex_);
    for (auto* group : groups_)
      group->drop();
  }
  if (world_) world_->fabric.reset();
  world_.reset();
  fresh_.clear(); // The others have heard of the old one, which may have been begun.
  offers_world_ = true;
  return {};
}

void collective_over_nccl::abort_up_to(epoch_id epoch) noexcept {
  auto before = aborted_up_to_.load();
  while (before < epoch.value && !aborted_up_to_.compare_exchange_weak(before, epoch.value)) {
  }
  std::lock_guard lock(mutex_);
  for (auto* group : groups_)
    if (group->epoch() <= epoch) group->abort();
}

result<std::unique_ptr<communicator>>
collective_over_nccl::make_group(epoch_id epoch, std::vector<rank_id> members) {
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), [](auto a, auto b) { return !(a < b); })
      == members.end();
  const bool has_self = std::find(members.begin(), members.end(), options_.self) != members.end();
  if (!ascending || !has_self || members.back().value >= options_.world_size)
    return bad_input("group of epoch " + std::to_string(epoch.value)
                     + ": members must be ascending ranks below "
                     + std::to_string(options_.world_size) + " and contain rank "
                     + std::to_string(options_.self.value));
  auto world = world_of(members);
  if (!world) return tl::unexpected(world.error());
  return std::unique_ptr<communicator>(
      new nccl_group(*this, std::move(*world), epoch, std::move(members)));
}

void collective_over_nccl::set_weights_version(weights_id version) {
  weights_ = version;
  if (world_ && world_->fabric) world_->fabric->set_weights_version(version);
}

} // namespace adafloor
