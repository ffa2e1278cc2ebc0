// Tiles of up to 6 rows x 4 vectors of accumulators; every unit of `a` is broadcast to a vector and
// multiplied with 16 units of `b` by one instruction. Highway 1.0 has no word for it.
#include <immintrin.h>

#include <algorithm>

#include "cpu/kernel_product_bf16.h"

#define TRIREME_AVX512_BF16 __attribute__((target("avx512f,avx512bf16")))

namespace trireme::cpu {

namespace {

constexpr int kLanes = 16;
constexpr int kMaxRows = 6;
constexpr int kMaxVectors = 4;

template <int kRows, int kVectors>
TRIREME_AVX512_BF16 void tile(const BlockProduct& p, int64_t row, int64_t column) {
  const auto* a = static_cast<const int32_t*>(p.a) + row * p.a_row;
  const auto* b = static_cast<const int32_t*>(p.b) + column;
  float* c = p.c + row * p.c_row + column;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] =
          p.accumulate ? _mm512_loadu_ps(c + i * p.c_row + j * kLanes) : _mm512_setzero_ps();
    }
  }
  const int64_t a_row = p.a_row;
  for (int64_t k = 0; k < p.k; ++k) {
    __m512bh right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      right[j] = (__m512bh)_mm512_loadu_si512(b + j * kLanes);
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const auto left = (__m512bh)_mm512_set1_epi32(a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], left, right[j]);
    }
    a += p.a_step;
    b += p.b_step;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      _mm512_storeu_ps(c + i * p.c_row + j * kLanes, sum[i][j]);
    }
  }
}

template <int kVectors>
void columns(const BlockProduct& p, int64_t column) {
  int64_t row = 0;
  for (; row + kMaxRows <= p.m; row += kMaxRows) tile<kMaxRows, kVectors>(p, row, column);
  switch (p.m - row) {
    case 5:
      return tile<5, kVectors>(p, row, column);
    case 4:
      return tile<4, kVectors>(p, row, column);
    case 3:
      return tile<3, kVectors>(p, row, column);
    case 2:
      return tile<2, kVectors>(p, row, column);
    case 1:
      return tile<1, kVectors>(p, row, column);
    default:
      return;
  }
}

}  // namespace

bool has_block_product_bf16() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

void block_product_bf16(const BlockProduct& p) {
  int64_t column = 0;
  for (; column + kMaxVectors * kLanes <= p.n; column += kMaxVectors * kLanes) {
    columns<kMaxVectors>(p, column);
  }
  switch ((p.n - column) / kLanes) {
    case 3:
      return columns<3>(p, column);
    case 2:
      return columns<2>(p, column);
    case 1:
      return columns<1>(p, column);
    default:
      return;
  }
}

}  // namespace trireme::cpu
