// Vectors of f32 lanes over f32 and bf16 memory. Included once per Highway target.
#if defined(TRIREME_CPU_KERNEL_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CPU_KERNEL_VECTOR_INL_H_
#undef TRIREME_CPU_KERNEL_VECTOR_INL_H_
#else
#define TRIREME_CPU_KERNEL_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// At most 16 lanes, so that blocks of 16 are whole vectors on every target.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::Rebind<uint32_t, F32>;
using I32 = hn::Rebind<int32_t, F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using Vec = hn::Vec<F32>;
inline constexpr int64_t kLanes = hn::MaxLanes(F32());

/// bf16 elements are uint16_t.
HWY_INLINE Vec load(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE Vec load(const uint16_t* from) {
  const auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}

/// The bf16 nearest to each lane (ties to even) in the upper half, other bits undefined. NaN lanes
/// must be quiet with a payload in the upper half, as arithmetic makes them.
HWY_INLINE hn::Vec<U32> rounded_bits(Vec v) {
  const U32 u;
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fffu)));
}

HWY_INLINE void store(Vec v, float* to) { hn::StoreU(v, F32(), to); }
HWY_INLINE void store(Vec v, uint16_t* to) {
  const U32 u;
  const auto nan = hn::RebindMask(u, hn::IsNaN(v));
  const auto quiet = hn::Or(hn::BitCast(u, v), hn::Set(u, 0x400000u));
  const auto rounded = hn::IfThenElse(nan, quiet, rounded_bits(v));
  hn::StoreU(hn::TruncateTo(U16(), hn::ShiftRight<16>(rounded)), U16(), to);
}

/// The first `count` < kLanes elements; the rest zero.
template <typename T>
HWY_INLINE Vec load_some(const T* from, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}
template <typename T>
HWY_INLINE void store_some(Vec v, T* to, int64_t count) {
  T padded[kLanes];
  store(v, padded);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(T));
}

HWY_INLINE float widen(float value) { return value; }
HWY_INLINE float widen(uint16_t bits) { return f32_from_bf16(bits); }

/// Reads or writes a whole vector, or the last `count` elements of a row.
struct Whole {
  template <typename T>
  HWY_INLINE Vec read(const T* from) const {
    return load(from);
  }
  template <typename T>
  HWY_INLINE void write(Vec v, T* to) const {
    store(v, to);
  }
};
struct Some {
  int64_t count;
  template <typename T>
  HWY_INLINE Vec read(const T* from) const {
    return load_some(from, count);
  }
  template <typename T>
  HWY_INLINE void write(Vec v, T* to) const {
    store_some(v, to, count);
  }
};

/// body(offset, access) over [begin, end) in steps of a vector; access is Whole or, at the end,
/// Some. Lanes beyond the end read zero.
template <typename Body>
HWY_INLINE void for_vectors(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, Whole{});
  if (i < end) body(i, Some{end - i});
}

HWY_INLINE float sum_of(Vec v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }
HWY_INLINE float max_of(Vec v) { return hn::GetLane(hn::MaxOfLanes(F32(), v)); }

/// 2^x to 2 units in the last place (kFast: 3e-6 relative); 0 below 2^-126, infinity between
/// 2^127.5 and 2^128.5, undefined beyond. NaN stays NaN.
template <bool kFast = false>
HWY_INLINE Vec exp2_below(Vec x) {
  const F32 f;
  x = hn::Max(hn::Set(f, -127.0f), x);  // in this order a NaN lane passes
  // Adding 1.5 * 2^23 rounds to an integer and leaves it, here already biased as an exponent, in
  // the low bits.
  const Vec rounder = hn::Set(f, 12582912.0f + 127.0f);
  const Vec biased = hn::Add(x, rounder);
  const Vec r = hn::Sub(x, hn::Sub(biased, rounder));
  Vec p;
  if constexpr (kFast) {
    p = hn::Set(f, 9.570101908e-03f);
    p = hn::MulAdd(p, r, hn::Set(f, 5.591786032e-02f));
    p = hn::MulAdd(p, r, hn::Set(f, 2.402474483e-01f));
    p = hn::MulAdd(p, r, hn::Set(f, 6.931218147e-01f));
    p = hn::MulAdd(p, r, hn::Set(f, 9.999992614e-01f));
  } else {
    p = hn::Set(f, 1.534581199e-04f);
    p = hn::MulAdd(p, r, hn::Set(f, 1.339993122e-03f));
    p = hn::MulAdd(p, r, hn::Set(f, 9.618488957e-03f));
    p = hn::MulAdd(p, r, hn::Set(f, 5.550328777e-02f));
    p = hn::MulAdd(p, r, hn::Set(f, 2.402264689e-01f));
    p = hn::MulAdd(p, r, hn::Set(f, 6.931472057e-01f));
    p = hn::MulAdd(p, r, hn::Set(f, 1.0f));
  }
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(U32(), biased));
  return hn::Mul(p, hn::BitCast(f, exponent));
}

inline constexpr float kLog2E = 1.4426950408889634f;

/// e^x; infinity from e^88.7.
HWY_INLINE Vec exp_of(Vec x) {
  const F32 f;
  // 2^128 comes out as infinity. In this order a NaN lane passes.
  const Vec scaled = hn::Min(hn::Set(f, 128.0f), hn::Mul(x, hn::Set(f, kLog2E)));
  return exp2_below(scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#endif
