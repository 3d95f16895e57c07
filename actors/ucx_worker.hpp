#pragma once
// UCX, wrapped once: a context with one worker, endpoints to other workers, active messages.
// Only ucx_link, ucx_bulk, ucx_collective and their tests include this file.
#include "actors/ucx_options.hpp"
#include "messages/result.hpp"

#include <ucp/api/ucp.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace adafloor {

/// Header and payload of one active message.
struct ucx_message {
  const void* header = nullptr;
  std::size_t header_size = 0;
  const void* payload = nullptr;
  std::size_t payload_size = 0;
};

/// Something that must stay alive until UCX has sent it. `done` is called exactly once, maybe
/// inside `send`, and the object is destroyed afterwards.
class ucx_sending {
public:
  virtual ~ucx_sending() = default;
  virtual void done(ucs_status_t status) = 0;
};

/// A connection to one worker, for sending. Connections are made through a listener, not by worker
/// address: its socket tells within a few milliseconds that the peer's process is gone, which
/// shared memory alone would not. Its address stays the same, so it lives behind a unique_ptr.
class ucx_endpoint {
public:
  ~ucx_endpoint(); ///< the endpoint must be closed before (ucx_worker::close)
  /// UCS_OK until UCX reports a failure; then the endpoint can only be closed.
  ucs_status_t status() const { return status_; }

private:
  friend class ucx_worker;
  friend struct ucx_callbacks;
  struct waiting {
    unsigned id;
    ucx_message message;
    unsigned flags;
    std::unique_ptr<ucx_sending> sending;
  };
  ucp_ep_h ep_ = nullptr;
  ucs_status_t status_ = UCS_OK;
  bool connected_ = false;
  std::deque<waiting> waiting_; // for the connection
};

/// Used by one thread at a time; may be created by another.
class ucx_worker {
public:
  /// Errors: io (names transports and devices, says how to see what there is).
  static result<std::unique_ptr<ucx_worker>> open(const ucx_options& o, const std::string& name);
  ~ucx_worker();

  ucp_worker_h handle() const { return worker_; }
  /// "host:port" of the listener.
  const std::string& address() const { return address_; }
  /// Readable after a successful `arm` when there is something to do.
  int event_fd() const { return event_fd_; }

  unsigned progress() { return ucp_worker_progress(worker_); }
  /// True: nothing is pending, sleep on event_fd. False: progress first.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  /// Calls `callback` from `progress` for every active message with this id.
  result<void> handle_messages(unsigned id, ucp_am_recv_callback_t callback, void* argument);

  /// Lets go of connections that peers made to this worker and that ended. Not inside a callback.
  void reap();

  /// Connects in the background. Errors: bad_input (address), io (UCX cannot reach it).
  result<std::unique_ptr<ucx_endpoint>> connect(const std::string& address);
  /// Drops whatever is under way on the endpoint and waits until UCX has let go of it. Makes
  /// progress: not from inside a callback.
  void close(std::unique_ptr<ucx_endpoint> ep);

  /// Sends header and payload; both belong to `sending` and stay until its `done`. A header only
  /// together with UCP_AM_SEND_FLAG_RNDV: 1.13 fails for some short messages that have one.
  void send(ucx_endpoint& ep, unsigned id, const ucx_message& message, unsigned flags,
            std::unique_ptr<ucx_sending> sending);

private:
  friend struct ucx_callbacks;
  ucx_worker() = default;
  void transmit(ucx_endpoint& ep, unsigned id, const ucx_message& m, unsigned flags,
                std::unique_ptr<ucx_sending> sending);
  result<void> listen(const std::string& host);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  std::vector<std::unique_ptr<ucx_endpoint>> accepted_; // receive only
  bool accepted_ended_ = false;
  std::string address_;
  int event_fd_ = -1;
};

} // namespace adafloor
