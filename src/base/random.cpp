#include "base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/hash.h"

namespace trireme {

namespace {

constexpr uint32_t low_half(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t high_half(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

inline PhiloxCounter philox_rounds(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high_half(product1) ^ counter[1] ^ key[0], low_half(product1),
               high_half(product0) ^ counter[3] ^ key[1], low_half(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// -2 ln(u) for u = (bits + 1/2) / 2^32.
inline float minus_two_log(uint32_t bits) {
  const float x = static_cast<float>(bits) + 0.5f;  // [0.5, 2^32]
  const auto pattern = std::bit_cast<uint32_t>(x);
  // x = mantissa * 2^exponent with mantissa in [1/sqrt 2, sqrt 2), so that u near 1 keeps its
  // relative precision.
  const uint32_t shifted = pattern - 0x3f3504f3u;
  const auto exponent = static_cast<int32_t>(shifted) >> 23;
  const float mantissa = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u);
  const float s = (mantissa - 1.0f) / (mantissa + 1.0f);
  const float t = s * s;
  // ln(mantissa) = 2 artanh(s); |s| < 0.172, so five terms reach float precision.
  const float series = 1.0f + t * (1.0f / 3 + t * (1.0f / 5 + t * (1.0f / 7 + t * (1.0f / 9))));
  const float log_mantissa = 2.0f * s * series;
  constexpr float kLn2 = 0.693147180559945f;
  return -2.0f * (static_cast<float>(exponent - 32) * kLn2 + log_mantissa);
}

struct SinCos {
  float sin;
  float cos;
};

/// Sine and cosine of 2 pi bits / 2^32.
inline SinCos sin_cos_turns(uint32_t bits) {
  // The nearest quarter turn, and an angle within 1/8 turn of it.
  const uint32_t quarter = (bits + 0x20000000u) >> 30;
  const auto rest = static_cast<int32_t>(bits - (quarter << 30));
  constexpr float kScale = 1.46291807926715968e-9f;  // 2 pi / 2^32
  const float a = static_cast<float>(rest) * kScale;
  const float t = a * a;
  const float sine =
      a * (1.0f + t * (-1.0f / 6 + t * (1.0f / 120 + t * (-1.0f / 5040 + t * (1.0f / 362880)))));
  const float cosine =
      1.0f + t * (-0.5f + t * (1.0f / 24 + t * (-1.0f / 720 + t * (1.0f / 40320))));
  const bool swapped = (quarter & 1u) != 0;
  const float s = swapped ? cosine : sine;
  const float c = swapped ? sine : cosine;
  const uint32_t sine_sign = (quarter & 2u) << 30;
  const uint32_t cosine_sign = ((quarter + 1u) & 2u) << 30;
  return {std::bit_cast<float>(std::bit_cast<uint32_t>(s) ^ sine_sign),
          std::bit_cast<float>(std::bit_cast<uint32_t>(c) ^ cosine_sign)};
}

}  // namespace

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  return philox_rounds(counter, key);
}

RandomStream::RandomStream(uint64_t seed, std::string_view name,
                           std::initializer_list<uint64_t> ids) {
  Hasher hasher;
  const uint64_t length = name.size();
  hasher.update(&seed, sizeof(seed));
  hasher.update(&length, sizeof(length));
  hasher.update(name);
  for (const uint64_t id : ids) hasher.update(&id, sizeof(id));
  const Hash128 hash = hasher.digest();
  key_ = {low_half(hash.low), high_half(hash.low)};
  high_ = {low_half(hash.high), high_half(hash.high)};
}

PhiloxCounter RandomStream::block(uint64_t index) const {
  return philox_rounds({low_half(index), high_half(index), high_[0], high_[1]}, key_);
}

uint32_t RandomStream::bits(int64_t element) const {
  check(element >= 0, "element {} of a random stream", element);
  return block(static_cast<uint64_t>(element) / 4)[static_cast<size_t>(element % 4)];
}

float RandomStream::uniform(int64_t element) const {
  return static_cast<float>(bits(element) >> 8) * 0x1p-24f;
}

void RandomStream::fill_normal(int64_t begin, int64_t count, float mean, float stddev,
                               float* out) const {
  check(begin >= 0 && count >= 0, "elements [{}, {} + {}) of a random stream", begin, begin, count);
  // Blocks go through small arrays so that the compiler can work on several at once.
  constexpr int64_t kBlocks = 16;
  const int64_t end = begin + count;
  for (int64_t first = begin / 4; first * 4 < end; first += kBlocks) {
    std::array<std::array<uint32_t, kBlocks>, 4> words;
    for (int64_t b = 0; b < kBlocks; ++b) {
      const PhiloxCounter random = block(static_cast<uint64_t>(first + b));
      for (size_t w = 0; w < 4; ++w) words[w][b] = random[w];
    }
    std::array<float, 4 * kBlocks> values;
    for (size_t w = 0; w < 4; w += 2) {  // words (0, 1) give values 0 and 1, (2, 3) the others
      for (int64_t b = 0; b < kBlocks; ++b) {
        const float radius = std::sqrt(std::max(minus_two_log(words[w][b]), 0.0f));
        const SinCos direction = sin_cos_turns(words[w + 1][b]);
        values[4 * b + w] = mean + stddev * (radius * direction.cos);
        values[4 * b + w + 1] = mean + stddev * (radius * direction.sin);
      }
    }
    const int64_t from = std::max(begin, first * 4);
    const int64_t to = std::min(end, (first + kBlocks) * 4);
    std::copy_n(values.data() + (from - first * 4), to - from, out + (from - begin));
  }
}

}  // namespace trireme
