// How far a backend may be from the double reference: the one table.
//
// An element's error is |got - want| / (|want| + rms of the reference tensor): relative for large
// elements, and against the tensor's own scale for small ones, whose cancellation no format
// survives. bf16 results are judged against the reference of bf16-rounded inputs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "contract/tensor.h"

namespace trireme::contract {

enum class OpClass {
  copy,         // no arithmetic
  elementwise,  // a few operations and one rounding
  reduction,    // sums over rows or columns
  product,      // matrix products
  softmax,      // exponentials, and sums of them
  attention,
  attention_grad,
};

inline double tolerance(OpClass op, DType compute, DType output) {
  struct Row {
    OpClass op;
    double f32;          // compute f32
    double bf16;         // compute bf16, result bf16 (half a unit in the last place is 3.9e-3)
    double bf16_to_f32;  // compute bf16, result f32 or f64
  };
  constexpr Row kTable[] = {
      {OpClass::copy, 0.0, 0.0, 0.0},
      {OpClass::elementwise, 1e-6, 4e-3, 1e-6},
      {OpClass::reduction, 2e-6, 4e-3, 2e-6},
      {OpClass::product, 2e-6, 4e-3, 2e-6},
      {OpClass::softmax, 2e-6, 4e-3, 2e-6},
      // bf16 rounds the probabilities too. The gradient subtracts the dot product of the rounded
      // output with its gradient from every score's: an error of the rounding's own size. GPUs
      // round the gradients of a group's heads before they add them.
      {OpClass::attention, 4e-6, 1e-2, 2e-5},
      {OpClass::attention_grad, 2e-5, 4e-2, 3e-2},
  };
  for (const Row& row : kTable) {
    if (row.op != op) continue;
    if (compute == DType::f32) return row.f32;
    return output == DType::bf16 ? row.bf16 : row.bf16_to_f32;
  }
  return 0.0;
}

/// Every element within the tolerance; non-finite values agree exactly or fail.
inline void expect_close(const Tensor& got, const Tensor& want, double limit) {
  ASSERT_EQ(got.rows, want.rows);
  ASSERT_EQ(got.cols, want.cols);
  double squares = 0;
  for (const double v : want.values) squares += v * v;
  const double rms = std::sqrt(squares / std::max<double>(1.0, static_cast<double>(want.size())));
  double worst = 0;
  int64_t where = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got.at(i) - want.at(i));
    const double error = difference == 0 ? 0 : difference / (std::abs(want.at(i)) + rms);
    if (!(error <= worst)) {  // NaN counts as worst
      worst = error;
      where = i;
      if (std::isnan(error)) break;
    }
  }
  EXPECT_LE(worst, limit) << "element (" << where / std::max<int64_t>(1, want.cols) << ", "
                          << where % std::max<int64_t>(1, want.cols) << "): got " << got.at(where)
                          << ", want " << want.at(where) << ", rms " << rms;
}

}  // namespace trireme::contract
