// Stochastic rounding of fp32 to bf16, and the random bits it takes.
//
// A number between two neighbouring bf16 becomes the upper one with the probability of its distance
// to the lower one: the low 16 bits are compared with 16 random bits, so the mean of the results is
// the number itself, exactly.
//
// The bits come from a counter-based hash, so that nothing random is saved and any part of a tensor
// is rounded anywhere with the same result. key = splitmix64's finalizer of (stream, update); the
// element's index, times an odd constant that sets neighbours far apart, plus half of the key, goes
// through the two multiply-xorshift rounds of "lowbias32" (C. Wellons, hash-prospector, 2018),
// whose second round adds the other half: without it the words of two updates would be permutations
// of each other. Of one key, the words of all 2^32 elements differ. Ten integer operations an
// element.
#pragma once

#include <bit>
#include <cstdint>

namespace trireme {

/// constexpr, so that kernels may call them too.
struct RoundingKey {
  uint32_t first;
  uint32_t second;
};
constexpr RoundingKey rounding_key(uint64_t stream, uint64_t update) {
  uint64_t z = stream + (update + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

/// Elements that one stream has words for.
inline constexpr int64_t kRoundingElements = int64_t{1} << 32;

inline constexpr uint32_t kRoundingSpread = 0x9e3779b1u;  // 2^32 / golden ratio
inline constexpr uint32_t kRoundingMultiply1 = 0x7feb352du;
inline constexpr uint32_t kRoundingMultiply2 = 0x846ca68bu;

/// 32 random bits of an element.
constexpr uint32_t rounding_word(RoundingKey key, uint32_t element) {
  uint32_t x = element * kRoundingSpread + key.first;
  x = (x ^ (x >> 16)) * kRoundingMultiply1;
  x = ((x ^ (x >> 15)) + key.second) * kRoundingMultiply2;
  return x ^ (x >> 16);
}

/// The 16 bits that each plane of an element takes of its word: any two planes are independent.
constexpr uint32_t master_bits(uint32_t word) { return word >> 16; }
constexpr uint32_t exp_avg_bits(uint32_t word) { return word & 0xffffu; }
constexpr uint32_t exp_avg_sq_bits(uint32_t word) { return (word * kRoundingMultiply2) >> 16; }

/// What bf16 holds stays, NaN and infinity too; finite stays finite: beyond the largest bf16 there
/// is nothing to round up to.
constexpr uint16_t bf16_stochastic(float value, uint32_t random16) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t quiet = magnitude > 0x7f800000u ? 0x40u : 0u;
  const uint32_t carry = magnitude >= 0x7f7f0000u ? 0u : random16;
  return static_cast<uint16_t>(((bits + carry) >> 16) | quiet);
}

}  // namespace trireme
