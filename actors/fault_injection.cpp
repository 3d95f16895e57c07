#include "actors/fault_injection.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <sstream>

namespace adafloor {
namespace {

/// A process that sends nothing else overtakes nothing: then it is a delay.
constexpr std::chrono::milliseconds reorder_max{1000};

std::vector<std::string> message_names() {
  std::vector<std::string> names;
#define X(n, T) names.emplace_back(#T);
  ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
  return names;
}

bool can_be_refused(const std::string& name) {
  bool found = false;
#define X(n, T) found |= name == #T && refusal_of(T{}, {}).has_value();
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
std::string names_up_to(E last) {
  std::string all;
  for (int i = 1; i <= static_cast<int>(last); ++i)
    all += (i > 1 ? ", " : "") + std::string(name_of(static_cast<E>(i)));
  return all;
}

/// Takes messages, not processes, out of their order or their number.
bool is_about_delivery(fault_kind k) {
  return k == fault_kind::drop || k == fault_kind::duplicate || k == fault_kind::reorder
         || k == fault_kind::corrupt;
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
    const auto act = named_member<fault_kind>(value);
    if (!act || *act > last_kind_of_rules)
      return bad_input("must be one of " + names_up_to(last_kind_of_rules));
    rule->act = *act;
    return {};
  }
  if (key == "role") {
    rule->role = named_member<role_kind>(value);
    if (!rule->role) return bad_input("must be one of " + names_up_to(enum_max(role_kind{})));
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
  if ((rule.act == fault_kind::delay || rule.act == fault_kind::slow) && rule.ms == 0)
    return bad_input("--fault \"" + text + "\": " + name_of(rule.act) + " needs ms=N, above 0");
  return rule;
}

std::vector<fault_point> fault_points() {
  std::vector<fault_point> points;
  for (const auto& name : message_names()) {
    std::vector<fault_kind> actions;
    for (int i = 1; i <= static_cast<int>(last_kind_of_rules); ++i) {
      const auto kind = static_cast<fault_kind>(i);
      if (is_local(name) && is_about_delivery(kind)) continue;
      if (kind != fault_kind::refuse || can_be_refused(name)) actions.push_back(kind);
    }
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
    const bool here = rule.at == name && (!rule.rank || *rule.rank == self_)
                      && (!rule.from || *rule.from == e.from.rank)
                      && (!rule.role || *rule.role == e.to.role)
                      && (may_be_lost(e) || !is_about_delivery(rule.act));
    if (!here) continue;
    const auto number = seen++;
    const bool struck = number >= rule.skip && (rule.count == 0 || number < rule.skip + rule.count);
    if (struck && hit == nullptr) hit = &rule;
  }
  return hit;
}

void fault_injector::pass(const envelope& e) {
  const auto overtaken = take_overtaken(e.from.rank);
  strike_or_deliver(e);
  for (const auto& earlier : overtaken)
    deliver_(earlier);
}

std::vector<envelope> fault_injector::take_overtaken(rank_id by) {
  std::vector<envelope> taken;
  std::lock_guard lock(mutex_);
  for (auto d = delayed_.begin(); d != delayed_.end();) {
    if (d->overtaken && d->what.from.rank == by) {
      taken.push_back(std::move(d->what));
      d = delayed_.erase(d);
    } else {
      ++d;
    }
  }
  return taken;
}

void fault_injector::hold(const envelope& e, std::chrono::milliseconds time, bool overtaken) {
  std::lock_guard lock(mutex_);
  delayed_.push_back({clock::now() + time, e, overtaken});
  wake_.notify_one();
}

void fault_injector::strike_or_deliver(const envelope& e) {
  const auto* rule = strike(e);
  if (rule == nullptr) return deliver_(e);
  std::fprintf(stderr, "fault injected: %s %s from %s of rank %u at %s of rank %u\n",
               name_of(rule->act), rule->at.c_str(), name_of(e.from.role), e.from.rank.value,
               name_of(e.to.role), self_.value);
  const std::chrono::milliseconds time(rule->ms);
  switch (rule->act) {
  case fault_kind::drop:
    return;
  case fault_kind::duplicate:
    deliver_(e);
    return deliver_(e);
  case fault_kind::delay:
    return hold(e, time, false);
  case fault_kind::reorder:
    return hold(e, reorder_max, true);
  case fault_kind::corrupt: {
    const bool noticed = damage_is_noticed(e, clock::now().time_since_epoch().count());
    assert(noticed);
    return;
  }
  case fault_kind::refuse: {
    envelope answer;
    answer.from = e.to;
    answer.to = e.from;
    answer.stamp = e.stamp;
    answer.body = *refusal_of(e.body, "refused on purpose by a fault rule");
    return post_(answer);
  }
  case fault_kind::slow:
    std::this_thread::sleep_for(time);
    return deliver_(e);
  case fault_kind::freeze:
    freeze(rule->ms);
    return deliver_(e);
  case fault_kind::crash:
    kill(getpid(), SIGKILL);
    return;
  default:
    assert(!"a kind that no rule can have");
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
