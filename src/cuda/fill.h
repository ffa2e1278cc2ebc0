// Filling device memory.
#pragma once

#include <cuda_runtime.h>

#include "base/tensor_view.h"

namespace trireme::cuda {

/// Zeroes every element of the view, any dtype. Asynchronous.
void zero_rows(const TensorView& view, cudaStream_t stream);

/// Roughly normal values with this standard deviation, f32 or bf16. Asynchronous.
void random_fill(const TensorView& view, float scale, cudaStream_t stream);

}  // namespace trireme::cuda
