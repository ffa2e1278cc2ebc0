// Sums over rows (bias gradient) and over everything (gradient norm).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernel_columns-inl.h"
#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

void linear_bias_grad_columns(const ops::OpCall& call, OpContext& context) {
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> dy(call.args[1]);
    sum_columns(
        call.args[0], call.args[1].rows, call.law, context.num_threads(),
        [&](int64_t row, int64_t column, auto access) { return access.read(dy[row] + column); });
  });
}

double squares_of(const float* x, int64_t count) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto u = hn::PromoteTo(d, hn::LoadU(half, x + i));
    const auto v = hn::PromoteTo(d, hn::LoadU(half, x + i + lanes));
    a = hn::MulAdd(u, u, a);
    b = hn::MulAdd(v, v, b);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

void sum_squares_pieces(const ops::OpCall& call, OpContext& context) {
  const auto* x = data_of<float>(call.args[1]);
  const int64_t count = call.args[1].cols;
  const int64_t num_pieces = ceil_div(count, kSquaresPiece);
  auto* pieces = static_cast<double*>(call.workspace);
  parallel_ranges(context.num_threads(), num_pieces, 1, count, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      pieces[p] =
          squares_of(x + p * kSquaresPiece, std::min(kSquaresPiece, count - p * kSquaresPiece));
    }
  });
  double sum = 0;
  for (int64_t p = 0; p < num_pieces; ++p) sum += pieces[p];
  auto* out = data_of<double>(call.args[0]);
  *out = call.law == ops::Law::add ? *out + sum : sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(linear_bias_grad_columns);
void linear_bias_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(linear_bias_grad_columns)(call, context);
}

HWY_EXPORT(sum_squares_pieces);
void sum_squares(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(sum_squares_pieces)(call, context);
}
int64_t sum_squares_workspace(const ops::OpCall& call, const SizingInput&) {
  return ceil_div(call.args[1].cols, kSquaresPiece) * static_cast<int64_t>(sizeof(double));
}

}  // namespace trireme::cpu
#endif
