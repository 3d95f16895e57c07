#define BOOST_TEST_MODULE kv_pool
#include "gpu/kv_pool.hpp"

#include <boost/test/unit_test.hpp>
#include <rapidcheck.h>

using namespace adafloor;

namespace {

const kv_layout small_layout{2, 1, 8};

/// A pool beside the plain bookkeeping that it must agree with.
struct model {
  kv_pool pool{small_layout, 8};
  std::vector<page_index> held; ///< one entry per reference
  std::uint32_t promised = 0, capacity = 8;

  std::uint32_t used() const { return static_cast<std::uint32_t>(references().size()); }
  std::map<page_index, std::uint32_t> references() const {
    std::map<page_index, std::uint32_t> count;
    for (auto page : held)
      ++count[page];
    return count;
  }
  void take(page_index page) {
    RC_ASSERT(references().count(page) == 0U); // never a page that somebody has
    held.push_back(page);
    pool.data(page)[0] = static_cast<float>(page); // memory is there
  }
  void agree() const {
    RC_ASSERT(pool.usage().capacity == capacity);
    RC_ASSERT(pool.usage().used == used());
    RC_ASSERT(pool.usage().promised == promised);
    RC_ASSERT(used() + promised <= capacity);
    for (auto [page, count] : references()) {
      RC_ASSERT(pool.references(page) == count);
      RC_ASSERT(pool.data(page)[0] == static_cast<float>(page));
    }
  }
};

void act(model& m, int action, std::uint32_t amount) {
  auto available = m.capacity - m.used() - m.promised;
  switch (action) {
  case 0: {
    bool ok = m.pool.promise(amount);
    RC_ASSERT(ok == (amount <= available));
    if (ok) m.promised += amount;
    return;
  }
  case 1:
    if (amount > m.promised) return;
    m.pool.withdraw(amount);
    m.promised -= amount;
    return;
  case 2:
    if (m.promised == 0) return;
    --m.promised;
    return m.take(m.pool.take_promised());
  case 3: {
    auto page = m.pool.take_available();
    RC_ASSERT(page.has_value() == (available > 0));
    if (page) m.take(*page);
    return;
  }
  case 4:
    if (m.held.empty()) return;
    m.pool.retain(m.held[amount % m.held.size()]);
    m.held.push_back(m.held[amount % m.held.size()]);
    return;
  case 5:
  case 6:
    if (m.held.empty()) return;
    m.pool.release(m.held[amount % m.held.size()]);
    m.held.erase(m.held.begin() + amount % m.held.size());
    return;
  default: {
    auto ok = m.pool.set_capacity(amount);
    RC_ASSERT(ok.has_value() == (amount > 0 && m.used() + m.promised <= amount));
    if (ok) m.capacity = amount;
  }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(bookkeeping_holds_under_any_sequence) {
  bool ok = rc::check("kv_pool agrees with plain counting", [] {
    model m;
    auto actions = *rc::gen::container<std::vector<std::pair<int, std::uint32_t>>>(
        rc::gen::pair(rc::gen::inRange(0, 8), rc::gen::inRange<std::uint32_t>(0, 14)));
    for (auto [action, amount] : actions) {
      act(m, action, amount);
      m.agree();
    }
  });
  BOOST_TEST(ok);
}

BOOST_AUTO_TEST_CASE(shrinking_is_refused_while_pages_are_needed) {
  kv_pool pool(small_layout, 4);
  BOOST_TEST(pool.promise(2));
  auto page = pool.take_promised();
  auto refused = pool.set_capacity(1);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == error_code::refused));
  BOOST_TEST(refused.error().text.find("1 pages are used and 1 promised") != std::string::npos);
  BOOST_TEST(pool.set_capacity(2).has_value());
  BOOST_TEST(!pool.promise(1));
  BOOST_TEST(pool.set_capacity(10).has_value());
  BOOST_TEST(pool.promise(8));
  pool.release(page);
  BOOST_TEST(pool.usage().used == 0U);
}

BOOST_AUTO_TEST_CASE(shared_pages_live_as_long_as_their_last_holder) {
  kv_pool pool(small_layout, 4);
  page_tokens tokens{};
  tokens[3] = 9;
  auto first = *pool.take_available(), second = *pool.take_available();
  pool.publish(std::nullopt, tokens, first);
  pool.publish(std::nullopt, tokens, second); // equal page: the first stays
  pool.publish(first, tokens, second);
  BOOST_TEST((pool.find_shared(std::nullopt, tokens) == first));
  BOOST_TEST((pool.find_shared(first, tokens) == second));
  BOOST_TEST(!pool.find_shared(second, tokens).has_value());
  pool.retain(first);
  pool.release(first);
  BOOST_TEST((pool.find_shared(std::nullopt, tokens) == first));
  pool.release(first);
  BOOST_TEST(!pool.find_shared(std::nullopt, tokens).has_value());
}
