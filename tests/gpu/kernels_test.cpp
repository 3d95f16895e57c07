// All kernel sets give the same bits, rows do not depend on each other, and results are right.
#define BOOST_TEST_MODULE kernels
#include "gpu/digest.hpp"
#include "gpu/kernels.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

using namespace adafloor;

namespace {

std::mt19937 generator(7);

float_buffer noise(std::size_t n, float scale = 1) {
  float_buffer values(n);
  for (auto& v : values) // plain arithmetic: library distributions differ between platforms
    v = scale * (static_cast<float>(generator() % 20001) / 10000.0F - 1.0F);
  return values;
}

bool same_bits(const float_buffer& a, const float_buffer& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Packed weight and the plain one.
struct matrix {
  std::size_t k, n;
  float_buffer plain, packed;
  matrix(std::size_t k_, std::size_t n_) : k(k_), n(n_), plain(noise(k_ * n_)) {
    packed.resize(packed_shape_of(k, n).floats());
    pack_weight(plain.data(), n, k, packed.data());
  }
};

float_buffer multiply(const kernel_set& set, const matrix& m, const float_buffer& x,
                      std::size_t rows) {
  auto shape = packed_shape_of(m.k, m.n);
  float_buffer y(rows * shape.columns(), -1);
  set.gemm(x.data(), round_up_lanes(m.k), rows, m.packed.data(), shape, y.data(), shape.columns());
  return y;
}

/// The same with weights cut to bfloat16, as such and widened again.
void check_half(const kernel_set& set, const matrix& m, const float_buffer& x, std::size_t rows) {
  const auto shape = packed_shape_of(m.k, m.n);
  std::vector<std::uint16_t> plain(m.plain.size()), packed(shape.floats());
  matrix wide = m;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &m.plain[i], 4);
    plain[i] = static_cast<std::uint16_t>(bits >> 16);
    bits &= 0xFFFF0000U;
    std::memcpy(&wide.plain[i], &bits, 4);
  }
  pack_weight(plain.data(), m.n, m.k, packed.data());
  pack_weight(wide.plain.data(), m.n, m.k, wide.packed.data());
  float_buffer y(rows * shape.columns(), -1);
  set.gemm_half(x.data(), round_up_lanes(m.k), rows, packed.data(), shape, y.data(),
                shape.columns());
  const auto expected = multiply(set, wide, x, rows);
  BOOST_TEST(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
}

/// Attention of `heads` heads over `positions` positions with pages of noise.
float_buffer attend(const kernel_set& set, std::size_t heads, std::size_t positions,
                    std::size_t head_dim, const std::vector<float_buffer>& pages,
                    const float_buffer& query) {
  std::vector<const float*> blocks;
  for (const auto& page : pages)
    blocks.push_back(page.data());
  auto padded = round_up_lanes(head_dim);
  float_buffer scores(heads * round_up_lanes(positions)), out(heads * padded);
  set.attention({query.data(), head_dim, heads, blocks.data(), positions, head_dim, scores.data(),
                 out.data(), padded});
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(digest_is_xxh64) {
  BOOST_TEST(digest64("", 0) == 0xEF46DB3751D8E999ULL);
  BOOST_TEST(digest64("abc", 3) == 0x44BC2CF5AD770999ULL);
  std::string text(101, 'x');
  auto whole = digest64(text.data(), text.size());
  text[77] ^= 1;
  BOOST_TEST(digest64(text.data(), text.size()) != whole);
}

/// The value is of a word by word computation elsewhere.
BOOST_AUTO_TEST_CASE(wide_digest_is_the_same_everywhere_and_sees_every_word) {
  std::vector<unsigned char> bytes(1001);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(i * 7);
  const auto* at = bytes.data();
  const auto whole = wide_digest64(at, 1000);
  BOOST_TEST(whole == 0x57DEDE870B9FD32FULL);
  std::memmove(bytes.data() + 1, at, 1000); // at no aligned place
  BOOST_TEST(wide_digest64(at + 1, 1000) == whole);
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    bytes[i] ^= 0x80;
    BOOST_TEST(wide_digest64(at + 1, 1000) != whole);
    bytes[i] ^= 0x80;
  }
  bytes[1] ^= 1; // or the two stripes would be alike
  const auto in_order = wide_digest64(at + 1, 1000);
  std::swap_ranges(bytes.begin() + 1, bytes.begin() + 257, bytes.begin() + 257); // two stripes
  BOOST_TEST(wide_digest64(at + 1, 1000) != in_order);
  BOOST_TEST(wide_digest64(at, 999) != wide_digest64(at, 1000));
}

BOOST_AUTO_TEST_CASE(gemm_is_right_and_row_independent) {
  for (auto [k, n] : {std::pair<std::size_t, std::size_t>{64, 128},
                      {48, 64},
                      {96, 97},
                      {17, 5},
                      {1, 1},
                      {128, 272}}) {
    matrix m(k, n);
    auto stride = round_up_lanes(k);
    auto x = noise(23 * stride);
    auto reference = multiply(portable_kernels, m, x, 23);
    auto columns = packed_shape_of(k, n).columns();
    for (std::size_t r = 0; r < 23; ++r)
      for (std::size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::size_t i = 0; c < n && i < k; ++i)
          sum += double(x[r * stride + i]) * double(m.plain[c * k + i]);
        BOOST_REQUIRE_SMALL(double(reference[r * columns + c]) - sum, 1e-4);
      }
    for (auto set : all_kernels())
      for (std::size_t rows = 1; rows <= 23; ++rows) {
        auto y = multiply(*set, m, x, rows);
        BOOST_REQUIRE_MESSAGE(std::memcmp(y.data(), reference.data(), y.size() * sizeof(float))
                                  == 0,
                              set->name << " with " << rows << " rows of " << k << " by " << n);
        check_half(*set, m, x, rows);
      }
  }
}

BOOST_AUTO_TEST_CASE(attention_is_right_in_every_set) {
  for (std::size_t head_dim : {8U, 16U, 32U, 40U, 128U})
    for (std::size_t positions : {1U, 15U, 16U, 17U, 48U, 53U, 200U}) {
      std::size_t heads = 1 + positions % 4, padded = round_up_lanes(head_dim);
      std::vector<float_buffer> pages;
      for (std::size_t p = 0; p < (positions + 15) / 16; ++p)
        pages.push_back(noise(16 * (head_dim + padded), 2));
      auto query = noise(heads * head_dim);
      auto reference = attend(portable_kernels, heads, positions, head_dim, pages, query);
      for (std::size_t h = 0; h < heads; ++h) {
        std::vector<double> weights(positions), mixed(head_dim, 0);
        double total = 0;
        for (std::size_t t = 0; t < positions; ++t) {
          double score = 0;
          for (std::size_t i = 0; i < head_dim; ++i)
            score += double(query[h * head_dim + i]) * double(pages[t / 16][i * 16 + t % 16]);
          total += weights[t] = std::exp(score);
        }
        for (std::size_t i = 0; i < head_dim; ++i) {
          for (std::size_t t = 0; t < positions; ++t)
            mixed[i] +=
                weights[t] / total * double(pages[t / 16][head_dim * 16 + t % 16 * padded + i]);
          BOOST_REQUIRE_SMALL(mixed[i] - double(reference[h * padded + i]), 1e-4);
        }
      }
      // Slots behind the last position hold anything, even no numbers.
      auto dirty = pages;
      for (std::size_t t = positions; t < dirty.size() * 16; ++t)
        for (std::size_t i = 0; i < head_dim; ++i)
          dirty.back()[i * 16 + t % 16] = dirty.back()[head_dim * 16 + t % 16 * padded + i] =
              std::nanf("");
      for (auto set : all_kernels()) {
        BOOST_REQUIRE(same_bits(attend(*set, heads, positions, head_dim, pages, query), reference));
        BOOST_REQUIRE(same_bits(attend(*set, heads, positions, head_dim, dirty, query), reference));
      }
    }
}

BOOST_AUTO_TEST_CASE(row_functions_agree) {
  const std::size_t n = 70, padded = round_up_lanes(n);
  auto x = noise(padded, 30), weight = noise(padded), up = noise(padded);
  for (std::size_t i = n; i < padded; ++i)
    x[i] = weight[i] = 0;
  float_buffer norm(padded), silu(padded), exps(padded);
  portable_kernels.rms_norm(x.data(), weight.data(), n, 1e-6F, norm.data());
  portable_kernels.silu_mul(x.data(), up.data(), padded, silu.data());
  auto top = portable_kernels.max_row(x.data(), n);
  auto sum = portable_kernels.exp_row(x.data(), n, top, exps.data());
  double square = 0;
  for (std::size_t i = 0; i < n; ++i)
    square += double(x[i]) * double(x[i]);
  for (std::size_t i = 0; i < n; ++i) {
    double v = double(x[i]);
    BOOST_TEST(std::fabs(double(norm[i]) - double(weight[i]) * v / std::sqrt(square / n + 1e-6))
               < 1e-5);
    BOOST_TEST(std::fabs(double(silu[i]) - v / (1 + std::exp(-v)) * double(up[i])) < 1e-5);
    BOOST_TEST(std::fabs(double(exps[i]) - std::exp(v - double(top))) < 2e-7);
  }
  for (auto set : all_kernels()) {
    float_buffer a(padded), b(padded), c(padded);
    set->rms_norm(x.data(), weight.data(), n, 1e-6F, a.data());
    set->silu_mul(x.data(), up.data(), padded, b.data());
    auto set_sum = set->exp_row(x.data(), n, set->max_row(x.data(), n), c.data());
    BOOST_TEST((same_bits(a, norm) && same_bits(b, silu) && same_bits(c, exps)), set->name);
    BOOST_TEST(set_sum == sum, set->name);
  }
}

BOOST_AUTO_TEST_CASE(rotation_keeps_length_and_agrees) {
  for (std::size_t n : {2U, 8U, 32U, 34U, 128U}) {
    auto x = noise(round_up_lanes(n)), weight = float_buffer(round_up_lanes(n), 1.0F);
    float_buffer cosine(n / 2), sine(n / 2), reference = x;
    for (std::size_t i = 0; i < n / 2; ++i) {
      cosine[i] = std::cos(static_cast<float>(i));
      sine[i] = std::sin(static_cast<float>(i));
    }
    portable_kernels.norm_rotate(reference.data(), weight.data(), n, 1e-6F, cosine.data(),
                                 sine.data(), 1);
    double square = 0;
    for (std::size_t i = 0; i < n; ++i)
      square += double(reference[i]) * double(reference[i]);
    BOOST_TEST(square == static_cast<double>(n), boost::test_tools::tolerance(1e-3));
    for (auto set : all_kernels()) {
      auto y = x;
      set->norm_rotate(y.data(), weight.data(), n, 1e-6F, cosine.data(), sine.data(), 1);
      BOOST_TEST(same_bits(y, reference), set->name << " " << n);
    }
  }
}

namespace {

/// Attention of one head group over `positions` of pages whose later slots hold garbage.
template <class K>
float_buffer attend(const kernel_set& set, const std::vector<std::vector<K>>& pages,
                    const float_buffer& query, std::size_t heads, std::size_t positions,
                    std::size_t head_dim) {
  std::vector<const K*> blocks;
  for (const auto& page : pages)
    blocks.push_back(page.data());
  const auto padded = round_up_lanes(head_dim);
  float_buffer scores(heads * pages.size() * 16), out(heads * padded);
  const attention_task<K> task{query.data(), head_dim,      heads,      blocks.data(), positions,
                               head_dim,     scores.data(), out.data(), padded};
  if constexpr (std::is_same_v<K, float>)
    set.attention(task);
  else
    set.attention_half(task);
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(attention_agrees_and_widens_bfloat16_pages) {
  for (const std::size_t head_dim : {8U, 32U, 40U, 128U})
    for (const std::size_t positions : {1U, 16U, 31U, 130U}) {
      constexpr std::size_t heads = 3;
      const auto padded = round_up_lanes(head_dim);
      std::vector<std::vector<float>> wide;
      std::vector<std::vector<std::uint16_t>> half;
      for (std::size_t p = 0; p * 16 < positions; ++p) {
        const auto values = noise(16 * (head_dim + padded));
        auto& w = wide.emplace_back();
        auto& h = half.emplace_back();
        for (const float value : values) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, &value, 4);
          h.push_back(static_cast<std::uint16_t>(bits >> 16));
          bits &= 0xFFFF0000U;
          w.emplace_back();
          std::memcpy(&w.back(), &bits, 4);
        }
      }
      const auto query = noise(heads * head_dim);
      const auto reference = attend(portable_kernels, wide, query, heads, positions, head_dim);
      for (auto set : all_kernels()) {
        const auto label = std::string(set->name) + ", " + std::to_string(positions);
        BOOST_TEST(same_bits(attend(*set, wide, query, heads, positions, head_dim), reference),
                   label);
        BOOST_TEST(same_bits(attend(*set, half, query, heads, positions, head_dim), reference),
                   label << " of bfloat16");
      }
      double sum = 0, mixed = 0; // the first output of the last head, in double
      for (std::size_t i = 0; i < positions; ++i) {
        double score = 0;
        for (std::size_t d = 0; d < head_dim; ++d)
          score += double(query[2 * head_dim + d]) * double(wide[i / 16][d * 16 + i % 16]);
        sum += std::exp(score);
        mixed += std::exp(score) * double(wide[i / 16][head_dim * 16 + i % 16 * padded]);
      }
      BOOST_TEST(std::fabs(double(reference[2 * padded]) - mixed / sum) < 1e-5);
    }
}
