// Small kernels that collectives and debugging need on their streams.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

#include "base/dtype.h"

namespace trireme::cuda {

/// out[i] += in[i], sums of bf16 in f32. f32, bf16, f64 or i32. `in` may be `out`. Asynchronous.
void add_elements(DType dtype, void* out, const void* in, int64_t count, cudaStream_t stream);

/// `num` places of bf16 in the staging of a sum with a wire type, one for each rank but `own`, in
/// rank order, from one to the next `stride` elements.
struct WirePlaces {
  uint16_t* first = nullptr;
  int64_t stride = 0;
  int num = 0;
  int own = 0;
};

/// Shares of f32, one for each rank, from one to the next `stride` elements. Elements from `limit`
/// on, counted from the first share's begin, are nobody's.
struct WireShares {
  const float* first = nullptr;
  int64_t stride = 0;
  int64_t limit = 0;
};

/// Rounds the first `count` elements of every other rank's share into its place, to nearest even.
/// Asynchronous.
void round_shares(const WirePlaces& places, const WireShares& shares, int64_t count,
                  cudaStream_t stream);

/// out = (add ? out : 0) + (((g0 + g1) + g2) + ...) in f32, in rank order: `mine` rounded to bf16,
/// and of the others what their places hold. `out` may be `mine`. Asynchronous.
void sum_rounded(float* out, bool add, const float* mine, const WirePlaces& places, int64_t count,
                 cudaStream_t stream);

/// Keeps the stream busy for so long with one thread.
void delay(std::chrono::nanoseconds time, cudaStream_t stream);

/// Fills memory that the device sees, pinned host memory too.
void fill_bytes(void* to, uint8_t byte, int64_t bytes, cudaStream_t stream);

}  // namespace trireme::cuda
