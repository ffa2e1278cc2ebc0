// Products of blocks that lie in the cache: the inner loops of attention.
#pragma once

#include <cstdint>

namespace trireme::cpu {

/// c(m, n):f32 = (accumulate ? c : 0) + a(m, k) · b(k, n).
/// Steps along k are units of 4 bytes: one f32, or two bf16 that are neighbours along k. Unit (i,
/// k) of a lies at a + i * a_row + k * a_step, row k of b at b + k * b_step (in units). n is a
/// multiple of 16. The result does not depend on how m and n are divided among calls.
struct BlockProduct {
  const void* a = nullptr;
  int64_t a_row = 0;
  int64_t a_step = 0;
  const void* b = nullptr;
  int64_t b_step = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool accumulate = false;
};

}  // namespace trireme::cpu
