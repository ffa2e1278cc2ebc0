// Rotary embedding, half-split, and its transpose.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// One head: (a, b) -> (a cos - b sin, b cos + a sin), with -sin when kTransposed.
template <bool kTransposed, typename T>
void rotate_head(T* out, const T* in, const float* cosines, const float* sines, int64_t half) {
  for_vectors(0, half, [&](int64_t i, auto access) {
    const Vec a = access.read(in + i);
    const Vec b = access.read(in + half + i);
    const Vec c = access.read(cosines + i);
    const Vec s = access.read(sines + i);
    const Vec bs = hn::Mul(b, s);
    const Vec as = hn::Mul(a, s);
    if constexpr (kTransposed) {
      access.write(hn::MulAdd(a, c, bs), out + i);
      access.write(hn::MulSub(b, c, as), out + half + i);
    } else {
      access.write(hn::MulSub(a, c, bs), out + i);
      access.write(hn::MulAdd(b, c, as), out + half + i);
    }
  });
}

template <bool kTransposed>
void rotate(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const int64_t head_dim = call.attributes.head_dim;
  const int64_t half = head_dim / 2;
  const int64_t rotated = (static_cast<int64_t>(call.attributes.heads) +
                           static_cast<int64_t>(call.attributes.kv_heads)) *
                          head_dim;
  const int64_t copied = args[1].cols - rotated;
  const Rows<float> table(args[2]);
  const auto* positions = data_of<int32_t>(args[3]);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> out(args[0]), in(args[1]);
    const auto rotate_rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* cosines = table[positions[r]];
        for (int64_t c = 0; c < rotated; c += head_dim) {
          rotate_head<kTransposed>(out[r] + c, in[r] + c, cosines, cosines + half, half);
        }
        if (out[r] != in[r]) {
          std::memcpy(out[r] + rotated, in[r] + rotated, static_cast<size_t>(copied) * sizeof(T));
        }
      }
    };
    parallel_ranges(context.num_threads(), args[1].rows, 1, args[1].size(), rotate_rows);
  });
}

void rope_rows(const ops::OpCall& call, OpContext& context) { rotate<false>(call, context); }
void rope_input_grad_rows(const ops::OpCall& call, OpContext& context) {
  rotate<true>(call, context);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(rope_rows);
void rope(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(rope_rows)(call, context);
}

HWY_EXPORT(rope_input_grad_rows);
void rope_input_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(rope_input_grad_rows)(call, context);
}

}  // namespace trireme::cpu
#endif
