// Sums over the threads of a warp or a block, in an order that depends on the shape alone.
#pragma once

#include <cuda_runtime.h>

namespace trireme::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Value>
__device__ Value warp_sum(Value value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

/// Sum over threadIdx.x, for every thread. blockDim.x is a multiple of 32; where it is more than
/// 32, blockDim.y is 1 and all threads of the block call it.
template <typename Value>
__device__ Value row_sum(Value value) {
  value = warp_sum(value);
  if (blockDim.x == 32) return value;
  __shared__ Value parts[32];
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_sum(lane < blockDim.x / 32 ? parts[lane] : Value{});
  __syncthreads();  // `parts` may be used again
  return value;
}

}  // namespace trireme::cuda
