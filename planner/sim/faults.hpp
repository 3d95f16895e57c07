#pragma once
// The kinds of fault by name, the steps of the protocols that they may hit, and which were hit.
#include "messages/catalog.hpp"
#include "messages/transition.hpp"

#include <array>
#include <optional>
#include <string>

namespace adafloor {

/// What can go wrong. The first six befall a message, the others a process or its surroundings.
enum class fault_kind : std::uint8_t {
  drop = 1,  ///< never delivered
  duplicate, ///< delivered twice
  delay,     ///< delivered late, behind what comes meanwhile
  reorder,   ///< overtaken by a later message between the same two
  corrupt,   ///< bits of its frame change on the way; the checksum tells, and the frame is dropped
  refuse,    ///< answered with the refusal that the protocol has for it
  slow,      ///< handled, and everything behind it, later than usual
  freeze,    ///< the process does nothing for a while
  crash,     ///< the process is gone
  disk_full, ///< the results file takes nothing more
  partition, ///< for a while nothing passes between two sets of ranks
};
constexpr fault_kind enum_max(fault_kind) {
  return fault_kind::partition;
}
const char* name_of(fault_kind);

/// What the protocol says to the role that asked when it is refused `asked`; nothing where it has
/// no refusal. `why`: the text in it.
std::optional<any_message> refusal_of(const any_message& asked, const std::string& why);

/// Whether the frame of `message` with bit `bit` (modulo its length) flipped would be noticed on
/// arrival; `text`, where given, gets what was found wrong.
bool damage_is_noticed(const envelope& message, std::uint64_t bit, std::string* text = nullptr);

/// The conversations of protocols.md, cut where a fault has another effect.
enum class protocol_step : std::uint8_t {
  membership = 1,   ///< heartbeats
  admission,        ///< requests go out, engines start
  decode,           ///< progress, responses, the token log
  contract_prepare, ///< a smaller group is prepared
  contract_commit,
  contract_settle,
  abort, ///< a transition is taken back
  move_order,
  move_offer,
  move_copy,      ///< rounds of KV, while the request decodes
  move_hand_over, ///< the last round: who owns the request?
  move_cancel,
  lease_grant, ///< and renewals
  lease_work,
  lease_return,
  restore_prepare,
  restore_commit,
  restore_settle,
  report, ///< ranks close their books
  weights,
  stop,
  recovery, ///< a group without the dead is prepared, committed and settled
};
constexpr protocol_step enum_max(protocol_step) {
  return protocol_step::recovery;
}
const char* name_of(protocol_step);

/// The step that a message between processes belongs to. `kind`: of the transition that it is
/// about, if it is about one. Nothing for messages that never leave their process.
std::optional<protocol_step> step_of(const any_message& message, transition_kind kind);

/// Whether messages of this name travel between processes.
bool is_between_processes(const std::string& name);

/// The member of `E` that has this name.
template <class E>
std::optional<E> named_member(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(enum_max(E{})); ++i)
    if (name == name_of(static_cast<E>(i))) return static_cast<E>(i);
  return std::nullopt;
}

/// How often each kind of fault struck in each step.
class fault_coverage {
public:
  static constexpr std::size_t steps = static_cast<std::size_t>(enum_max(protocol_step{}));
  static constexpr std::size_t kinds = static_cast<std::size_t>(enum_max(fault_kind{}));

  void add(protocol_step s, fault_kind k, std::uint64_t count = 1) { at(s, k) += count; }
  void add(const fault_coverage& other);
  std::uint64_t count(protocol_step s, fault_kind k) const {
    return const_cast<fault_coverage*>(this)->at(s, k);
  }
  /// False where the protocol has no such thing: a refusal of what cannot be refused.
  static bool possible(protocol_step, fault_kind);
  /// Cells that are possible and were not hit, as "step x kind", one after the other.
  std::string empty_cells() const;
  /// One line per step, one column per kind; `-` where it is not possible.
  std::string table() const;

private:
  std::uint64_t& at(protocol_step s, fault_kind k) {
    return cells_[static_cast<std::size_t>(s) - 1][static_cast<std::size_t>(k) - 1];
  }
  std::array<std::array<std::uint64_t, kinds>, steps> cells_{};
};

} // namespace adafloor
