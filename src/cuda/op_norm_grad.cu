// Gradients of RMS norms. A team of warps keeps a row in registers between its sum and its result,
// and the sums of its columns from row to row, so that memory is read once for both gradients.
#include <algorithm>

#include "base/math.h"
#include "cuda/fill.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/op_bodies.h"
#include "cuda/op_sizing.h"
#include "cuda/sum_columns.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 512;  // of a block, at most
constexpr int kHeld = 2;       // packs that a thread keeps
constexpr int64_t kMostPacks = int64_t{kThreads} * kHeld;
constexpr int kLongThreads = 1024;

template <typename T>
struct NormGrad {
  Rows<T> dx;
  Rows<const T> dy;
  Rows<const T> x;
  const T* gain;
  const float* rstd;
  Rows<const T> before;  // added to dx; null: nothing is
};

/// The row's part that is added over the columns: dy * gain * x.
template <typename T, int kCount>
__device__ float add_products(float sum, const Pack<T, kCount>& dy, const Pack<T, kCount>& x,
                              const Pack<T, kCount>& gain) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum = fmaf(dy[k] * gain[k], x[k], sum);
  return sum;
}

/// dx of one pack; `shrink` is rstd^2 * mean(dy * gain * x).
template <typename T, int kCount>
__device__ void write_pack(T* to, const Pack<T, kCount>& dy, const Pack<T, kCount>& x,
                           const Pack<T, kCount>& gain, float rstd, float shrink, bool adds,
                           const Pack<T, kCount>& before) {
  float result[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float slope = dy[k] * gain[k];
    result[k] = rstd * fmaf(-x[k], shrink, slope);
    if (adds) result[k] += before[k];
  }
  store_pack(to, result);
}

/// Sum over the threads of a team (threadIdx.x), for each of them. All threads of the block call
/// it; `turn` alternates, so that one barrier is enough.
__device__ float team_sum(float value, int turn) {
  constexpr int kMostTeams = kThreads / 64;
  constexpr int kMostWarps = kThreads / 32;
  value = warp_sum(value);
  if (blockDim.x == 32) return value;
  __shared__ float of_warps[2][kMostTeams][kMostWarps];
  float* const mine = of_warps[turn][threadIdx.y];
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) mine[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? mine[lane] : 0.0f);
}

/// What a thread keeps of a row. The gain is in the first cache.
template <typename T, int kCount>
struct Held {
  Pack<T, kCount> dy[kHeld], x[kHeld], before[kHeld];
};

/// Pack `i` of this thread.
__device__ int pack_of(int i) { return static_cast<int>(threadIdx.x + i * blockDim.x); }

/// Adds the teams' sums in order: parts(cols) = sums over teams.
template <int kCount>
__device__ void write_part(float* parts, const float (&sums)[kHeld][kCount], int cols) {
  __shared__ float of_teams[kThreads * kHeld * kCount];
  const int columns = static_cast<int>(blockDim.x) * kHeld * kCount;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      of_teams[static_cast<int>(threadIdx.y) * columns + pack_of(i) * kCount + k] = sums[i][k];
    }
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int c = thread; c < cols; c += static_cast<int>(blockDim.x * blockDim.y)) {
    float total = 0;
    for (int team = 0; team < static_cast<int>(blockDim.y); ++team) {
      total += of_teams[team * columns + c];
    }
    parts[c] = total;
  }
}

/// kGain: parts(gridDim.x, cols) = sums over a block's rows of dy * x * rstd. kInput: dx.
/// blockDim (threads of a row, teams); team t of block b has rows b * teams + t and so on.
template <typename T, int kCount, bool kGain, bool kInput>
__global__ void __launch_bounds__(kThreads, 2)
    norm_grad_slices(float* parts, NormGrad<T> args, int64_t num_rows, int cols) {
  const int packs = cols / kCount;
  const bool adds = args.before.data != nullptr;
  float sums[kHeld][kCount] = {};
  int turn = 0;
  const int64_t teams = blockDim.y;
  for (int64_t first = blockIdx.x * teams; first < num_rows; first += gridDim.x * teams) {
    const int64_t row = first + threadIdx.y;
    const int end = row < num_rows ? packs : 0;
    const float rstd = row < num_rows ? args.rstd[row] : 0.0f;
    Held<T, kCount> held;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int p = pack_of(i);
      if (p >= end) continue;
      held.dy[i] = load_pack<kCount>(args.dy[row] + p * kCount);
      held.x[i] = load_pack<kCount>(args.x[row] + p * kCount);
      if (kInput && adds) held.before[i] = load_pack<kCount>(args.before[row] + p * kCount);
    }
    float products = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int p = pack_of(i);
      if (p >= end) continue;
      if constexpr (kInput) {
        products = add_products(products, held.dy[i], held.x[i],
                                load_pack<kCount>(args.gain + p * kCount));
      }
      if constexpr (kGain) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          sums[i][k] = fmaf(held.dy[i][k] * held.x[i][k], rstd, sums[i][k]);
        }
      }
    }
    if constexpr (kInput) {
      const float shrink = rstd * rstd * (team_sum(products, turn) / static_cast<float>(cols));
      turn ^= 1;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int p = pack_of(i);
        if (p >= end) continue;
        write_pack(args.dx[row] + p * kCount, held.dy[i], held.x[i],
                   load_pack<kCount>(args.gain + p * kCount), rstd, shrink, adds, held.before[i]);
      }
    }
  }
  if constexpr (kGain) write_part(parts + static_cast<int64_t>(blockIdx.x) * cols, sums, cols);
}

/// dx, a block a row of any length, which is read twice.
template <typename T, int kCount>
__global__ void __launch_bounds__(kLongThreads)
    norm_input_grad_rows(NormGrad<T> args, int cols) {
  const int64_t row = blockIdx.x;
  const T* dy = args.dy[row];
  const T* x = args.x[row];
  const int packs = cols / kCount;
  float products = 0;
  for (int p = threadIdx.x; p < packs; p += blockDim.x) {
    products = add_products(products, load_pack<kCount>(dy + p * kCount),
                            load_pack<kCount>(x + p * kCount),
                            load_pack<kCount>(args.gain + p * kCount));
  }
  const float rstd = args.rstd[row];
  const float shrink = rstd * rstd * (row_sum(products) / static_cast<float>(cols));
  const bool adds = args.before.data != nullptr;
  for (int p = threadIdx.x; p < packs; p += blockDim.x) {
    Pack<T, kCount> before;
    if (adds) before = load_pack<kCount>(args.before[row] + p * kCount);
    write_pack(args.dx[row] + p * kCount, load_pack<kCount>(dy + p * kCount),
               load_pack<kCount>(x + p * kCount), load_pack<kCount>(args.gain + p * kCount), rstd,
               shrink, adds, before);
  }
}

/// Operands of any of the three calls; absent ones are of what the call does not compute.
struct NormViews {
  TensorView d_gain, dx, dy, x, gain, rstd, before;

  bool fit(int64_t count) const {
    const auto fits = [count](const TensorView& view) {
      return !view.present() || fits_packs(view, count);
    };
    return fits(dx) && fits(dy) && fits(x) && fits(gain) && fits(before);
  }
  template <typename T>
  NormGrad<T> args() const {
    return {rows_of<T>(dx),          rows_of<const T>(dy),      rows_of<const T>(x),
            data_of<const T>(gain), data_of<const float>(rstd), rows_of<const T>(before)};
  }
};

/// Rows of at most kMostPacks packs.
template <typename T, int kCount>
void in_slices(const NormViews& v, const ops::OpCall& call, cudaStream_t stream) {
  const int64_t width = round_up(ceil_div(v.x.cols / kCount, kHeld), 32);
  const int64_t teams = kThreads / width;
  const int64_t slices = std::min(NormSlices::kMost, ceil_div(v.x.rows, teams));
  const Grid grid{dim3(blocks(slices)),
                  dim3(static_cast<unsigned>(width), static_cast<unsigned>(teams))};
  const auto kernel = !v.dx.present()       ? norm_grad_slices<T, kCount, true, false>
                      : v.d_gain.present() ? norm_grad_slices<T, kCount, true, true>
                                           : norm_grad_slices<T, kCount, false, true>;
  auto* parts = static_cast<float*>(call.workspace);
  launch("gradients of rms_norm", kernel, grid, stream, parts, v.args<T>(), v.x.rows,
         narrow<int>(v.x.cols));
  if (v.d_gain.present()) {
    add_slices(v.d_gain, parts, slices, call.law == ops::Law::add, stream);
  }
}

template <typename T, int kCount>
void input_grad_in_rows(const NormViews& v, cudaStream_t stream) {
  const int64_t packs = v.x.cols / kCount;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(kLongThreads, round_up(ceil_div(packs, kHeld), 32)));
  launch("rms_norm_input_grad", norm_input_grad_rows<T, kCount>,
         {dim3(blocks(v.x.rows)), dim3(threads)}, stream, v.args<T>(), narrow<int>(v.x.cols));
}

void gradients(const NormViews& v, const ops::OpCall& call, cudaStream_t stream) {
  if (v.x.cols == 0) return;
  if (v.x.rows == 0) {
    if (v.d_gain.present() && call.law == ops::Law::set) zero_rows(v.d_gain, stream);
    return;
  }
  with_access(call.dtype, [&](int64_t count) { return v.fit(count); }, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    if (v.x.cols / A::kCount <= kMostPacks) return in_slices<T, A::kCount>(v, call, stream);
    if (v.d_gain.present()) {  // first: dx may take the place of dy
      sum_norm_columns(call, v.d_gain, v.dy, v.x, v.rstd, stream);
    }
    if (v.dx.present()) input_grad_in_rows<T, A::kCount>(v, stream);
  });
}

}  // namespace

void rms_norm_input_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.args;
  const TensorView before = call.law == ops::Law::add ? a[0] : TensorView{};
  gradients({{}, a[0], a[1], a[2], a[3], a[4], before}, call, stream);
}

void rms_norm_weight_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.args;
  gradients({a[0], {}, a[1], a[2], {}, a[3], {}}, call, stream);
}

void rms_norm_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.args;
  gradients({a[0], a[1], a[2], a[3], a[4], a[5], a[6]}, call, stream);
}

}  // namespace trireme::cuda
