// Zeros, and random values for measuring.
#include "base/math.h"
#include "cuda/fill.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;

__device__ uint32_t mixed(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<uint32_t>(value >> 32);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    random_rows(Rows<T> to, int64_t num_rows, int64_t cols, float scale) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= cols) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const auto element = static_cast<uint64_t>(row * cols + column);
    // The sum of four uniform bytes is normal enough.
    const uint32_t bits = mixed(element + 0x632be59bd9b4e019ull);
    const int sum =
        static_cast<int>((bits & 255u) + (bits >> 8 & 255u) + (bits >> 16 & 255u) + (bits >> 24)) -
        510;
    to[row][column] = narrow_to<T>(static_cast<float>(sum) * (scale / 148.0f));
  }
}

}  // namespace

void zero_rows(const TensorView& view, cudaStream_t stream) {
  if (view.size() == 0) return;
  const auto width = static_cast<size_t>(view.cols * size_of(view.dtype));
  const auto rows = static_cast<size_t>(view.rows);
  if (view.rows == 1 || view.stride == view.cols) {
    TRIREME_CUDA(cudaMemsetAsync(view.data, 0, width * rows, stream));
  } else {
    const auto pitch = static_cast<size_t>(view.stride * size_of(view.dtype));
    TRIREME_CUDA(cudaMemset2DAsync(view.data, pitch, 0, width, rows, stream));
  }
}

void random_fill(const TensorView& view, float scale, cudaStream_t stream) {
  if (view.size() == 0) return;
  with_access(
      view.dtype, [](int64_t) { return false; },
      [&](auto access) {
        using T = typename decltype(access)::T;
        launch(
            "random fill", random_rows<T>,
            {dim3(blocks(ceil_div(view.cols, kThreads)), some_blocks(view.rows)), dim3(kThreads)},
            stream, rows_of<T>(view), view.rows, view.cols, scale);
      });
}

void zero(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  zero_rows(call.args[0], stream);
}

}  // namespace trireme::cuda
