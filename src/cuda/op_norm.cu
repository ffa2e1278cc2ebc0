// RMS norm. A row stays in the registers of one warp or one block between its sum and its result,
// so that memory is read once.
#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

constexpr int kMaxThreads = 1024;
/// Packs that a thread keeps; of longer rows the rest is read twice.
constexpr int kHeld = 4;

/// A warp for each of four rows where that is enough, else a block a row.
Grid row_grid(int64_t rows, int64_t packs) {
  const int64_t wanted = ceil_div(packs, kHeld);
  const int64_t threads = wanted <= 32            ? 32
                          : wanted >= kMaxThreads ? kMaxThreads
                                                  : (wanted + 31) / 32 * 32;
  const int64_t rows_a_block = threads == 32 ? 4 : 1;
  return {dim3(blocks(ceil_div(rows, rows_a_block))),
          dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows_a_block))};
}

__device__ int64_t row_of_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_rows(Rows<T> y, float* rstd, Rows<const T> x, const T* gain, int64_t num_rows,
                  int cols, float eps) {
  const int64_t row = row_of_thread();
  if (row >= num_rows) return;
  const T* from = x[row];
  T* to = y[row];
  const int packs = cols / kCount;
  Pack<T, kCount> values[kHeld];
  Pack<T, kCount> gains[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) values[i] = load_pack<kCount>(from + p * kCount);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) gains[i] = load_pack<kCount>(gain + p * kCount);
  }
  float squares = 0;
  const auto add_squares = [&](const Pack<T, kCount>& pack) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) squares = fmaf(pack[k], pack[k], squares);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (threadIdx.x + i * blockDim.x < packs) add_squares(values[i]);
  }
  const int rest = threadIdx.x + kHeld * blockDim.x;
  for (int p = rest; p < packs; p += blockDim.x) {
    add_squares(load_pack<kCount>(from + p * kCount));
  }
  const float scale = 1.0f / sqrtf(row_sum(squares) / static_cast<float>(cols) + eps);
  if (threadIdx.x == 0) rstd[row] = scale;

  const auto write = [&](int p, const Pack<T, kCount>& pack, const Pack<T, kCount>& factors) {
    float result[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) result[k] = factors[k] * (pack[k] * scale);
    store_pack(to + p * kCount, result);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) write(p, values[i], gains[i]);
  }
  for (int p = rest; p < packs; p += blockDim.x) {
    write(p, load_pack<kCount>(from + p * kCount), load_pack<kCount>(gain + p * kCount));
  }
}

}  // namespace

void rms_norm(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& y = call.args[0];
  const TensorView& rstd = call.args[1];
  const TensorView& x = call.args[2];
  const TensorView& gain = call.args[3];
  if (x.rows == 0 || x.cols == 0) return;
  const auto fits = [&](int64_t count) { return all_fit(count, y, x, gain); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("rms_norm", rms_norm_rows<T, A::kCount>, row_grid(x.rows, x.cols / A::kCount), stream,
           rows_of<T>(y), data_of<float>(rstd), rows_of<const T>(x), data_of<const T>(gain),
           x.rows, narrow<int>(x.cols), static_cast<float>(call.attributes.eps));
  });
}

}  // namespace trireme::cuda
