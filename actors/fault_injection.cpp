#include "actors/fault_injection.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <sstream>

namespace adafloor {
namespace {

std::vector<std::string> message_names() {
  std::vector<std::string> names;
#define X(n, T) names.emplace_back(#T);
  ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
  return names;
}

/// Said to the role that asked, in the words of the protocol.
struct refusal_of {
  static inline const std::string why = "refused on purpose by a fault rule";
  std::optional<any_message> operator()(const prepare_transition& m) const {
    return refused{m.epoch, refusal::no_memory, why};
  }
  std::optional<any_message> operator()(const engine_prepare& m) const {
    return engine_refused{m.epoch, refusal::no_memory, why};
  }
  std::optional<any_message> operator()(const move_offer& m) const {
    return move_refused{m.key, why};
  }
  std::optional<any_message> operator()(const engine_receive_begin& m) const {
    return move_refused{m.key, why};
  }
  std::optional<any_message> operator()(const lease_grant& m) const {
    return lease_denied{m.lease, why};
  }
  std::optional<any_message> operator()(const update_weights& m) const {
    return weights_refused{m.version, why};
  }
  template <class M>
  std::optional<any_message> operator()(const M&) const {
    return std::nullopt;
  }
};

bool can_be_refused(const std::string& name) {
  bool found = false;
#define X(n, T) found |= name == #T && refusal_of{}(T{}).has_value();
  ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
  return found;
}

/// Within a process by their nature.
bool is_local(const std::string& name) {
  return name.rfind("engine_", 0) == 0 || name == "run_unit" || name == "stop_worker"
         || name == "worker_stopped";
}

bool may_be_lost(const envelope& e) {
  const auto reliable = [](role_kind r) {
    return r == role_kind::engine || r == role_kind::worker || r == role_kind::trainer
           || r == role_kind::recorder;
  };
  return !reliable(e.from.role) && !reliable(e.to.role);
}

template <class E>
std::optional<E> named(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(enum_max(E{})); ++i)
    if (name == name_of(static_cast<E>(i))) return static_cast<E>(i);
  return std::nullopt;
}

template <class E>
std::string names_of() {
  std::string all;
  for (int i = 1; i <= static_cast<int>(enum_max(E{})); ++i)
    all += (i > 1 ? ", " : "") + std::string(name_of(static_cast<E>(i)));
  return all;
}

/// Sets what `key` names. Errors: bad_input; says only what is allowed.
result<void> read_word(const std::string& key, const std::string& value, fault_rule* rule) {
  if (key == "at") {
    const auto known = message_names();
    if (std::find(known.begin(), known.end(), value) == known.end())
      return bad_input("no such message; `adafloor faults list` names them");
    rule->at = value;
    return {};
  }
  if (key == "do") {
    const auto act = named<fault_action>(value);
    if (!act) return bad_input("must be one of " + names_of<fault_action>());
    rule->act = *act;
    return {};
  }
  if (key == "role") {
    rule->role = named<role_kind>(value);
    if (!rule->role) return bad_input("must be one of " + names_of<role_kind>());
    return {};
  }
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || parsed.ec != std::errc{} || parsed.ptr != value.data() + value.size())
    return bad_input("must be a whole number");
  if (key == "rank")
    rule->rank = rank_id(number);
  else if (key == "from")
    rule->from = rank_id(number);
  else if (key == "skip")
    rule->skip = number;
  else if (key == "count")
    rule->count = number;
  else if (key == "ms")
    rule->ms = number;
  else
    return bad_input("unknown; there are at, do, rank, from, role, skip, count, ms");
  return {};
}

/// Stops this process; a helper process wakes it after `ms`, unless that is 0.
void freeze(std::uint32_t ms) {
  const auto frozen = getpid();
  if (ms > 0) {
    const auto child = fork(); // From here only calls that are safe in a threaded process.
    if (child == 0) {
      if (fork() == 0) {
        close_range(0, ~0U, 0);
        timespec left{ms / 1000, long{ms % 1000} * 1'000'000};
        while (nanosleep(&left, &left) != 0) {
        }
        kill(frozen, SIGCONT);
      }
      _exit(0);
    }
    if (child > 0) waitpid(child, nullptr, 0);
  }
  kill(frozen, SIGSTOP);
}

} // namespace

const char* name_of(fault_action a) {
  constexpr const char* names[] = {"", "drop", "duplicate", "delay", "refuse", "crash", "freeze"};
  return names[static_cast<std::size_t>(a)];
}

result<fault_rule> parse_fault(const std::string& text) {
  fault_rule rule;
  bool acts = false;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    const auto key = word.substr(0, equals);
    if (equals == std::string::npos)
      return bad_input("--fault \"" + text + "\": '" + word + "' must be KEY=VALUE");
    if (auto r = read_word(key, word.substr(equals + 1), &rule); !r)
      return bad_input("--fault \"" + text + "\": " + word + ": " + r.error().text);
    acts |= key == "do";
  }
  if (rule.at.empty() || !acts)
    return bad_input("--fault \"" + text + "\": must say at=MESSAGE and do=ACTION");
  for (const auto& point : fault_points())
    if (point.name == rule.at
        && std::find(point.actions.begin(), point.actions.end(), rule.act) == point.actions.end())
      return bad_input("--fault \"" + text + "\": " + name_of(rule.act)
                       + " is not possible there; `adafloor faults list` says what is");
  if (rule.act == fault_action::delay && rule.ms == 0)
    return bad_input("--fault \"" + text + "\": a delay needs ms=N, above 0");
  return rule;
}

std::vector<fault_point> fault_points() {
  std::vector<fault_point> points;
  for (const auto& name : message_names()) {
    std::vector<fault_action> actions;
    if (!is_local(name))
      actions.insert(actions.end(), {fault_action::drop, fault_action::duplicate});
    actions.push_back(fault_action::delay);
    if (can_be_refused(name)) actions.push_back(fault_action::refuse);
    actions.insert(actions.end(), {fault_action::crash, fault_action::freeze});
    points.push_back({name, std::move(actions)});
  }
  return points;
}

fault_injector::fault_injector(rank_id self, const std::vector<fault_rule>& rules, handler deliver,
                               handler post)
  : self_(self), deliver_(std::move(deliver)), post_(std::move(post)) {
  for (const auto& rule : rules)
    rules_.push_back({rule, 0});
  timer_ = std::thread([this] { wait_for_due(); });
}

fault_injector::~fault_injector() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  timer_.join();
}

/// The first rule that hits `e`; all that match have counted it.
const fault_rule* fault_injector::strike(const envelope& e) {
  const auto name = name_of(e.body);
  const fault_rule* hit = nullptr;
  std::lock_guard lock(mutex_);
  for (auto& [rule, seen] : rules_) {
    const bool here =
        rule.at == name && (!rule.rank || *rule.rank == self_)
        && (!rule.from || *rule.from == e.from.rank) && (!rule.role || *rule.role == e.to.role)
        && (may_be_lost(e)
            || (rule.act != fault_action::drop && rule.act != fault_action::duplicate));
    if (!here) continue;
    const auto number = seen++;
    const bool struck = number >= rule.skip && (rule.count == 0 || number < rule.skip + rule.count);
    if (struck && hit == nullptr) hit = &rule;
  }
  return hit;
}

void fault_injector::pass(const envelope& e) {
  const auto* rule = strike(e);
  if (rule == nullptr) return deliver_(e);
  std::fprintf(stderr, "fault injected: %s %s from %s of rank %u at %s of rank %u\n",
               name_of(rule->act), rule->at.c_str(), name_of(e.from.role), e.from.rank.value,
               name_of(e.to.role), self_.value);
  switch (rule->act) {
  case fault_action::drop:
    return;
  case fault_action::duplicate:
    deliver_(e);
    return deliver_(e);
  case fault_action::delay: {
    std::lock_guard lock(mutex_);
    delayed_.push_back({clock::now() + std::chrono::milliseconds(rule->ms), e});
    return wake_.notify_one();
  }
  case fault_action::refuse: {
    envelope answer;
    answer.from = e.to;
    answer.to = e.from;
    answer.stamp = e.stamp;
    answer.body = *std::visit(refusal_of{}, e.body);
    return post_(answer);
  }
  case fault_action::crash:
    kill(getpid(), SIGKILL);
    return;
  case fault_action::freeze:
    freeze(rule->ms);
    return deliver_(e);
  }
}

void fault_injector::wait_for_due() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const auto next =
        std::min_element(delayed_.begin(), delayed_.end(),
                         [](const delayed& a, const delayed& b) { return a.due < b.due; });
    if (next == delayed_.end()) {
      wake_.wait(lock);
    } else if (next->due > clock::now()) {
      const auto due = next->due;
      wake_.wait_until(lock, due);
    } else {
      const auto e = std::move(next->what);
      delayed_.erase(next);
      lock.unlock();
      deliver_(e);
      lock.lock();
    }
  }
}

} // namespace adafloor
