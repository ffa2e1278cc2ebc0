// Launching kernels, and the host's view of what a kernel reads and writes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "cuda/handle.h"
#include "ops/op.h"

namespace trireme::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  int64_t shared_bytes = 0;
};

/// Launches `kernel` on `stream`. No grid may be empty: bodies return early when there are no rows.
template <typename... Params>
void launch(const char* name, void (*kernel)(Params...), const Grid& grid, cudaStream_t stream,
            std::type_identity_t<Params>... args) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  require(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads,
                           pointers, static_cast<size_t>(grid.shared_bytes), stream),
          name);
}

/// Lets `kernel` use `bytes` of dynamic shared memory where that is more than every kernel may.
template <typename... Params>
void allow_shared(const char* name, void (*kernel)(Params...), int64_t bytes) {
  require(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      name);
}

/// A grid dimension; what does not fit 31 bits is a bug of the caller's geometry.
inline unsigned blocks(int64_t count) {
  check(count > 0 && count <= 0x7fffffff, "a grid of {} blocks", count);
  return static_cast<unsigned>(count);
}
/// A dimension for a kernel that loops: at most `most`.
inline unsigned some_blocks(int64_t count, int64_t most = 65535) {
  return blocks(count < most ? count : most);
}

}  // namespace trireme::cuda
