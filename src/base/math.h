// Checked integer arithmetic for sizes and shards. Sizes are signed 64-bit everywhere.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/error.h"

namespace trireme {

/// a / b, which must leave no remainder.
inline int64_t div_exact(int64_t a, int64_t b) {
  check(b > 0 && a % b == 0, "{} is not divisible by {}", a, b);
  return a / b;
}

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline constexpr int64_t round_up(int64_t a, int64_t multiple) {
  return ceil_div(a, multiple) * multiple;
}

/// a * b for non-negative sizes; overflow is a bug or a hostile file, never a wrapped number.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  check(!__builtin_mul_overflow(a, b, &product), "{} * {} overflows", a, b);
  return product;
}

/// Value-preserving conversion between integer types.
template <typename To, typename From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const auto result = static_cast<To>(value);
  check(static_cast<From>(result) == value && ((result < To{}) == (value < From{})),
        "{} does not fit its type", value);
  return result;
}

}  // namespace trireme
