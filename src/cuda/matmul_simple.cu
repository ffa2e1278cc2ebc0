#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/matmul_simple.h"

namespace trireme::cuda {

namespace {

constexpr int kTile = 16;
constexpr int kThreads = 256;

struct Strides {
  int64_t row;
  int64_t column;
};

/// One thread an element of D. blockIdx.x counts tiles of D, down its columns first.
template <typename T, typename Out>
__global__ void __launch_bounds__(kTile* kTile)
    multiply_tiles(Out* d, int64_t ldd, const T* a, Strides of_a, const T* b, Strides of_b,
                   const T* bias, const Out* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
                   int64_t tiles_down) {
  __shared__ float tile_a[kTile][kTile + 1];  // (k, row)
  __shared__ float tile_b[kTile][kTile + 1];  // (k, column)
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int64_t row = blockIdx.x % tiles_down * kTile + x;
  const int64_t column = blockIdx.x / tiles_down * kTile + y;
  float sum = 0;
  for (int64_t first = 0; first < k; first += kTile) {
    const int64_t k_of_a = first + y;
    const int64_t k_of_b = first + x;
    tile_a[y][x] = row < m && k_of_a < k ? widen(a[row * of_a.row + k_of_a * of_a.column]) : 0.0f;
    tile_b[x][y] =
        column < n && k_of_b < k ? widen(b[k_of_b * of_b.row + column * of_b.column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum = fmaf(tile_a[i][x], tile_b[i][y], sum);
    __syncthreads();
  }
  if (row >= m || column >= n) return;
  if (bias != nullptr) sum += widen(bias[row]);
  if (c != nullptr) sum += widen(c[row + column * ldc]);
  d[row + column * ldd] = narrow_to<Out>(sum);
}

template <typename T, typename Out>
void multiply(const MatmulProblem& p, const MatmulOperands& o, cudaStream_t stream) {
  const Strides of_a = p.a_transposed ? Strides{p.lda, 1} : Strides{1, p.lda};
  const Strides of_b = p.b_transposed ? Strides{p.ldb, 1} : Strides{1, p.ldb};
  const int64_t tiles_down = ceil_div(p.m, kTile);
  launch("simple matrix product", multiply_tiles<T, Out>,
         {dim3(blocks(tiles_down * ceil_div(p.n, kTile))), dim3(kTile, kTile)}, stream,
         static_cast<Out*>(o.d), p.ldd, static_cast<const T*>(o.a), of_a,
         static_cast<const T*>(o.b), of_b, p.bias ? static_cast<const T*>(o.bias) : nullptr,
         p.accumulate ? static_cast<const Out*>(o.c) : nullptr, p.ldc, p.m, p.n, p.k, tiles_down);
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    spread_rows(Rows<Out> y, const T* bias, int64_t num_rows, int64_t cols) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= cols) return;
  const Out value = narrow_to<Out>(widen(bias[column]));
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) y[row][column] = value;
}

template <typename T, typename Out>
void spread(const TensorView& y, const TensorView& bias, cudaStream_t stream) {
  launch("spread bias", spread_rows<T, Out>,
         {dim3(blocks(ceil_div(y.cols, kThreads)), some_blocks(y.rows, 1024)), dim3(kThreads)},
         stream, rows_of<Out>(y), data_of<const T>(bias), y.rows, y.cols);
}

}  // namespace

void simple_matmul(const MatmulProblem& problem, const MatmulOperands& operands,
                   cudaStream_t stream) {
  if (problem.input == DType::f32) {
    multiply<float, float>(problem, operands, stream);
  } else if (problem.output == DType::f32) {
    multiply<Bf16, float>(problem, operands, stream);
  } else {
    multiply<Bf16, Bf16>(problem, operands, stream);
  }
}

void spread_bias(const TensorView& y, const TensorView& bias, cudaStream_t stream) {
  if (y.size() == 0) return;
  if (bias.dtype == DType::f32) {
    spread<float, float>(y, bias, stream);
  } else if (y.dtype == DType::f32) {
    spread<Bf16, float>(y, bias, stream);
  } else {
    spread<Bf16, Bf16>(y, bias, stream);
  }
}

}  // namespace trireme::cuda
