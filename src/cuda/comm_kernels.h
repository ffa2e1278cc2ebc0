// Small kernels that collectives and debugging need on their streams.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

#include "base/dtype.h"

namespace trireme::cuda {

/// out[i] += in[i], sums of bf16 in f32. f32, bf16, f64 or i32. `in` may be `out`. Asynchronous.
void add_elements(DType dtype, void* out, const void* in, int64_t count, cudaStream_t stream);

/// Keeps the stream busy for so long with one thread.
void delay(std::chrono::nanoseconds time, cudaStream_t stream);

/// Fills memory that the device sees, pinned host memory too.
void fill_bytes(void* to, uint8_t byte, int64_t bytes, cudaStream_t stream);

}  // namespace trireme::cuda
