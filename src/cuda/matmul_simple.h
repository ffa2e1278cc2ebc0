// Matrix products of shapes or addresses that cuBLASLt declines: correct, not fast.
#pragma once

#include "base/tensor_view.h"
#include "cuda/matmul.h"

namespace trireme::cuda {

/// Any alignment. Each sum in f32, in the order of k.
void simple_matmul(const MatmulProblem& problem, const MatmulOperands& operands,
                   cudaStream_t stream);

/// Every row of `y` becomes `bias`(1, cols): the start of a product that then adds to y.
void spread_bias(const TensorView& y, const TensorView& bias, cudaStream_t stream);

}  // namespace trireme::cuda
