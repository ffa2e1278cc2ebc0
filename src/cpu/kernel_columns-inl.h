// Sums over rows, column by column. Included once per Highway target.
#if defined(TRIREME_CPU_KERNEL_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CPU_KERNEL_COLUMNS_INL_H_
#undef TRIREME_CPU_KERNEL_COLUMNS_INL_H_
#else
#define TRIREME_CPU_KERNEL_COLUMNS_INL_H_
#endif

#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "ops/op.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// Rows added in one chain; the chains' sums are added in order. Keeps the rounding error of long
/// columns small.
inline constexpr int64_t kChainRows = 64;

/// out(1, cols):f32 law= sum over rows of term(row, column, access), a vector at `column`. Threads
/// divide columns, so a column has one order of summation.
template <typename Term>
void sum_columns(const TensorView& out, int64_t rows, ops::Law law, int num_threads,
                 const Term& term) {
  constexpr int64_t kTile = 4 * 16;  // columns read together: whole cache lines of bf16
  auto* sums = data_of<float>(out);
  const bool accumulate = law == ops::Law::add;
  const auto tile_part = [&](int64_t column, auto access) {
    const F32 f;
    Vec total = accumulate ? access.read(sums + column) : hn::Zero(f);
    for (int64_t first = 0; first < rows; first += kChainRows) {
      const int64_t last = std::min(rows, first + kChainRows);
      Vec chain = hn::Zero(f);
      for (int64_t row = first; row < last; ++row) {
        chain = hn::Add(chain, term(row, column, access));
      }
      total = hn::Add(total, chain);
    }
    access.write(total, sums + column);
  };
  const auto whole_tile = [&](int64_t column) {
    const F32 f;
    constexpr int64_t kVectors = kTile / kLanes;
    Vec total[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      total[v] = accumulate ? load(sums + column + v * kLanes) : hn::Zero(f);
    }
    for (int64_t first = 0; first < rows; first += kChainRows) {
      const int64_t last = std::min(rows, first + kChainRows);
      Vec chain[kVectors];
      for (Vec& v : chain) v = hn::Zero(f);
      for (int64_t row = first; row < last; ++row) {
        for (int64_t v = 0; v < kVectors; ++v) {
          chain[v] = hn::Add(chain[v], term(row, column + v * kLanes, Whole{}));
        }
      }
      for (int64_t v = 0; v < kVectors; ++v) total[v] = hn::Add(total[v], chain[v]);
    }
    for (int64_t v = 0; v < kVectors; ++v) store(total[v], sums + column + v * kLanes);
  };
  parallel_ranges(num_threads, out.cols, kTile, rows * out.cols, [&](int64_t begin, int64_t end) {
    int64_t column = begin;
    for (; column + kTile <= end; column += kTile) whole_tile(column);
    for_vectors(column, end, tile_part);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#endif
