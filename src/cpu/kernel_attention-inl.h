// What forward and backward attention share: operands in units of 4 bytes (see kernel_product.h)
// and their packing. Included once per Highway target.
//
// Queries lie in vector lanes: scores are S^T (keys, queries), so that the softmax of a query never
// crosses lanes and every product broadcasts from one side and streams vectors from the other.
#if defined(TRIREME_CPU_KERNEL_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CPU_KERNEL_ATTENTION_INL_H_
#undef TRIREME_CPU_KERNEL_ATTENTION_INL_H_
#else
#define TRIREME_CPU_KERNEL_ATTENTION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <cstring>

#include "cpu/kernel_attention_blocks.h"
#include "cpu/kernel_product-inl.h"
#include "cpu/kernel_product_bf16.h"
#include "cpu/kernel_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {


/// Products in f32, of f32 or bf16 memory.
struct F32Units {
  static constexpr int64_t kPer = 1;  // elements of a unit
  static void product(const BlockProduct& p) { block_product_f32(p); }
};
/// Products of bf16 pairs.
struct Bf16Units {
  static constexpr int64_t kPer = 2;
  static void product(const BlockProduct& p) { block_product_bf16(p); }
};

/// (rows, cols) units to (cols, rows), 4 x 4 at a time; both multiples of 4.
inline void transpose_units(const float* in, int64_t in_stride, int64_t rows, int64_t cols,
                            float* out, int64_t out_stride) {
  const hn::FixedTag<float, 4> d;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < cols; c += 4) {
      const float* from = in + r * in_stride + c;
      const auto a = hn::LoadU(d, from);
      const auto b = hn::LoadU(d, from + in_stride);
      const auto e = hn::LoadU(d, from + 2 * in_stride);
      const auto g = hn::LoadU(d, from + 3 * in_stride);
      const auto ae0 = hn::InterleaveLower(d, a, e);  // a0 e0 a1 e1
      const auto ae2 = hn::InterleaveUpper(d, a, e);
      const auto bg0 = hn::InterleaveLower(d, b, g);
      const auto bg2 = hn::InterleaveUpper(d, b, g);
      float* to = out + c * out_stride + r;
      hn::StoreU(hn::InterleaveLower(d, ae0, bg0), d, to);  // a0 b0 e0 g0
      hn::StoreU(hn::InterleaveUpper(d, ae0, bg0), d, to + out_stride);
      hn::StoreU(hn::InterleaveLower(d, ae2, bg2), d, to + 2 * out_stride);
      hn::StoreU(hn::InterleaveUpper(d, ae2, bg2), d, to + 3 * out_stride);
    }
  }
}

/// Rows of memory to rows of units along the columns: (count, cols / kPer), `to_stride` units
/// apart.
template <typename Units, typename T>
void pack_rows(const T* from, int64_t stride, int64_t count, int64_t cols, float* to,
               int64_t to_stride) {
  for (int64_t r = 0; r < count; ++r) {
    if constexpr (Units::kPer * sizeof(T) == sizeof(float)) {
      std::memcpy(to + r * to_stride, from + r * stride, static_cast<size_t>(cols) * sizeof(T));
    } else {
      for_vectors(0, cols, [&](int64_t i, auto access) {
        access.write(access.read(from + r * stride + i), to + r * to_stride + i);
      });
    }
  }
}

/// Rows of memory to units along the rows: (ceil(count / kPer), cols), `to_stride` units apart,
/// columns from cols to to_stride and the missing row of an odd count zero.
template <typename Units, typename T>
void pack_steps(const T* from, int64_t stride, int64_t count, int64_t cols, float* to,
                int64_t to_stride) {
  for (int64_t r = 0; r < count; r += Units::kPer) {
    float* row = to + r / Units::kPer * to_stride;
    const T* first = from + r * stride;
    if constexpr (Units::kPer == 1) {
      for_vectors(0, cols,
                  [&](int64_t i, auto access) { access.write(access.read(first + i), row + i); });
    } else {
      const bool pair = r + 1 < count;
      const auto upper = hn::Set(U32(), 0xffff0000u);
      for_vectors(0, cols, [&](int64_t i, auto access) {
        const auto low = hn::BitCast(U32(), access.read(first + i));
        const auto high = pair ? hn::And(hn::BitCast(U32(), access.read(first + stride + i)), upper)
                               : hn::Zero(U32());
        const auto unit = hn::Or(hn::ShiftRight<16>(low), high);
        access.write(hn::BitCast(F32(), unit), row + i);
      });
    }
    for (int64_t i = cols; i < to_stride; ++i) row[i] = 0.0f;
  }
}

/// Rows of memory into lanes: (cols / kPer, kBlock) units; lanes from count to the next multiple of
/// kQueryLanes zero. `scratch` holds kBlock * cols / kPer units.
template <typename Units, typename T>
void pack_lanes(const T* from, int64_t stride, int64_t count, int64_t cols, float* to,
                float* scratch) {
  const int64_t units = cols / Units::kPer;
  const int64_t lanes = (count + kQueryLanes - 1) / kQueryLanes * kQueryLanes;
  pack_rows<Units>(from, stride, count, cols, scratch, units);
  std::memset(scratch + count * units, 0,
              static_cast<size_t>((lanes - count) * units) * sizeof(float));
  transpose_units(scratch, units, lanes, units, to, kBlock);
}

/// The nearest bf16 (ties away from zero: cheaper than to even, and these are operands, not
/// results) in the upper half, other bits undefined.
HWY_INLINE hn::Vec<U32> nearest_bits(Vec v) {
  return hn::Add(hn::BitCast(U32(), v), hn::Set(U32(), 0x8000u));
}

/// Two rows of lanes as one row of bf16 pairs.
HWY_INLINE Vec pair_of(Vec low, Vec high) {
  const auto mask = hn::Set(U32(), 0xffff0000u);
  const auto lower = hn::ShiftRight<16>(nearest_bits(low));
  return hn::BitCast(F32(), hn::Or(lower, hn::And(nearest_bits(high), mask)));
}

/// Lanes of `v` where key `key` is visible to queries `query`..: key <= query and, with a window,
/// key > query - window. Others become `otherwise`.
HWY_INLINE Vec visible(Vec v, int64_t key, int64_t query, int64_t window, Vec otherwise) {
  const I32 i;
  const auto distance =
      hn::Add(hn::Iota(i, 0), hn::Set(i, static_cast<int32_t>(query - key)));  // query - key
  auto hidden = hn::Lt(distance, hn::Zero(i));
  if (window > 0) {
    const auto far = hn::Set(i, static_cast<int32_t>(std::min<int64_t>(window, INT32_MAX)) - 1);
    hidden = hn::Or(hidden, hn::Gt(distance, far));
  }
  return hn::IfThenElse(hn::RebindMask(F32(), hidden), otherwise, v);
}

/// Whether all of a vector's queries see the key.
HWY_INLINE bool all_visible(int64_t key, int64_t query, int64_t window) {
  return key <= query && (window == 0 || key > query + kLanes - 1 - window);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#endif
