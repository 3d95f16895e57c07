#include "planner/sim/faults.hpp"

#include "messages/codec.hpp"
#include "messages/frame.hpp"
#include "planner/protocol/machine.hpp"

#include <fmt/format.h>

namespace adafloor {

const char* name_of(fault_kind k) {
  constexpr const char* names[] = {"",        "drop",    "duplicate", "delay",
                                   "reorder", "corrupt", "refuse",    "slow",
                                   "freeze",  "crash",   "disk_full", "partition"};
  return names[static_cast<std::size_t>(k)];
}

const char* name_of(protocol_step s) {
  constexpr const char* names[] = {"",
                                   "membership",
                                   "admission",
                                   "decode",
                                   "contract.prepare",
                                   "contract.commit",
                                   "contract.settle",
                                   "abort",
                                   "move.order",
                                   "move.offer",
                                   "move.copy",
                                   "move.hand_over",
                                   "move.cancel",
                                   "lease.grant",
                                   "lease.work",
                                   "lease.return",
                                   "restore.prepare",
                                   "restore.commit",
                                   "restore.settle",
                                   "report",
                                   "weights",
                                   "stop",
                                   "recovery"};
  return names[static_cast<std::size_t>(s)];
}

std::optional<any_message> refusal_of(const any_message& asked, const std::string& why) {
  return std::visit(
      [&](const auto& m) -> std::optional<any_message> {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, prepare_transition>)
          return refused{m.epoch, refusal::no_memory, why};
        else if constexpr (std::is_same_v<M, engine_prepare>)
          return engine_refused{m.epoch, refusal::no_memory, why};
        else if constexpr (one_of<M, move_offer, engine_receive_begin>)
          return move_refused{m.key, why};
        else if constexpr (std::is_same_v<M, lease_grant>)
          return lease_denied{m.lease, why};
        else if constexpr (std::is_same_v<M, update_weights>)
          return weights_refused{m.version, why};
        else
          return std::nullopt;
      },
      asked);
}

bool damage_is_noticed(const envelope& message, std::uint64_t bit, std::string* text) {
  frame_header header;
  header.type = frame_type::data;
  header.sender = message.from.rank;
  header.from = message.incarnation;
  header.seq = 1;
  auto bytes = encode_frame(header, encode(message));
  const auto at = bit % (bytes.size() * 8);
  bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(bytes[at / 8]) ^ (1u << at % 8));
  const auto read = decode_frame(bytes);
  const auto* fault = std::get_if<frame_fault>(&read);
  if (fault && text) *text = describe(*fault);
  return fault != nullptr;
}

std::optional<protocol_step> step_of(const any_message& message, transition_kind kind) {
  const auto either = [&](protocol_step contract, protocol_step restore) {
    return kind == transition_kind::recover   ? protocol_step::recovery
           : kind == transition_kind::restore ? restore
                                              : contract;
  };
  return std::visit(
      [&](const auto& m) -> std::optional<protocol_step> {
        using M = std::decay_t<decltype(m)>;
        using s = protocol_step;
        if constexpr (one_of<M, heartbeat, heartbeat_seen, member_lost>)
          return s::membership;
        else if constexpr (one_of<M, admit_requests, requests_admitted, start_rollout,
                                  rollout_started>)
          return s::admission;
        else if constexpr (one_of<M, rank_progress, response, response_kept, token_batch,
                                  tokens_kept, engine_failed>)
          return s::decode;
        else if constexpr (one_of<M, prepare_transition, prepared, refused>)
          return either(s::contract_prepare, s::restore_prepare);
        else if constexpr (one_of<M, commit_transition, switched>)
          return either(s::contract_commit, s::restore_commit);
        else if constexpr (one_of<M, settle_transition, settled>)
          return either(s::contract_settle, s::restore_settle);
        else if constexpr (one_of<M, abort_transition, transition_aborted>)
          return s::abort;
        else if constexpr (one_of<M, move_request, request_moved>)
          return s::move_order;
        else if constexpr (one_of<M, move_offer, move_accepted, move_refused>)
          return s::move_offer;
        else if constexpr (std::is_same_v<M, kv_ready>)
          return m.last ? s::move_hand_over : s::move_copy;
        else if constexpr (std::is_same_v<M, kv_taken>)
          return s::move_copy;
        else if constexpr (one_of<M, move_committed, move_rejected>)
          return s::move_hand_over;
        else if constexpr (one_of<M, move_cancel, move_cancelled>)
          return s::move_cancel;
        else if constexpr (one_of<M, lease_grant, lease_accepted, lease_denied, lease_renew>)
          return s::lease_grant;
        else if constexpr (one_of<M, take_work, work_units, work_result, work_kept>)
          return s::lease_work;
        else if constexpr (one_of<M, lease_revoke, lease_returned, lease_closed>)
          return s::lease_return;
        else if constexpr (one_of<M, end_rollout, rollout_report>)
          return s::report;
        else if constexpr (one_of<M, update_weights, weights_updated, weights_refused>)
          return s::weights;
        else if constexpr (one_of<M, adafloor::stop, stopped>)
          return s::stop;
        else
          return std::nullopt;
      },
      message);
}

bool is_between_processes(const std::string& name) {
  bool found = false;
#define X(n, T) found |= name == #T && step_of(T{}, transition_kind::contract).has_value();
  ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
  return found;
}

void fault_coverage::add(const fault_coverage& other) {
  for (std::size_t s = 0; s < steps; ++s)
    for (std::size_t k = 0; k < kinds; ++k)
      cells_[s][k] += other.cells_[s][k];
}

bool fault_coverage::possible(protocol_step s, fault_kind k) {
  if (k != fault_kind::refuse) return true;
  switch (s) {
  case protocol_step::contract_prepare:
  case protocol_step::restore_prepare:
  case protocol_step::move_offer:
  case protocol_step::move_copy:
  case protocol_step::move_hand_over:
  case protocol_step::lease_grant:
  case protocol_step::weights:
    return true;
  default:
    return false;
  }
}

std::string fault_coverage::empty_cells() const {
  std::string cells;
  for (std::size_t s = 1; s <= steps; ++s)
    for (std::size_t k = 1; k <= kinds; ++k) {
      const auto step = static_cast<protocol_step>(s);
      const auto kind = static_cast<fault_kind>(k);
      if (!possible(step, kind) || count(step, kind) != 0) continue;
      cells += (cells.empty() ? "" : ", ") + std::string(name_of(step)) + " x " + name_of(kind);
    }
  return cells;
}

std::string fault_coverage::table() const {
  auto text = fmt::format("{:<17}", "step");
  for (std::size_t k = 1; k <= kinds; ++k)
    text += fmt::format("{:>10}", name_of(static_cast<fault_kind>(k)));
  for (std::size_t s = 1; s <= steps; ++s) {
    const auto step = static_cast<protocol_step>(s);
    text += fmt::format("\n{:<17}", name_of(step));
    for (std::size_t k = 1; k <= kinds; ++k) {
      const auto kind = static_cast<fault_kind>(k);
      text += possible(step, kind) ? fmt::format("{:>10}", count(step, kind))
                                   : fmt::format("{:>10}", "-");
    }
  }
  return text + '\n';
}

} // namespace adafloor
