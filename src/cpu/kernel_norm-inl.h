// RMS norm of one row, and its input gradient. Included once per Highway target.
#if defined(TRIREME_CPU_KERNEL_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CPU_KERNEL_NORM_INL_H_
#undef TRIREME_CPU_KERNEL_NORM_INL_H_
#else
#define TRIREME_CPU_KERNEL_NORM_INL_H_
#endif

#include <cmath>

#include "cpu/kernel_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// 1 / sqrt(mean(x^2) + eps).
template <typename T>
float rstd_of(const T* x, int64_t cols, float eps) {
  const F32 f;
  Vec squares = hn::Zero(f);
  for_vectors(0, cols, [&](int64_t i, auto access) {
    const Vec v = access.read(x + i);
    squares = hn::MulAdd(v, v, squares);
  });
  return 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(cols) + eps);
}

/// y = gain * (x * rstd); y may be x.
template <typename T>
void normalise_row(T* y, const T* x, const T* gain, int64_t cols, float rstd) {
  const Vec scale = hn::Set(F32(), rstd);
  for_vectors(0, cols, [&](int64_t i, auto access) {
    const Vec v = hn::Mul(access.read(x + i), scale);
    access.write(hn::Mul(access.read(gain + i), v), y + i);
  });
}

/// dx = before + rstd * (dy*gain) - x * rstd^3 * mean(dy*gain*x). No `before` where it is null; it
/// may be dx, and so may dy.
template <typename T>
void input_grad_row(T* dx, const T* dy, const T* x, const T* gain, int64_t cols, float rstd,
                    const T* before = nullptr) {
  const F32 f;
  Vec dots = hn::Zero(f);
  for_vectors(0, cols, [&](int64_t i, auto access) {
    dots =
        hn::MulAdd(hn::Mul(access.read(dy + i), access.read(gain + i)), access.read(x + i), dots);
  });
  const Vec scale = hn::Set(f, rstd);
  const Vec shift = hn::Set(f, rstd * rstd * rstd * (sum_of(dots) / static_cast<float>(cols)));
  for_vectors(0, cols, [&](int64_t i, auto access) {
    const Vec g = hn::Mul(access.read(dy + i), access.read(gain + i));
    Vec out = hn::NegMulAdd(access.read(x + i), shift, hn::Mul(g, scale));
    if (before != nullptr) out = hn::Add(access.read(before + i), out);
    access.write(out, dx + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#endif
