// Cross-entropy over chunks of rows: statistics of the logits, loss and gradient.
#include <algorithm>
#include <cfloat>

#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/kernel_shared.cuh"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

constexpr int kStatsThreads = 512;
constexpr int kBothThreads = 1024;
constexpr int kAhead = 4;  // packs loaded before the first is used
constexpr int kGradThreads = 256;
constexpr int kGradPerThread = 2;
constexpr int kLossThreads = 1024;
constexpr int32_t kSkipped = -100;
constexpr float kLog2E = 1.44269504088896341f;

/// exp(x - max) to 2 ulp, 0 where it is not normal. The difference is exact near the maximum, where
/// it matters.
__device__ float exp_of(float x, float max) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"((x - max) * kLog2E));
  return result;
}

/// A running maximum and the sum of exponentials relative to it. A maximum that starts finite
/// keeps -inf logits from making NaN; NaN and +inf do reach the sum.
struct Online {
  float max = -FLT_MAX;
  float sum = 0;

  template <int kCount>
  __device__ void take(const float (&x)[kCount]) {
    float largest = x[0];
#pragma unroll
    for (int k = 1; k < kCount; ++k) largest = fmaxf(largest, x[k]);
    if (largest > max) {
      sum *= exp_of(max, largest);
      max = largest;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += exp_of(x[k], max);
  }
  __device__ void merge(float other_max, float other_sum) {
    const float largest = fmaxf(max, other_max);
    sum = sum * exp_of(max, largest) + other_sum * exp_of(other_max, largest);
    max = largest;
  }
  /// The first `count` of a pack.
  template <typename T, int kCount>
  __device__ void take(const Pack<T, kCount>& pack, int count) {
    float x[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = pack[k];
    if (count < kCount) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (k >= count) x[k] = -INFINITY;
      }
    }
    take(x);
  }
  /// Over the warp, for lane 0.
  __device__ void merge_warp() {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other_max = __shfl_down_sync(kAllLanes, max, distance);
      const float other_sum = __shfl_down_sync(kAllLanes, sum, distance);
      merge(other_max, other_sum);
    }
  }
};

/// A block a row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kStatsThreads)
    stats_of_rows(Rows<float> stats, Rows<const T> logits, const int32_t* targets,
                  ops::HeldVocab held) {
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  float* out = stats[row];
  if (target == kSkipped) {
    if (threadIdx.x < 3) out[threadIdx.x] = threadIdx.x == 1 ? 1.0f : 0.0f;
    return;
  }
  const T* from = logits[row];
  const int64_t cols = held.count;
  const int64_t packs = cols / kCount;
  Online online;
  int64_t p = threadIdx.x;
  for (; p + (kAhead - 1) * kStatsThreads < packs; p += kAhead * kStatsThreads) {
    float x[kAhead * kCount];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const auto pack = load_pack<kCount>(from + (p + i * kStatsThreads) * kCount);
#pragma unroll
      for (int k = 0; k < kCount; ++k) x[i * kCount + k] = pack[k];
    }
    online.take(x);
  }
  for (; p < packs; p += kStatsThreads) {
    const auto pack = load_pack<kCount>(from + p * kCount);
    float x[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = pack[k];
    online.take(x);
  }
  for (int64_t c = packs * kCount + threadIdx.x; c < cols; c += kStatsThreads) {
    const float x[1] = {widen(from[c])};
    online.take(x);
  }
  online.merge_warp();
  constexpr int kWarps = kStatsThreads / 32;
  __shared__ float maxima[kWarps];
  __shared__ float sums[kWarps];
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = online.max;
    sums[threadIdx.x / 32] = online.sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) online.merge(maxima[w], sums[w]);
  out[0] = online.max;
  out[1] = online.sum;
  const int64_t column = held.index_of(target);
  out[2] = column >= 0 ? widen(from[column]) : 0.0f;
}

/// How many of the kCount columns of pack `p` lie below `end`.
template <int kCount>
__device__ int columns_below(int64_t end, int64_t p) {
  const int64_t left = end - p * kCount;
  return left >= kCount ? kCount : left > 0 ? static_cast<int>(left) : 0;
}

/// d_logits of a pack, of which `count` columns are not zero; `target` is the target's, or none of
/// them.
template <typename T, int kCount>
__device__ void store_gradient(T* to, const Pack<T, kCount>& logits, float max, float inverse,
                               int count, int64_t target) {
  float result[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) result[k] = exp_of(logits[k], max) * inverse;
  if (count < kCount) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k >= count) result[k] = 0.0f;
    }
  }
  if (target >= 0 && target < kCount) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k == target) result[k] -= 1.0f;
    }
  }
  store_pack(to, result);
}

/// Of the threads' statistics, for every thread of a block of kBothThreads.
__device__ Online merge_block(Online online) {
  constexpr int kWarps = kBothThreads / 32;
  __shared__ float maxima[kWarps];
  __shared__ float sums[kWarps];
  online.merge_warp();
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = online.max;
    sums[threadIdx.x / 32] = online.sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    Online all{maxima[threadIdx.x], sums[threadIdx.x]};
    all.merge_warp();
    __syncwarp();
    if (threadIdx.x == 0) {
      maxima[0] = all.max;
      sums[0] = all.sum;
    }
  }
  __syncthreads();
  return {maxima[0], sums[0]};
}

/// A block a row, which it reads once: packs below `num_kept` wait in shared memory for their
/// gradient, the few others in the cache. A thread sees only packs of its own.
template <typename T, int kCount>
__global__ void __launch_bounds__(kBothThreads)
    both_of_rows(Rows<float> stats, Rows<T> d_logits, Rows<const T> logits, const int32_t* targets,
                 int64_t cols, int64_t num_kept, ops::HeldVocab held) {
  const int64_t row = blockIdx.x;
  const int64_t packs = cols / kCount;
  const int32_t target = targets[row];
  const bool skipped = target == kSkipped;
  const int64_t column = held.index_of(target);  // -1 of a skipped row
  const T* from = logits[row];
  T* kept = reinterpret_cast<T*>(shared_floats());
  Online online;
  for (int64_t p = threadIdx.x; p < packs && !skipped; p += kAhead * kBothThreads) {
    Pack<T, kCount> read[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = p + i * kBothThreads;
      if (at < packs) read[i] = load_pack<kCount>(from + at * kCount);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = p + i * kBothThreads;
      if (at >= packs) continue;
      online.take(read[i], columns_below<kCount>(held.count, at));
      if (at < num_kept) store_pack(kept + at * kCount, read[i]);
    }
  }
  const float target_logit = threadIdx.x == 0 && column >= 0 ? widen(from[column]) : 0.0f;
  online = merge_block(online);
  if (threadIdx.x == 0) {
    stats[row][0] = skipped ? 0.0f : online.max;
    stats[row][1] = skipped ? 1.0f : online.sum;
    stats[row][2] = target_logit;
  }
  const float inverse = 1.0f / online.sum;
  const int64_t first_zero = skipped ? 0 : held.count;
  for (int64_t p = threadIdx.x; p < packs; p += kAhead * kBothThreads) {
    Pack<T, kCount> read[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = p + i * kBothThreads;
      if (at >= packs || skipped) continue;
      read[i] = load_pack<kCount>((at < num_kept ? kept : from) + at * kCount);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = p + i * kBothThreads;
      if (at >= packs) continue;
      store_gradient(d_logits[row] + at * kCount, read[i], online.max, inverse,
                     columns_below<kCount>(first_zero, at), column - at * kCount);
    }
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kGradThreads)
    gradient_of_rows(Rows<T> d_logits, Rows<const T> logits, Rows<const float> stats,
                     const int32_t* targets, int64_t num_rows, int64_t cols, ops::HeldVocab held) {
  const int64_t packs = cols / kCount;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kGradThreads * kGradPerThread) + threadIdx.x;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const int32_t target = targets[row];
    const bool skipped = target == kSkipped;
    const T* from = logits[row];
    Pack<T, kCount> read[kGradPerThread];
#pragma unroll
    for (int i = 0; i < kGradPerThread; ++i) {
      const int64_t p = first + i * kGradThreads;
      if (p < packs && !skipped) read[i] = load_pack<kCount>(from + p * kCount);
    }
    const float max = stats[row][0];
    const float inverse = 1.0f / stats[row][1];
    const int64_t column = held.index_of(target);  // -1 of a skipped row
    const int64_t first_zero = skipped ? 0 : held.count;
#pragma unroll
    for (int i = 0; i < kGradPerThread; ++i) {
      const int64_t p = first + i * kGradThreads;
      if (p >= packs) continue;
      store_gradient(d_logits[row] + p * kCount, read[i], max, inverse,
                     columns_below<kCount>(first_zero, p), column - p * kCount);
    }
  }
}

/// A thread a row.
__global__ void __launch_bounds__(kGradThreads)
    combine_rows(Rows<float> stats, Rows<const float> parts, const int32_t* targets, int64_t tokens,
                 int64_t num_parts) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kGradThreads + threadIdx.x;
  if (row >= tokens) return;
  float max = -FLT_MAX;
  for (int64_t part = 0; part < num_parts; ++part) max = fmaxf(max, parts[part * tokens + row][0]);
  float sum = 0;
  float target = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    const float* of_part = parts[part * tokens + row];
    sum += of_part[1] * exp_of(of_part[0], max);
    target += of_part[2];
  }
  const bool skipped = targets[row] == kSkipped;
  float* out = stats[row];
  out[0] = skipped ? 0.0f : max;
  out[1] = skipped ? 1.0f : sum;
  out[2] = skipped ? 0.0f : target;
}

/// One block; each thread adds every kLossThreads-th row, then the threads' sums are added in
/// order.
__global__ void __launch_bounds__(kLossThreads)
    loss_of_rows(double* sums, Rows<const float> stats, const int32_t* targets, int64_t num_rows,
                 bool accumulate) {
  double loss = 0;
  double num_targets = 0;
  for (int64_t row = threadIdx.x; row < num_rows; row += kLossThreads) {
    if (targets[row] == kSkipped) continue;
    const float* of_row = stats[row];
    loss += log(static_cast<double>(of_row[1])) + static_cast<double>(of_row[0]) -
            static_cast<double>(of_row[2]);
    num_targets += 1;
  }
  loss = row_sum(loss);
  num_targets = row_sum(num_targets);
  if (threadIdx.x != 0) return;
  sums[0] = accumulate ? sums[0] + loss : loss;
  sums[1] = accumulate ? sums[1] + num_targets : num_targets;
}

}  // namespace

namespace {

/// Shared memory that a block of both_of_rows may keep packs in: whole rounds of its threads.
int64_t kept_bytes() {
  constexpr int64_t kRound = kBothThreads * 16;
  constexpr int64_t kOther = 1024;  // merge_block's, and what the system keeps
  int device = 0;
  int most = 0;
  TRIREME_CUDA(cudaGetDevice(&device));
  TRIREME_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return (most - kOther) / kRound * kRound;
}

void stats_and_gradient(const ops::OpCall& call, cudaStream_t stream) {
  const TensorView& d_logits = call.args[1];
  const TensorView& logits = call.args[2];
  const auto fits = [&](int64_t count) { return all_fit(count, d_logits, logits); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    constexpr int64_t kPackBytes = A::kCount * int64_t{sizeof(T)};
    const auto kernel = both_of_rows<T, A::kCount>;
    const int64_t packs = logits.cols / A::kCount;
    const int64_t num_kept = std::min(packs, kept_bytes() / kPackBytes);
    allow_shared("xent_stats", kernel, num_kept * kPackBytes);
    launch("xent_stats", kernel,
           {dim3(blocks(logits.rows)), dim3(kBothThreads), num_kept * kPackBytes}, stream,
           rows_of<float>(call.args[0]), rows_of<T>(d_logits), rows_of<const T>(logits),
           data_of<const int32_t>(call.args[3]), logits.cols, num_kept,
           call.attributes.held_vocab(logits.cols));
  });
}

}  // namespace

void xent_stats(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& logits = call.args[2];
  if (logits.rows == 0) return;
  if (call.args[1].present()) {
    stats_and_gradient(call, stream);
    return;
  }
  // What whole packs leave over of a row is read by elements.
  const auto fits = [&](int64_t count) {
    TensorView whole = logits;
    whole.cols = count;
    return fits_packs(whole, count);
  };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("xent_stats", stats_of_rows<T, A::kCount>,
           {dim3(blocks(logits.rows)), dim3(kStatsThreads)}, stream, rows_of<float>(call.args[0]),
           rows_of<const T>(logits), data_of<const int32_t>(call.args[3]),
           call.attributes.held_vocab(logits.cols));
  });
}

void xent_combine(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& stats = call.args[0];
  const TensorView& parts = call.args[1];
  if (stats.rows == 0) return;
  launch("xent_combine", combine_rows,
         {dim3(blocks(ceil_div(stats.rows, int64_t{kGradThreads}))), dim3(kGradThreads)}, stream,
         rows_of<float>(stats), rows_of<const float>(parts), data_of<const int32_t>(call.args[2]),
         stats.rows, parts.rows / stats.rows);
}

void xent_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& d_logits = call.args[0];
  const TensorView& logits = call.args[1];
  if (logits.rows == 0 || logits.cols == 0) return;
  const auto fits = [&](int64_t count) { return all_fit(count, d_logits, logits); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const int64_t strips = ceil_div(logits.cols, A::kCount * kGradThreads * kGradPerThread);
    launch("xent_grad", gradient_of_rows<T, A::kCount>,
           {dim3(blocks(strips), some_blocks(logits.rows)), dim3(kGradThreads)}, stream,
           rows_of<T>(d_logits), rows_of<const T>(logits), rows_of<const float>(call.args[2]),
           data_of<const int32_t>(call.args[3]), logits.rows, logits.cols,
           call.attributes.held_vocab(logits.cols));
  });
}

void xent_loss(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const bool accumulate = call.law == ops::Law::add;
  const TensorView& stats = call.args[1];
  if (stats.rows == 0 && accumulate) return;
  launch("xent_loss", loss_of_rows, {dim3(1), dim3(kLossThreads)}, stream,
         data_of<double>(call.args[0]), rows_of<const float>(stats),
         data_of<const int32_t>(call.args[2]), stats.rows, accumulate);
}

}  // namespace trireme::cuda
