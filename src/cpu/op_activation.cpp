// Elementwise operations on rows: the gated activation and addition.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE Vec sigmoid(Vec x) {
  const Vec one = hn::Set(F32(), 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

void swiglu_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const int64_t ffn = args[0].cols;
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> out(args[0]), gate_up(args[1]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* gate = gate_up[r];
        const T* up = gate + ffn;
        T* to = out[r];
        for_vectors(0, ffn, [&](int64_t i, auto access) {
          const Vec g = access.read(gate + i);
          access.write(hn::Mul(hn::Mul(g, sigmoid(g)), access.read(up + i)), to + i);
        });
      }
    };
    parallel_ranges(context.num_threads(), args[0].rows, 1, args[1].size(), rows);
  });
}

void swiglu_input_grad_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const int64_t ffn = args[2].cols;
  const bool again = args[1].present();
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> d_gate_up(args[0]), out(args[1]), d_out(args[2]), gate_up(args[3]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* gate = gate_up[r];
        const T* up = gate + ffn;
        const T* dy = d_out[r];
        T* d_gate = d_gate_up[r];
        T* d_up = d_gate + ffn;
        T* to = again ? out[r] : nullptr;
        for_vectors(0, ffn, [&](int64_t i, auto access) {
          const Vec one = hn::Set(F32(), 1.0f);
          const Vec g = access.read(gate + i);
          const Vec u = access.read(up + i);
          const Vec d = access.read(dy + i);
          const Vec s = sigmoid(g);
          // d silu(g) / dg = s (1 + g (1 - s))
          const Vec slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
          access.write(hn::Mul(hn::Mul(d, u), slope), d_gate + i);
          access.write(hn::Mul(d, hn::Mul(g, s)), d_up + i);
          if (again) access.write(hn::Mul(hn::Mul(g, s), u), to + i);
        });
      }
    };
    parallel_ranges(context.num_threads(), args[2].rows, 1, args[3].size(), rows);
  });
}

/// out law= a (+ b); b may be null.
template <typename T>
void add_range(T* out, const T* a, const T* b, int64_t begin, int64_t end, bool accumulate) {
  for_vectors(begin, end, [&](int64_t i, auto access) {
    Vec v = access.read(a + i);
    if (b != nullptr) v = hn::Add(v, access.read(b + i));
    if (accumulate) v = hn::Add(access.read(out + i), v);
    access.write(v, out + i);
  });
}

void add_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const int64_t cols = args[0].cols;
  const bool accumulate = call.law == ops::Law::add;
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> out(args[0]), a(args[1]), b(args[2]);
    if (args[0].rows == 1) {
      parallel_ranges(context.num_threads(), cols, 1024, cols, [&](int64_t begin, int64_t end) {
        add_range(out.data, a.data, b.data, begin, end, accumulate);
      });
      return;
    }
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        add_range(out[r], a[r], b.data == nullptr ? nullptr : b[r], 0, cols, accumulate);
      }
    };
    parallel_ranges(context.num_threads(), args[0].rows, 1, args[0].size(), rows);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(swiglu_rows);
void swiglu(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(swiglu_rows)(call, context);
}

HWY_EXPORT(swiglu_input_grad_rows);
void swiglu_input_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(swiglu_input_grad_rows)(call, context);
}

HWY_EXPORT(add_rows);
void add(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(add_rows)(call, context);
}

}  // namespace trireme::cpu
#endif
