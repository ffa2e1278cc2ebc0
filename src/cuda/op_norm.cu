// RMS norm and its input gradient. A row stays in the registers of one warp or one block between
// its sum and its result, so that memory is read once.
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
constexpr int kGradHeld = 2;

/// A warp for each of four rows where that is enough, else a block a row.
Grid row_grid(int64_t rows, int64_t packs, int held) {
  const int64_t wanted = (packs + held - 1) / held;
  const int64_t threads = wanted <= 32            ? 32
                          : wanted >= kMaxThreads ? kMaxThreads
                                                  : (wanted + 31) / 32 * 32;
  const int64_t rows_a_block = threads == 32 ? 4 : 1;
  return {dim3(blocks((rows + rows_a_block - 1) / rows_a_block)),
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

template <typename T>
struct NormGradRows {
  Rows<T> dx;
  Rows<const T> dy;
  Rows<const T> x;
  const T* gain;
  const float* rstd;
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_grad_rows(NormGradRows<T> args, int64_t num_rows, int cols, bool accumulate) {
  using Elements = Pack<T, kCount>;
  const int64_t row = row_of_thread();
  if (row >= num_rows) return;
  const T* dy = args.dy[row];
  const T* x = args.x[row];
  const int packs = cols / kCount;
  Elements slopes[kGradHeld];
  Elements values[kGradHeld];
  Elements gains[kGradHeld];
  Elements before[kGradHeld];
#pragma unroll
  for (int i = 0; i < kGradHeld; ++i) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p >= packs) continue;
    slopes[i] = load_pack<kCount>(dy + p * kCount);
    values[i] = load_pack<kCount>(x + p * kCount);
    gains[i] = load_pack<kCount>(args.gain + p * kCount);
    if (accumulate) before[i] = load_pack<kCount>(args.dx[row] + p * kCount);
  }
  float sum = 0;
  const auto add_products = [&](const Elements& slope, const Elements& value,
                                const Elements& factor) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum = fmaf(slope[k] * factor[k], value[k], sum);
  };
#pragma unroll
  for (int i = 0; i < kGradHeld; ++i) {
    if (threadIdx.x + i * blockDim.x < packs) add_products(slopes[i], values[i], gains[i]);
  }
  const int rest = threadIdx.x + kGradHeld * blockDim.x;
  for (int p = rest; p < packs; p += blockDim.x) {
    add_products(load_pack<kCount>(dy + p * kCount), load_pack<kCount>(x + p * kCount),
                 load_pack<kCount>(args.gain + p * kCount));
  }
  const float scale = args.rstd[row];
  const float mean = row_sum(sum) / static_cast<float>(cols);
  const float shrink = scale * scale * mean;

  const auto write = [&](int p, const Elements& slope, const Elements& value,
                         const Elements& factor, const Elements& old) {
    float result[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result[k] = scale * (slope[k] * factor[k] - value[k] * shrink);
      if (accumulate) result[k] += old[k];
    }
    store_pack(args.dx[row] + p * kCount, result);
  };
#pragma unroll
  for (int i = 0; i < kGradHeld; ++i) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) write(p, slopes[i], values[i], gains[i], before[i]);
  }
  for (int p = rest; p < packs; p += blockDim.x) {
    Elements old;
    if (accumulate) old = load_pack<kCount>(args.dx[row] + p * kCount);
    write(p, load_pack<kCount>(dy + p * kCount), load_pack<kCount>(x + p * kCount),
          load_pack<kCount>(args.gain + p * kCount), old);
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
    launch("rms_norm", rms_norm_rows<T, A::kCount>, row_grid(x.rows, x.cols / A::kCount, kHeld),
           stream, rows_of<T>(y), data_of<float>(rstd), rows_of<const T>(x), data_of<const T>(gain),
           x.rows, narrow<int>(x.cols), static_cast<float>(call.attributes.eps));
  });
}

void rms_norm_input_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& dx = call.args[0];
  const TensorView& dy = call.args[1];
  const TensorView& x = call.args[2];
  const TensorView& gain = call.args[3];
  if (x.rows == 0 || x.cols == 0) return;
  const auto fits = [&](int64_t count) { return all_fit(count, dx, dy, x, gain); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const NormGradRows<T> args{rows_of<T>(dx), rows_of<const T>(dy), rows_of<const T>(x),
                               data_of<const T>(gain), data_of<const float>(call.args[4])};
    launch("rms_norm_input_grad", rms_norm_grad_rows<T, A::kCount>,
           row_grid(x.rows, x.cols / A::kCount, kGradHeld), stream, args, x.rows,
           narrow<int>(x.cols), call.law == ops::Law::add);
  });
}

}  // namespace trireme::cuda
