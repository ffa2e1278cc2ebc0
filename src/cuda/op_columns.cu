// Sums over rows: gradients of biases, and of norm gains of long rows. Slices of rows are summed by
// one block each, then the slices' sums are added in order.
#include "base/math.h"
#include "cuda/fill.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"
#include "cuda/op_sizing.h"
#include "cuda/sum_columns.h"

namespace trireme::cuda {

namespace {

constexpr int kLanes = 32;  // packs of a block
constexpr int kTeams = 8;   // rows of a block that are read at once
constexpr int kPartTeams = 32;

/// What is summed: dy, or dy * x * rstd when there is an x.
template <typename T>
struct ColumnTerms {
  Rows<const T> dy;
  Rows<const T> x;
  const float* rstd;
};

/// parts(slices, cols) = sums of the rows of each slice. blockIdx (strip of columns, slice).
template <typename T, int kCount, bool kScaled>
__global__ void __launch_bounds__(kLanes* kTeams)
    sum_slices(float* parts, ColumnTerms<T> terms, int64_t num_rows, int64_t slice_rows,
               int64_t cols) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * kCount;
  const int64_t begin = blockIdx.y * slice_rows;
  const int64_t end = begin + slice_rows < num_rows ? begin + slice_rows : num_rows;
  float sums[kCount] = {};
  if (column < cols) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kTeams) {
      const auto dy = load_pack<kCount>(terms.dy[row] + column);
      if constexpr (kScaled) {
        const auto x = load_pack<kCount>(terms.x[row] + column);
        const float scale = terms.rstd[row];
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] = fmaf(dy[k] * x[k], scale, sums[k]);
      } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] += dy[k];
      }
    }
  }
  __shared__ float of_teams[kTeams][kCount][kLanes];
#pragma unroll
  for (int k = 0; k < kCount; ++k) of_teams[threadIdx.y][k][threadIdx.x] = sums[k];
  __syncthreads();
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < kLanes * kCount; i += kLanes * kTeams) {
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kLanes * kCount + i;
    if (to >= cols) break;
    float sum = 0;
#pragma unroll
    for (int team = 0; team < kTeams; ++team) sum += of_teams[team][i % kCount][i / kCount];
    parts[blockIdx.y * cols + to] = sum;
  }
}

/// out(cols) law = sums of the columns of parts(slices, cols).
__global__ void __launch_bounds__(kLanes* kPartTeams)
    sum_parts(float* out, const float* parts, int num_slices, int64_t cols, bool accumulate) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float sum = 0;
  if (column < cols) {
#pragma unroll 4
    for (int slice = threadIdx.y; slice < num_slices; slice += kPartTeams) {
      sum += parts[slice * cols + column];
    }
  }
  __shared__ float of_teams[kPartTeams][kLanes];
  of_teams[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  sum = accumulate ? out[column] : 0.0f;
  float total = 0;
#pragma unroll
  for (int team = 0; team < kPartTeams; ++team) total += of_teams[team][threadIdx.x];
  out[column] = sum + total;
}

template <bool kScaled>
void sum_columns(const ops::OpCall& call, const TensorView& out, const TensorView& dy,
                 const TensorView& x, const float* rstd, cudaStream_t stream) {
  const bool accumulate = call.law == ops::Law::add;
  if (out.cols == 0) return;
  if (dy.rows == 0) {
    if (!accumulate) zero_rows(out, stream);
    return;
  }
  auto* parts = static_cast<float*>(call.workspace);
  const ColumnSlices slices(dy.rows);
  const auto fits = [&](int64_t count) {
    return fits_packs(dy, count) && (!kScaled || fits_packs(x, count));
  };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const ColumnTerms<T> terms{rows_of<const T>(dy), rows_of<const T>(x), rstd};
    const int64_t strips = ceil_div(dy.cols, kLanes * A::kCount);
    launch("column sums", sum_slices<T, A::kCount, kScaled>,
           {dim3(blocks(strips), blocks(slices.count)), dim3(kLanes, kTeams)}, stream, parts, terms,
           dy.rows, slices.rows, dy.cols);
  });
  add_slices(out, parts, slices.count, accumulate, stream);
}

}  // namespace

void add_slices(const TensorView& out, const float* parts, int64_t num_slices, bool accumulate,
                cudaStream_t stream) {
  launch("sums of slices", sum_parts,
         {dim3(blocks(ceil_div(out.cols, kLanes))), dim3(kLanes, kPartTeams)}, stream,
         data_of<float>(out), parts, narrow<int>(num_slices), out.cols, accumulate);
}

void sum_norm_columns(const ops::OpCall& call, const TensorView& d_gain, const TensorView& dy,
                      const TensorView& x, const TensorView& rstd, cudaStream_t stream) {
  sum_columns<true>(call, d_gain, dy, x, data_of<const float>(rstd), stream);
}

void linear_bias_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  sum_columns<false>(call, call.args[0], call.args[1], {}, nullptr, stream);
}

}  // namespace trireme::cuda
