#include "actors/ucx_worker.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

namespace adafloor {

namespace {

constexpr unsigned knock_id = 0;

std::string choice(const std::string& asked, const char* variable, const char* otherwise) {
  if (!asked.empty()) return asked;
  const char* set = std::getenv(variable);
  return set != nullptr && *set != '\0' ? set : otherwise;
}

// Sets a UCX key unless the user's environment has it. Keys of one transport go by its name there.
void prefer(ucp_config_t* config, const std::string& key, const std::string& value) {
  std::vector<std::string> names{"UCX_" + key};
  if (key.rfind("MM_", 0) == 0)
    for (const char* transport : {"UCX_POSIX_", "UCX_SYSV_"})
      names.push_back(transport + key.substr(3));
  if (key == "CONN_NB") names.push_back("UCX_TCP_CONN_NB");
  for (const auto& name : names)
    if (std::getenv(name.c_str()) != nullptr) return;
  ucp_config_modify(config, key.c_str(), value.c_str());
}

bool has_any(const std::string& tls, std::initializer_list<const char*> names) {
  if (tls.find('^') != std::string::npos) return false;
  for (const char* name : names)
    if (("," + tls + ",").find("," + std::string(name) + ",") != std::string::npos) return true;
  return false;
}

result<ucp_context_h> make_context(const ucx_options& o, const std::string& name) {
  const std::string tls = choice(o.tls, "UCX_TLS", "posix,cma,self,tcp");
  const bool one_host = o.bind_host.rfind("127.", 0) == 0;
  const std::string devices = choice(o.net_devices, "UCX_NET_DEVICES", one_host ? "lo" : "all");
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    return fail(error_code::io, std::string("UCX configuration: ") + ucs_status_string(status)
                                    + "; check the UCX_* variables of the environment");
  ucp_config_modify(config, "TLS", tls.c_str());
  ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  if (has_any(tls, {"posix", "sysv", "shm", "sm", "mm", "xpmem", "all"})) {
    prefer(config, "MM_ERROR_HANDLING", "y"); // sees peers fail
    // Receive buffers stay resident once touched, and which are touched is chance: with UCX's own
    // 8 KB and 512 at a time ranks grow by megabytes over thousands of steps. Large messages are
    // not copied through these.
    prefer(config, "MM_SEG_SIZE", "2112");
    prefer(config, "MM_RX_BUFS_GROW", "128");
  }
  // Or a connection to a host that is cut off holds its thread, and with it all peers, for minutes.
  if (!one_host && has_any(tls, {"tcp", "all"})) prefer(config, "CONN_NB", "y");
  prefer(config, "KEEPALIVE_INTERVAL", std::to_string(o.keepalive.count()) + "us");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = name.c_str();
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK)
    return fail(error_code::io, "UCX transports \"" + tls + "\" on devices \"" + devices
                                    + "\": " + ucs_status_string(status)
                                    + "; `ucx_info -d` lists what this machine has");
  return context;
}

std::optional<sockaddr_in> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  sockaddr_in a{};
  a.sin_family = AF_INET;
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, wrong] = std::from_chars(text.data() + colon + 1, end, port);
  if (wrong != std::errc{} || stop != end) return std::nullopt;
  a.sin_port = htons(port);
  if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &a.sin_addr) != 1) return std::nullopt;
  return a;
}

tl::unexpected<error> no_address(const std::string& text) {
  return bad_input("UCX address \"" + text
                   + "\" is no IPv4 address with port, such as 127.0.0.1:4242");
}

} // namespace

struct ucx_callbacks {
  static void sent(void* request, ucs_status_t status, void* user) {
    const std::unique_ptr<ucx_sending> sending(static_cast<ucx_sending*>(user));
    sending->done(status);
    ucp_request_free(request);
  }

  static ucs_status_t ignore(void*, const void*, std::size_t, void*, std::size_t,
                             const ucp_am_recv_param_t*) {
    return UCS_OK;
  }

  // UCX 1.13 chooses how to send a message before it knows which transports the connection gets,
  // and crashes when those cannot ("Invalid am_short_iov length", or a null function). So a message
  // of a size that all can send goes first, and the others wait here until it has gone out.
  struct knock final : ucx_sending {
    ucx_worker* worker;
    ucx_endpoint* endpoint; // closing it completes this first
    char byte = 0;
    void done(ucs_status_t status) override {
      if (status != UCS_OK) {
        if (endpoint->status_ == UCS_OK) endpoint->status_ = status;
        return;
      }
      endpoint->connected_ = true;
      for (auto& w : std::exchange(endpoint->waiting_, {}))
        worker->transmit(*endpoint, w.id, w.message, w.flags, std::move(w.sending));
    }
  };

  static void failed(void* argument, ucp_ep_h, ucs_status_t status) {
    static_cast<ucx_endpoint*>(argument)->status_ = status;
  }

  static void accepted_failed(void* argument, ucp_ep_h ep, ucs_status_t status) {
    auto* w = static_cast<ucx_worker*>(argument);
    for (auto& e : w->accepted_)
      if (e->ep_ == ep) e->status_ = status;
    w->accepted_ended_ = true;
  }

  static void asked(ucp_conn_request_h request, void* argument) {
    auto* w = static_cast<ucx_worker*>(argument);
    auto ep = std::make_unique<ucx_endpoint>();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                        | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.conn_request = request;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = accepted_failed;
    params.err_handler.arg = w;
    if (ucp_ep_create(w->worker_, &params, &ep->ep_) == UCS_OK)
      w->accepted_.push_back(std::move(ep));
  }
};

ucx_endpoint::~ucx_endpoint() = default;

result<std::unique_ptr<ucx_worker>> ucx_worker::open(const ucx_options& o,
                                                     const std::string& name) {
  auto context = make_context(o, name);
  if (!context) return tl::unexpected<error>(context.error());
  std::unique_ptr<ucx_worker> w(new ucx_worker);
  w->context_ = *context;
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(w->context_, &params, &w->worker_);
  if (status != UCS_OK)
    return fail(error_code::io, std::string("UCX worker: ") + ucs_status_string(status)
                                    + "; check limits of open files and of /dev/shm");
  status = ucp_worker_get_efd(w->worker_, &w->event_fd_);
  if (status != UCS_OK)
    return fail(error_code::io, std::string("UCX wake-up descriptor: ") + ucs_status_string(status)
                                    + "; choose transports that have one (tcp, posix)");
  if (auto handled = w->handle_messages(knock_id, &ucx_callbacks::ignore, nullptr); !handled)
    return tl::unexpected<error>(handled.error());
  if (auto listening = w->listen(o.bind_host); !listening)
    return tl::unexpected<error>(listening.error());
  return w;
}

result<void> ucx_worker::listen(const std::string& host) {
  auto where = parse_address(host + ":0");
  if (!where) return no_address(host + ":0");
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&*where);
  params.sockaddr.addrlen = sizeof *where;
  params.conn_handler.cb = ucx_callbacks::asked;
  params.conn_handler.arg = this;
  ucs_status_t status = ucp_listener_create(worker_, &params, &listener_);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = ucp_listener_query(listener_, &attr);
  if (status != UCS_OK)
    return fail(error_code::io, "UCX cannot listen on " + host + ": " + ucs_status_string(status)
                                    + "; it must be an address of this host, and tcp one of the "
                                      "transports (UCX_TLS)");
  const auto* bound = reinterpret_cast<const sockaddr_in*>(&attr.sockaddr);
  address_ = host + ":" + std::to_string(ntohs(bound->sin_port));
  return {};
}

ucx_worker::~ucx_worker() {
  // Not the listener first: UCX 1.13 keeps a connection that it accepted but has not read from yet,
  // and tells the listener of it even when that is gone. What peers say when they connect follows
  // at once, so a moment without news means that there is none left.
  for (int quiet = 0, round = 0; worker_ != nullptr && quiet < 5 && round < 50; ++round) {
    quiet = accepted_.empty() ? quiet + 1 : 0;
    for (auto& ep : std::exchange(accepted_, {}))
      close(std::move(ep));
    while (progress() > 0) {
    }
    ::poll(nullptr, 0, 1);
  }
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

result<void> ucx_worker::handle_messages(unsigned id, ucp_am_recv_callback_t callback,
                                         void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB
                      | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.cb = callback;
  params.arg = argument;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &params);
  if (status != UCS_OK)
    return fail(error_code::internal, std::string("UCX handler: ") + ucs_status_string(status));
  return {};
}

void ucx_worker::reap() {
  while (accepted_ended_) {
    accepted_ended_ = false;
    const auto ended = std::stable_partition(accepted_.begin(), accepted_.end(),
                                             [](auto& e) { return e->status_ == UCS_OK; });
    std::vector<std::unique_ptr<ucx_endpoint>> gone(std::make_move_iterator(ended),
                                                    std::make_move_iterator(accepted_.end()));
    accepted_.erase(ended, accepted_.end());
    for (auto& ep : gone)
      close(std::move(ep));
  }
}

result<std::unique_ptr<ucx_endpoint>> ucx_worker::connect(const std::string& address) {
  const auto to = parse_address(address);
  if (!to) return no_address(address);
  auto ep = std::make_unique<ucx_endpoint>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS
                      | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&*to);
  params.sockaddr.addrlen = sizeof *to;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = ucx_callbacks::failed;
  params.err_handler.arg = ep.get();
  const ucs_status_t status = ucp_ep_create(worker_, &params, &ep->ep_);
  if (status != UCS_OK)
    return fail(error_code::io, std::string("UCX endpoint to ") + address + ": "
                                    + ucs_status_string(status)
                                    + "; do both sides have a transport in common (UCX_TLS)?");
  auto first = std::make_unique<ucx_callbacks::knock>();
  first->worker = this;
  first->endpoint = ep.get();
  const ucx_message m{nullptr, 0, &first->byte, 1};
  transmit(*ep, knock_id, m, 0, std::move(first));
  return ep;
}

void ucx_worker::close(std::unique_ptr<ucx_endpoint> ep) {
  if (!ep || ep->ep_ == nullptr) return;
  if (ep->status_ == UCS_OK) ep->status_ = UCS_ERR_CANCELED;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(ep->ep_, &params);
  if (UCS_PTR_IS_PTR(request)) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      if (progress() == 0) ::poll(nullptr, 0, 1);
    }
    ucp_request_free(request);
  }
  ep->ep_ = nullptr;
  for (auto& w : std::exchange(ep->waiting_, {}))
    w.sending->done(UCS_ERR_CANCELED);
}

void ucx_worker::send(ucx_endpoint& ep, unsigned id, const ucx_message& m, unsigned flags,
                      std::unique_ptr<ucx_sending> sending) {
  if (ep.connected_ || ep.status_ != UCS_OK)
    transmit(ep, id, m, flags, std::move(sending));
  else
    ep.waiting_.push_back({id, m, flags, std::move(sending)});
}

void ucx_worker::transmit(ucx_endpoint& ep, unsigned id, const ucx_message& m, unsigned flags,
                          std::unique_ptr<ucx_sending> sending) {
  if (ep.status_ != UCS_OK) return sending->done(ep.status_);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = flags;
  params.cb.send = ucx_callbacks::sent;
  params.user_data = sending.get();
  ucs_status_ptr_t request =
      ucp_am_send_nbx(ep.ep_, id, m.header, m.header_size, m.payload, m.payload_size, &params);
  if (UCS_PTR_IS_PTR(request)) {
    sending.release(); // ucx_callbacks::sent has it now
    return;
  }
  const ucs_status_t status = UCS_PTR_STATUS(request);
  if (status != UCS_OK && ep.status_ == UCS_OK) ep.status_ = status;
  sending->done(status);
}

} // namespace adafloor
