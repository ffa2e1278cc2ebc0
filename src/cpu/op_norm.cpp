// RMS normalisation and its gradients: one pass of sums and one of values over each row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernel_columns-inl.h"
#include "cpu/kernel_norm-inl.h"
#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

void rms_norm_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const int64_t cols = args[2].cols;
  const auto eps = static_cast<float>(call.attributes.eps);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> y(args[0]), x(args[2]);
    auto* rstd = data_of<float>(args[1]);
    const auto* gain = data_of<T>(args[3]);
    parallel_ranges(context.num_threads(), args[2].rows, 1, args[2].size(),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t r = begin; r < end; ++r) {
                        rstd[r] = rstd_of(x[r], cols, eps);
                        normalise_row(y[r], x[r], gain, cols, rstd[r]);
                      }
                    });
  });
}

/// Arguments dx, dy, x, gain, rstd, before (may be absent).
void rms_norm_input_grad_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> dx(args[0]), dy(args[1]), x(args[2]), before(args[5]);
    const auto* gain = data_of<T>(args[3]);
    const auto* rstd = data_of<float>(args[4]);
    parallel_ranges(context.num_threads(), args[2].rows, 1, args[2].size(),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t r = begin; r < end; ++r) {
                        input_grad_row<T>(dx[r], dy[r], x[r], gain, args[2].cols, rstd[r],
                                          args[5].present() ? before[r] : nullptr);
                      }
                    });
  });
}

void rms_norm_weight_grad_columns(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const auto* rstd = data_of<float>(args[3]);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> dy(args[1]), x(args[2]);
    sum_columns(args[0], args[1].rows, call.law, context.num_threads(),
                [&](int64_t row, int64_t column, auto access) {
                  const Vec v = hn::Mul(access.read(x[row] + column), hn::Set(F32(), rstd[row]));
                  return hn::Mul(access.read(dy[row] + column), v);
                });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(rms_norm_rows);
void rms_norm(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(rms_norm_rows)(call, context);
}

HWY_EXPORT(rms_norm_input_grad_rows);
void rms_norm_input_grad(const ops::OpCall& call, OpContext& context) {
  ops::OpCall rows = call;
  rows.args[5] = call.law == ops::Law::add ? call.args[0] : TensorView{};
  HWY_DYNAMIC_DISPATCH(rms_norm_input_grad_rows)(rows, context);
}

HWY_EXPORT(rms_norm_weight_grad_columns);
void rms_norm_weight_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(rms_norm_weight_grad_columns)(call, context);
}

void rms_norm_grad(const ops::OpCall& call, OpContext& context) {
  const auto& [d_gain, dx, dy, x, gain, rstd, before, none] = call.args;
  ops::OpCall columns = call;  // first: dx may take the place of dy
  columns.args = {d_gain, dy, x, rstd};
  HWY_DYNAMIC_DISPATCH(rms_norm_weight_grad_columns)(columns, context);
  ops::OpCall rows = call;
  rows.args = {dx, dy, x, gain, rstd, before};
  HWY_DYNAMIC_DISPATCH(rms_norm_input_grad_rows)(rows, context);
}

}  // namespace trireme::cpu
#endif
