#include "cpu/communicator_sum.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/communicator_sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A block of running sums that stays in the first-level cache while the parts stream by.
constexpr int64_t kBlock = 2048;
// Room for one vector of any target.
constexpr int64_t kMaxLanes = 64;

// Every element goes through the same instruction, the tail too: which of two NaNs comes out of an
// addition depends on the order of its operands, which a compiler may choose anew in each loop.

template <typename T>
HWY_NOINLINE void add_vectors(T* to, const T* a, const T* b, int64_t count) {
  const hn::ScalableTag<T> d;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, to + i);
  }
}

// to = a + b
template <typename T>
void add(T* to, const T* a, const T* b, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const int64_t tail = count % lanes;
  const int64_t whole = count - tail;
  add_vectors(to, a, b, whole);
  if (tail == 0) return;
  T tails[2][kMaxLanes] = {};
  std::copy_n(a + whole, tail, tails[0]);
  std::copy_n(b + whole, tail, tails[1]);
  add_vectors(tails[0], tails[0], tails[1], lanes);
  std::copy_n(tails[0], tail, to + whole);
}

void widen_bf16(float* to, const uint16_t* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = f32_from_bf16(from[i]);
}

HWY_NOINLINE void round_vectors(uint16_t* to, const float* from, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<int32_t, decltype(d)> di32;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto bits = hn::BitCast(d32, hn::LoadU(d, from + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40));
    const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffffff));
    const auto is_nan = hn::Gt(hn::BitCast(di32, magnitude), hn::Set(di32, 0x7f800000));
    const auto result =
        hn::IfThenElse(is_nan, hn::BitCast(di32, quiet), hn::BitCast(di32, rounded));
    hn::StoreU(hn::DemoteTo(d16, result), d16, to + i);
  }
}

void round_to_bf16(uint16_t* to, const float* from, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const int64_t tail = count % lanes;
  const int64_t whole = count - tail;
  round_vectors(to, from, whole);
  for (int64_t i = whole; i < count; ++i) to[i] = bf16_from_f32(from[i]);
}

template <typename T>
void sum_plain(T* out, bool add_to_out, std::span<const void* const> parts, int64_t count) {
  alignas(64) T block[kBlock];
  const size_t last = parts.size() - 1;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    T* const to = out + begin;
    const T* sum = static_cast<const T*>(parts[0]) + begin;
    for (size_t k = 1; k <= last; ++k) {
      T* const next = k == last && !add_to_out ? to : block;
      add(next, sum, static_cast<const T*>(parts[k]) + begin, n);
      sum = next;
    }
    if (add_to_out) {
      add(to, to, sum, n);
    } else if (sum != to) {
      std::copy_n(sum, n, to);
    }
  }
}

void sum_f32(void* out, bool add_to_out, std::span<const void* const> parts, int64_t count) {
  sum_plain(static_cast<float*>(out), add_to_out, parts, count);
}

void sum_f64(void* out, bool add_to_out, std::span<const void* const> parts, int64_t count) {
  sum_plain(static_cast<double*>(out), add_to_out, parts, count);
}

void sum_bf16(void* out, bool add_to_out, std::span<const void* const> parts, int64_t count) {
  alignas(64) float sum[kBlock];
  alignas(64) float part[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    uint16_t* const to = static_cast<uint16_t*>(out) + begin;
    widen_bf16(sum, static_cast<const uint16_t*>(parts[0]) + begin, n);
    for (size_t k = 1; k < parts.size(); ++k) {
      widen_bf16(part, static_cast<const uint16_t*>(parts[k]) + begin, n);
      add(sum, sum, part, n);
    }
    if (add_to_out) {
      widen_bf16(part, to, n);
      add(sum, part, sum, n);
    }
    round_to_bf16(to, sum, n);
  }
}

/// to = what travels of a part, as f32
void widen_part(float* to, const void* part, DType dtype, int64_t begin, int64_t count) {
  uint16_t rounded[kBlock];
  const uint16_t* from = rounded;
  if (dtype == DType::bf16) {
    from = static_cast<const uint16_t*>(part) + begin;
  } else {
    round_to_bf16(rounded, static_cast<const float*>(part) + begin, count);
  }
  widen_bf16(to, from, count);
}

void sum_rounded(float* out, bool add_to_out, std::span<const void* const> parts, size_t own,
                 DType others, int64_t count) {
  alignas(64) float sum[kBlock];
  alignas(64) float part[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    for (size_t k = 0; k < parts.size(); ++k) {
      widen_part(k == 0 ? sum : part, parts[k], k == own ? DType::f32 : others, begin, n);
      if (k > 0) add(sum, sum, part, n);
    }
    float* const to = out + begin;
    if (add_to_out) {
      add(to, to, sum, n);
    } else {
      std::copy_n(sum, n, to);
    }
  }
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(sum_f32);
HWY_EXPORT(sum_f64);
HWY_EXPORT(sum_bf16);
HWY_EXPORT(sum_rounded);
HWY_EXPORT(round_to_bf16);

bool can_sum(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16;
}

void sum_in_order(DType dtype, void* out, bool add, std::span<const void* const> parts,
                  int64_t count) {
  check(can_sum(dtype), "collectives do not sum {}", name_of(dtype));
  check(!parts.empty(), "a sum of nothing");
  if (count == 0) return;
  if (dtype == DType::f32) {
    HWY_DYNAMIC_DISPATCH(sum_f32)(out, add, parts, count);
  } else if (dtype == DType::f64) {
    HWY_DYNAMIC_DISPATCH(sum_f64)(out, add, parts, count);
  } else {
    HWY_DYNAMIC_DISPATCH(sum_bf16)(out, add, parts, count);
  }
}

void sum_rounded(float* out, bool add, std::span<const void* const> parts, size_t own, DType others,
                 int64_t count) {
  check(!parts.empty(), "a sum of nothing");
  HWY_DYNAMIC_DISPATCH(sum_rounded)(out, add, parts, own, others, count);
}

void round_to_bf16(uint16_t* to, const float* from, int64_t count) {
  HWY_DYNAMIC_DISPATCH(round_to_bf16)(to, from, count);
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
