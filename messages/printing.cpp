#include "messages/printing.hpp"

namespace adafloor {

std::ostream& operator<<(std::ostream& os, const any_message& m) {
  std::visit([&](const auto& x) { os << x; }, m);
  return os;
}

std::ostream& operator<<(std::ostream& os, const envelope& e) {
  return os << e.from.rank << '.' << name_of(e.from.role) << " -> " << e.to.rank << '.'
            << name_of(e.to.role) << " [term " << e.stamp.term << " epoch " << e.stamp.epoch
            << " weights " << e.stamp.weights << "] " << e.body;
}

std::string_view name_of(const any_message& m) {
  return std::visit([](const auto& x) { return std::decay_t<decltype(x)>::type_name; }, m);
}

const char* name_of(role_kind x) {
  switch (x) {
  case role_kind::rank:
    return "rank";
  case role_kind::planner:
    return "planner";
  case role_kind::broker:
    return "broker";
  case role_kind::membership:
    return "membership";
  case role_kind::sidecar:
    return "sidecar";
  case role_kind::engine:
    return "engine";
  case role_kind::recorder:
    return "recorder";
  case role_kind::trainer:
    return "trainer";
  case role_kind::worker:
    return "worker";
  }
  return "?";
}

const char* name_of(finish_reason x) {
  switch (x) {
  case finish_reason::eos:
    return "eos";
  case finish_reason::length:
    return "length";
  case finish_reason::guard:
    return "guard";
  case finish_reason::aborted:
    return "aborted";
  }
  return "?";
}

const char* name_of(residency_kind x) {
  return x == residency_kind::planned ? "planned" : "natural";
}

const char* name_of(work_kind x) {
  switch (x) {
  case work_kind::generate:
    return "generate";
  case work_kind::score:
    return "score";
  case work_kind::exec:
    return "exec";
  case work_kind::callback:
    return "callback";
  }
  return "unknown";
}

const char* name_of(migrate_kind x) {
  switch (x) {
  case migrate_kind::off:
    return "off";
  case migrate_kind::stragglers:
    return "stragglers";
  case migrate_kind::consolidate:
    return "consolidate";
  }
  return "?";
}

const char* name_of(rank_state x) {
  switch (x) {
  case rank_state::idle:
    return "idle";
  case rank_state::busy:
    return "busy";
  case rank_state::dummy:
    return "dummy";
  case rank_state::leased:
    return "leased";
  case rank_state::transition:
    return "transition";
  }
  return "?";
}

const char* name_of(transition_kind x) {
  switch (x) {
  case transition_kind::contract:
    return "contract";
  case transition_kind::restore:
    return "restore";
  case transition_kind::recover:
    return "recover";
  }
  return "?";
}

const char* name_of(move_outcome x) {
  switch (x) {
  case move_outcome::moved:
    return "moved";
  case move_outcome::refused:
    return "refused";
  case move_outcome::finished:
    return "finished";
  case move_outcome::given_up:
    return "given up";
  }
  return "?";
}

const char* name_of(refusal x) {
  switch (x) {
  case refusal::no_memory:
    return "no_memory";
  case refusal::lease_active:
    return "lease_active";
  case refusal::owns_requests:
    return "owns_requests";
  case refusal::bad_map:
    return "bad_map";
  case refusal::source_failed:
    return "source_failed";
  case refusal::busy:
    return "busy";
  }
  return "?";
}

} // namespace adafloor
