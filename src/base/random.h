// Counter-based random numbers: a value depends on (seed, stream name, ids, element) only, so that
// any part of a stream is made anywhere, in any order, with the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace trireme {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Philox4x32 with 10 rounds (Salmon et al., 2011): a keyed bijection of 128-bit counters.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

/// An endless array of independent values, addressed by element.
class RandomStream {
 public:
  /// `name` and `ids` (step, layer, sample, ...) tell streams of one seed apart.
  RandomStream(uint64_t seed, std::string_view name, std::initializer_list<uint64_t> ids = {});

  /// 32 uniform bits.
  uint32_t bits(int64_t element) const;
  /// Uniform in [0, 1), a multiple of 2^-24.
  float uniform(int64_t element) const;
  /// out[i] = mean + stddev * (standard normal of element begin + i), for i < count. Within
  /// +-6.7 standard deviations. Uses only correctly rounded operations, hence the same everywhere.
  void fill_normal(int64_t begin, int64_t count, float mean, float stddev, float* out) const;

 private:
  PhiloxCounter block(uint64_t index) const;

  PhiloxKey key_;
  std::array<uint32_t, 2> high_;  // upper half of the counter
};

}  // namespace trireme
