#pragma once
// The one list of messages. The number is the wire tag: append, never renumber.
#include "messages/engine.hpp"
#include "messages/kv.hpp"
#include "messages/leases.hpp"
#include "messages/membership.hpp"
#include "messages/rollout.hpp"
#include "messages/transition.hpp"
#include "messages/weights.hpp"

#include <variant>

#define ADAFLOOR_FOR_EACH_MESSAGE(X)                                                               \
  X(1, heartbeat)                                                                                  \
  X(2, heartbeat_seen)                                                                             \
  X(3, member_lost)                                                                                \
  X(4, stop)                                                                                       \
  X(5, stopped)                                                                                    \
  X(6, begin_rollout)                                                                              \
  X(7, admit_requests)                                                                             \
  X(8, requests_admitted)                                                                          \
  X(9, start_rollout)                                                                              \
  X(10, rollout_started)                                                                           \
  X(11, response)                                                                                  \
  X(12, response_kept)                                                                             \
  X(13, rank_progress)                                                                             \
  X(14, end_rollout)                                                                               \
  X(15, rollout_report)                                                                            \
  X(16, prepare_transition)                                                                        \
  X(17, prepared)                                                                                  \
  X(18, refused)                                                                                   \
  X(19, abort_transition)                                                                          \
  X(20, transition_aborted)                                                                        \
  X(21, commit_transition)                                                                         \
  X(22, switched)                                                                                  \
  X(23, settle_transition)                                                                         \
  X(24, settled)                                                                                   \
  X(25, rollout_done)                                                                              \
  X(26, rollout_failed)                                                                            \
  X(27, engine_admit)                                                                              \
  X(28, engine_start)                                                                              \
  X(29, engine_prepare)                                                                            \
  X(30, engine_prepared)                                                                           \
  X(31, engine_refused)                                                                            \
  X(32, engine_abort)                                                                              \
  X(33, engine_commit)                                                                             \
  X(34, engine_settle)                                                                             \
  X(35, engine_state)                                                                              \
  X(36, engine_failed)                                                                             \
  X(37, rank_available)                                                                            \
  X(38, recall_leases)                                                                             \
  X(39, leases_recalled)                                                                           \
  X(40, lease_grant)                                                                               \
  X(41, lease_accepted)                                                                            \
  X(42, lease_denied)                                                                              \
  X(43, lease_renew)                                                                               \
  X(44, lease_revoke)                                                                              \
  X(45, lease_returned)                                                                            \
  X(46, lease_closed)                                                                              \
  X(47, queue_work)                                                                                \
  X(48, take_work)                                                                                 \
  X(49, work_units)                                                                                \
  X(50, work_result)                                                                               \
  X(51, work_kept)                                                                                 \
  X(52, run_unit)                                                                                  \
  X(53, stop_worker)                                                                               \
  X(54, worker_stopped)                                                                            \
  X(55, lease_record)                                                                              \
  X(56, update_weights)                                                                            \
  X(57, weights_updated)                                                                           \
  X(58, weights_refused)                                                                           \
  X(59, transition_record)                                                                         \
  X(60, move_request)                                                                              \
  X(61, request_moved)                                                                             \
  X(62, move_offer)                                                                                \
  X(63, move_accepted)                                                                             \
  X(64, move_refused)                                                                              \
  X(65, kv_ready)                                                                                  \
  X(66, kv_taken)                                                                                  \
  X(67, move_committed)                                                                            \
  X(68, move_rejected)                                                                             \
  X(69, move_cancel)                                                                               \
  X(70, move_cancelled)                                                                            \
  X(71, engine_move_begin)                                                                         \
  X(72, engine_move_offer)                                                                         \
  X(73, engine_move_round)                                                                         \
  X(74, engine_move_end)                                                                           \
  X(75, engine_move_ended)                                                                         \
  X(76, engine_receive_begin)                                                                      \
  X(77, engine_receive_round)                                                                      \
  X(78, engine_receive_cancel)                                                                     \
  X(79, token_batch)                                                                               \
  X(80, tokens_kept)                                                                               \
  X(81, rank_quarantined)                                                                          \
  X(82, decode_pace)                                                                               \
  X(83, queue_policy)                                                                              \
  X(84, lending_state)                                                                             \
  X(85, rank_lost)                                                                                 \
  X(86, recovery_record)

namespace adafloor {

template <class T>
struct wire_tag;
#define X(n, T)                                                                                    \
  template <>                                                                                      \
  struct wire_tag<T> {                                                                             \
    static constexpr std::uint16_t value = n;                                                      \
  };                                                                                               \
  static_assert(reflect::arity<T>() == T::field_names.size(), #T ": FIELDS is incomplete");
ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X

namespace detail {
template <class Unused, class... Ts>
struct catalog {
  using any = std::variant<Ts...>;
  using all = std::tuple<Ts...>;
};
#define X(n, T) , T
using messages = catalog<void ADAFLOOR_FOR_EACH_MESSAGE(X)>; // The leading void eats the comma.
#undef X
} // namespace detail

using any_message = detail::messages::any;  ///< exactly one message of the catalog
using all_messages = detail::messages::all; ///< for BOOST_AUTO_TEST_CASE_TEMPLATE

/// Everything a receiver needs to judge a message before it looks at it.
struct envelope {
  address from;
  address to;
  incarnation_id incarnation; ///< of the sending process
  fence stamp;                ///< the sender's view when it sent
  any_message body;
  friend bool operator==(const envelope& a, const envelope& b) {
    return a.from == b.from && a.to == b.to && a.incarnation == b.incarnation && a.stamp == b.stamp
           && a.body == b.body;
  }
};

/// Name of the message in the catalog, e.g. "heartbeat".
std::string_view name_of(const any_message&);

} // namespace adafloor
