// Sums over rows, for operations that add up columns.
#pragma once

#include <cuda_runtime.h>

#include "ops/op.h"

namespace trireme::cuda {

/// out(1, cols):f32 = or += the sums of parts(num_slices, cols), slices in order.
void add_slices(const TensorView& out, const float* parts, int64_t num_slices, bool accumulate,
                cudaStream_t stream);

/// d_gain law= column sums of dy * x * rstd. The call's workspace holds ColumnSlices::bytes.
void sum_norm_columns(const ops::OpCall& call, const TensorView& d_gain, const TensorView& dy,
                      const TensorView& x, const TensorView& rstd, cudaStream_t stream);

}  // namespace trireme::cuda
