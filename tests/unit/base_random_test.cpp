#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/stochastic_rounding.h"

namespace trireme {
namespace {

TEST(Philox, KnownAnswers) {  // published with the algorithm
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<float> normals(const RandomStream& stream, int64_t begin, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  stream.fill_normal(begin, count, 0.0f, 1.0f, values.data());
  return values;
}

TEST(RandomStream, APartEqualsThePartOfTheWhole) {
  const RandomStream stream(7, "weights");
  const std::vector<float> all = normals(stream, 0, 1000);
  for (const int64_t begin : {0, 1, 3, 5, 64, 333, 999}) {
    for (const int64_t count : {0, 1, 2, 7, 65, 130}) {
      if (begin + count > 1000) continue;
      const std::vector<float> expected(all.begin() + begin, all.begin() + begin + count);
      EXPECT_EQ(normals(stream, begin, count), expected) << begin << " " << count;
    }
  }
  const int64_t far = int64_t{1} << 40;
  EXPECT_EQ(normals(stream, far + 5, 1)[0], normals(stream, far, 10)[5]);
}

TEST(RandomStream, SeedNameAndIdsAllMatter) {
  std::set<uint32_t> seen;
  seen.insert(RandomStream(1, "a").bits(0));
  seen.insert(RandomStream(2, "a").bits(0));
  seen.insert(RandomStream(1, "b").bits(0));
  seen.insert(RandomStream(1, "a", {0}).bits(0));
  seen.insert(RandomStream(1, "a", {1}).bits(0));
  seen.insert(RandomStream(1, "a", {0, 0}).bits(0));
  seen.insert(RandomStream(1, "a").bits(1));
  seen.insert(RandomStream(1, "a").bits(int64_t{1} << 34));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(RandomStream, NormalsHaveNormalMoments) {
  constexpr int64_t kCount = 1 << 20;
  const std::vector<float> values = normals(RandomStream(3, "moments"), 0, kCount);
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  int64_t beyond2 = 0, beyond4 = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1];
    beyond2 += std::abs(x) > 2;
    beyond4 += std::abs(x) > 4;
  }
  const double n = kCount;  // bounds: five standard errors
  EXPECT_NEAR(sum / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(cubes / n, 0.0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(fourths / n, 3.0, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(static_cast<double>(beyond2) / n, 0.0455003, 5 * std::sqrt(0.0455 / n));
  EXPECT_NEAR(static_cast<double>(beyond4) / n, 6.334e-5, 5 * std::sqrt(6.334e-5 / n));
}

TEST(RandomStream, NormalsAreBoxMullerOfTheBits) {
  const RandomStream stream(11, "accuracy");
  const std::vector<float> values = normals(stream, 0, 4000);
  for (int64_t i = 0; i < 4000; i += 2) {
    const double u = (static_cast<double>(stream.bits(i)) + 0.5) * 0x1p-32;
    const double angle = 2 * M_PI * static_cast<double>(stream.bits(i + 1)) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    EXPECT_NEAR(values[i], radius * std::cos(angle), 2e-6 * (1 + radius));
    EXPECT_NEAR(values[i + 1], radius * std::sin(angle), 2e-6 * (1 + radius));
  }
}

TEST(RandomStream, BitsAreTheSameOnEveryMachine) {
  std::vector<float> values(10000);
  RandomStream(42, "model.embed_tokens.weight")
      .fill_normal(12345, 10000, 0.0f, 0.02f, values.data());
  EXPECT_EQ(to_hex(hash128(values.data(), 40000)), "dc521fd35a411730c6f667be9033df90");
}

/// Chi-square of 16-bit fields over neighbouring elements and over the updates of one element:
/// within five standard deviations of 65535.
TEST(StochasticRounding, FieldsAreUniform) {
  const auto deviation = [](const auto& field) {
    constexpr int kEach = 64;
    std::vector<int> counts(65536);
    for (uint32_t i = 0; i < 65536 * kEach; ++i) ++counts[field(i)];
    double chi = 0;
    for (const int count : counts) chi += (count - kEach) * (count - kEach) / double{kEach};
    return std::abs(chi - 65535) / std::sqrt(2 * 65535.0);
  };
  for (const auto bits : {&master_bits, &exp_avg_bits, &exp_avg_sq_bits}) {
    EXPECT_LT(deviation([&](uint32_t i) { return bits(rounding_word(rounding_key(12, 7), i)); }),
              5);
    EXPECT_LT(deviation([&](uint32_t i) { return bits(rounding_word(rounding_key(12, i), 7)); }),
              5);
  }
  // Low bytes of two elements, updates or planes together, where weak hashes show.
  const auto pair = [](uint32_t a, uint32_t b) { return (a & 0xff) << 8 | (b & 0xff); };
  const auto word = [](uint64_t update, uint32_t element) {
    return rounding_word(rounding_key(12, update), element);
  };
  EXPECT_LT(deviation([&](uint32_t i) { return pair(word(7, i), word(7, i + 1)); }), 5);
  EXPECT_LT(deviation([&](uint32_t i) { return pair(word(7, i), word(8, i)); }), 5);
  EXPECT_LT(deviation([&](uint32_t i) { return pair(word(i, 3), word(i, 4)); }), 5);
  EXPECT_LT(deviation([&](uint32_t i) {
              return pair(master_bits(word(7, i)), exp_avg_sq_bits(word(7, i)));
            }),
            5);
}

TEST(StochasticRounding, GoesToANeighbour) {
  const float third = f32_from_bf16(0x3eaa) + 0x1p-11f;  // a quarter of the way to 0x3eab
  EXPECT_EQ(bf16_stochastic(third, 0xbfff), 0x3eaa);
  EXPECT_EQ(bf16_stochastic(third, 0xc000), 0x3eab);
  EXPECT_EQ(bf16_stochastic(-third, 0xc000), 0xbeab);
  EXPECT_EQ(bf16_stochastic(1.0f, 0xffff), 0x3f80);
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(bf16_stochastic(kLargest, 0xffff), 0x7f7f);
  EXPECT_EQ(bf16_stochastic(-kLargest, 0xffff), 0xff7f);
  EXPECT_EQ(bf16_stochastic(std::numeric_limits<float>::infinity(), 0xffff), 0x7f80);
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_stochastic(std::bit_cast<float>(nan), 0xffff))));
  }
}

TEST(RandomStream, UniformIsBelowOne) {
  const RandomStream stream(5, "u");
  double sum = 0;
  for (int64_t i = 0; i < 10000; ++i) {
    const float value = stream.uniform(i);
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);
}

TEST(Hash, HexRoundTripAndPieces) {
  const std::string text(100000, 'x');
  const Hash128 whole = hash128(text);
  Hasher pieces;
  for (size_t at = 0, size = 1; at < text.size(); at += size, size = size * 3 + 1) {
    pieces.update(std::string_view(text).substr(at, size));
  }
  EXPECT_EQ(pieces.digest(), whole);
  EXPECT_EQ(parse_hash128(to_hex(whole)), whole);
  EXPECT_EQ(to_hex(hash128("")), "99aa06d3014798d86001c324468d497f");  // published by xxHash
  EXPECT_EQ(parse_hash128("99AA06d3014798d86001c324468d497f"), std::nullopt);
  EXPECT_EQ(parse_hash128("99aa"), std::nullopt);
}

}  // namespace
}  // namespace trireme
