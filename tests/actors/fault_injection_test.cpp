// Rules for faults on purpose, and what they do to envelopes.
#define BOOST_TEST_MODULE fault_injection
#include "actors/fault_injection.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <future>

using namespace adafloor;

namespace {

envelope settled_at(std::uint32_t from, std::uint32_t to, std::uint64_t epoch) {
  envelope e;
  e.from = {rank_id(from), role_kind::rank};
  e.to = {rank_id(to), role_kind::planner};
  e.body = settled{epoch_id(epoch), false};
  return e;
}

/// A process of rank 0 with these rules; what reaches its roles, and what it sends.
struct process {
  std::mutex mutex;
  std::vector<std::uint64_t> epochs; ///< of the `settled` delivered
  std::vector<envelope> posted;
  std::unique_ptr<fault_injector> faults;

  explicit process(const std::vector<std::string>& texts) {
    std::vector<fault_rule> rules;
    for (const auto& text : texts)
      rules.push_back(parse_fault(text).value());
    faults = std::make_unique<fault_injector>(
        rank_id(0), rules,
        [this](const envelope& e) {
          std::lock_guard lock(mutex);
          const auto* s = std::get_if<settled>(&e.body);
          epochs.push_back(s != nullptr ? s->epoch.value : 0);
        },
        [this](const envelope& e) { posted.push_back(e); });
  }
  void pass(std::vector<std::uint64_t> which, std::uint32_t from = 1) {
    for (const auto epoch : which)
      faults->pass(settled_at(from, 0, epoch));
  }
  std::vector<std::uint64_t> got() {
    std::lock_guard lock(mutex);
    return epochs;
  }
};

const std::vector<std::uint64_t> none;

} // namespace

BOOST_AUTO_TEST_CASE(a_rule_is_read_whole) {
  const auto rule =
      parse_fault("at=settled do=delay rank=2 from=3 role=planner skip=4 count=5 ms=6");
  BOOST_REQUIRE(rule.has_value());
  BOOST_TEST(rule->at == "settled");
  BOOST_TEST((rule->act == fault_kind::delay));
  BOOST_TEST((rule->rank == rank_id(2) && rule->from == rank_id(3)));
  BOOST_TEST((rule->role == role_kind::planner));
  BOOST_TEST((rule->skip == 4 && rule->count == 5 && rule->ms == 6));
}

BOOST_AUTO_TEST_CASE(wrong_rules_are_named_with_what_is_allowed) {
  for (const auto& [text, said] :
       {std::pair{"at=setled do=drop", "at=setled: no such message"},
        {"at=settled do=explode",
         "must be one of drop, duplicate, delay, reorder, corrupt, refuse, slow, freeze, crash"},
        {"at=settled", "must say at=MESSAGE and do=ACTION"},
        {"do=drop", "must say at=MESSAGE and do=ACTION"},
        {"at=settled do=drop rank=x", "rank=x: must be a whole number"},
        {"at=settled do=drop often=2", "often=2: unknown"},
        {"at=settled drop", "'drop' must be KEY=VALUE"},
        {"at=settled do=refuse", "refuse is not possible there"},
        {"at=engine_commit do=drop", "drop is not possible there"},
        {"at=settled do=delay", "delay needs ms=N"},
        {"at=settled do=slow", "slow needs ms=N"},
        {"at=settled do=disk_full", "must be one of drop"},
        {"at=engine_commit do=corrupt", "corrupt is not possible there"},
        {"at=run_unit do=reorder", "reorder is not possible there"},
        {"at=settled do=drop role=boss", "role=boss: must be one of rank, planner"}}) {
    const auto rule = parse_fault(text);
    BOOST_REQUIRE(!rule.has_value());
    BOOST_TEST((rule.error().code == error_code::bad_input));
    BOOST_TEST(rule.error().text.find(said) != std::string::npos, rule.error().text);
  }
}

BOOST_AUTO_TEST_CASE(every_listed_action_is_accepted) {
  for (const auto& point : fault_points())
    for (const auto act : point.actions)
      BOOST_TEST(parse_fault("at=" + point.name + " do=" + name_of(act) + " ms=1").has_value(),
                 point.name);
}

BOOST_AUTO_TEST_CASE(drop_hits_those_that_skip_and_count_say) {
  process p({"at=settled do=drop skip=1 count=2"});
  p.pass({1, 2, 3, 4, 5});
  BOOST_TEST(p.got() == (std::vector<std::uint64_t>{1, 4, 5}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(count_0_hits_all) {
  process p({"at=settled do=drop count=0"});
  p.pass({1, 2, 3});
  BOOST_TEST(p.got() == none, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ranks_roles_and_other_messages_are_told_apart) {
  process p({"at=settled do=drop from=2", "at=settled do=drop rank=1",
             "at=settled do=drop role=broker", "at=prepared do=drop"});
  p.pass({1}, 1);
  p.pass({2}, 2);
  BOOST_TEST(p.got() == std::vector<std::uint64_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(duplicates_come_twice) {
  process p({"at=settled do=duplicate"});
  p.pass({1, 2});
  BOOST_TEST(p.got() == (std::vector<std::uint64_t>{1, 1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_delayed_comes_behind_what_came_meanwhile) {
  process p({"at=settled do=delay ms=1"});
  p.pass({1, 2});
  for (int i = 0; i < 2000 && p.got().size() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto got = p.got();
  BOOST_REQUIRE(got.size() == 2U);
  BOOST_TEST((got == std::vector<std::uint64_t>{2, 1} || got == std::vector<std::uint64_t>{1, 2}));
}

BOOST_AUTO_TEST_CASE(the_reordered_is_overtaken_by_the_next_of_its_process) {
  process p({"at=settled do=reorder skip=1"});
  p.pass({1, 2}, 1);
  p.pass({3}, 2); // of another process: overtakes nothing
  BOOST_TEST(p.got() == (std::vector<std::uint64_t>{1, 3}), boost::test_tools::per_element());
  p.pass({4}, 1);
  BOOST_TEST(p.got() == (std::vector<std::uint64_t>{1, 3, 4, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_reordered_comes_even_when_nothing_follows) {
  process p({"at=settled do=reorder"});
  p.pass({1});
  for (int i = 0; i < 2000 && p.got().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  BOOST_TEST(p.got() == std::vector<std::uint64_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_damaged_never_arrives) {
  process p({"at=settled do=corrupt count=2"});
  p.pass({1, 2, 3});
  BOOST_TEST(p.got() == std::vector<std::uint64_t>{3}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(any_damaged_bit_is_noticed) {
  for (std::uint64_t bit = 0; bit < 2000; ++bit)
    BOOST_TEST(damage_is_noticed(settled_at(1, 0, 7), bit), bit);
}

BOOST_AUTO_TEST_CASE(a_slow_process_keeps_order) {
  process p({"at=settled do=slow ms=1 skip=1 count=2"});
  p.pass({1, 2, 3, 4});
  BOOST_TEST(p.got() == (std::vector<std::uint64_t>{1, 2, 3, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_delayed_for_long_does_not_hold_up_the_end) {
  process p({"at=settled do=delay ms=100000"});
  p.pass({1});
  p.faults.reset();
  BOOST_TEST(p.got() == none, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_refusal_goes_back_to_the_role_that_asked) {
  process p({"at=engine_prepare do=refuse"});
  envelope e;
  e.from = {rank_id(0), role_kind::rank};
  e.to = {rank_id(0), role_kind::engine};
  e.body = engine_prepare{epoch_id(7), {}, {}};
  p.faults->pass(e);
  BOOST_TEST(p.got() == none, boost::test_tools::per_element());
  BOOST_REQUIRE(p.posted.size() == 1U);
  const auto* said = std::get_if<engine_refused>(&p.posted[0].body);
  BOOST_REQUIRE(said != nullptr);
  BOOST_TEST(said->epoch.value == 7U);
  BOOST_TEST((p.posted[0].to == e.from && p.posted[0].from == e.to));
}

BOOST_AUTO_TEST_CASE(messages_of_the_own_engine_are_never_lost_or_doubled) {
  process p({"at=settled do=drop", "at=settled do=duplicate", "at=settled do=reorder",
             "at=settled do=corrupt"});
  auto e = settled_at(0, 0, 3);
  e.from.role = role_kind::engine;
  p.faults->pass(e);
  BOOST_TEST(p.got() == std::vector<std::uint64_t>{3}, boost::test_tools::per_element());
}
