// Dynamic shared memory of a block.
#pragma once

#include <cuda_runtime.h>

namespace trireme::cuda {

__device__ inline float* shared_floats() {
  extern __shared__ float4 trireme_shared_memory[];
  return reinterpret_cast<float*>(trireme_shared_memory);
}

}  // namespace trireme::cuda
