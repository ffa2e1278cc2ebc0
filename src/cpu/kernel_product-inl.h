// Block products of f32. Included once per Highway target.
#if defined(TRIREME_CPU_KERNEL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CPU_KERNEL_PRODUCT_INL_H_
#undef TRIREME_CPU_KERNEL_PRODUCT_INL_H_
#else
#define TRIREME_CPU_KERNEL_PRODUCT_INL_H_
#endif

#include "cpu/kernel_product.h"
#include "cpu/kernel_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// Accumulators of a tile: 6 x 4 of 32 vector registers, or 6 x 2 of 16.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

template <int kRows, int kVectors>
HWY_NOINLINE void product_tile(const BlockProduct& p, int64_t row, int64_t column) {
  const F32 f;
  const auto* a = static_cast<const float*>(p.a) + row * p.a_row;
  const auto* b = static_cast<const float*>(p.b) + column;
  float* c = p.c + row * p.c_row + column;
  Vec sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = p.accumulate ? load(c + i * p.c_row + j * kLanes) : hn::Zero(f);
    }
  }
  const int64_t a_row = p.a_row;
  for (int64_t k = 0; k < p.k; ++k) {
    Vec right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + j * kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Vec left = hn::Set(f, a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    a += p.a_step;
    b += p.b_step;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(sum[i][j], c + i * p.c_row + j * kLanes);
  }
}

template <int kVectors>
void product_columns(const BlockProduct& p, int64_t column) {
  int64_t row = 0;
  for (; row + kTileRows <= p.m; row += kTileRows) {
    product_tile<kTileRows, kVectors>(p, row, column);
  }
  switch (p.m - row) {
    case 5:
      return product_tile<5, kVectors>(p, row, column);
    case 4:
      return product_tile<4, kVectors>(p, row, column);
    case 3:
      return product_tile<3, kVectors>(p, row, column);
    case 2:
      return product_tile<2, kVectors>(p, row, column);
    case 1:
      return product_tile<1, kVectors>(p, row, column);
    default:
      return;
  }
}

/// BlockProduct with units of one f32.
inline void block_product_f32(const BlockProduct& p) {
  constexpr int64_t kWide = kTileVectors * kLanes;
  int64_t column = 0;
  for (; column + kWide <= p.n; column += kWide) product_columns<kTileVectors>(p, column);
  if constexpr (kTileVectors == 4) {  // narrower tiles divide every n
    switch ((p.n - column) / kLanes) {
      case 3:
        return product_columns<3>(p, column);
      case 2:
        return product_columns<2>(p, column);
      case 1:
        return product_columns<1>(p, column);
      default:
        return;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#endif
