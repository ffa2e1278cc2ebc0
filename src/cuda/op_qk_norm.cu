// RMS norm of query and key heads, and its gradients. A warp holds one head in registers, so that
// memory is read once.
#include <algorithm>

#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/op_bodies.h"
#include "cuda/op_sizing.h"

namespace trireme::cuda {

namespace {

constexpr int kLanes = 32;
constexpr int kWarps = 8;  // of a block
constexpr int kSumThreads = 128;

/// How a row of qkv is made of heads.
struct HeadShape {
  int64_t num_rows;
  int query_heads;
  int normalised;  // heads: queries, then keys
  int heads;       // those that are written: in place, values stay where they are
  int head_dim;
  float eps;
};

/// The elements of one head, spread over a warp: lane l holds packs l, l + 32, ...
template <typename T, int kCount, int kHeld>
struct Head {
  Pack<T, kCount> packs[kHeld] = {};

  /// Offset of the lane's i-th pack in the head, or -1.
  __device__ static int at(int i, int head_dim) {
    const int offset = (static_cast<int>(threadIdx.x) + i * kLanes) * kCount;
    return offset < head_dim ? offset : -1;
  }
  /// Elements beyond the head are zero.
  __device__ Head(const T* from, int head_dim) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (at(i, head_dim) >= 0) packs[i] = load_pack<kCount>(from + at(i, head_dim));
    }
  }
  /// Sum over the head of body(pack index, element index), for every lane.
  template <typename Body>
  __device__ static float sum(const Body& body) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) total += body(i, k);
    }
    return warp_sum(total);
  }
  __device__ float rstd(int head_dim, float eps) const {
    const float squares = sum([&](int i, int k) { return packs[i][k] * packs[i][k]; });
    return 1.0f / sqrtf(squares / static_cast<float>(head_dim) + eps);
  }
  /// to = body(pack index, element index).
  template <typename Body>
  __device__ static void store(T* to, int head_dim, const Body& body) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (at(i, head_dim) < 0) continue;
      float values[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = body(i, k);
      store_pack(to + at(i, head_dim), values);
    }
  }
};

/// The head of this warp; false beyond the last.
struct Place {
  int64_t row;
  int head;
  __device__ bool find(const HeadShape& shape) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
    row = index / shape.heads;
    head = static_cast<int>(index % shape.heads);
    return row < shape.num_rows;
  }
};

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kLanes* kWarps)
    normalise_heads(Rows<T> y, Rows<const T> qkv, Rows<const T> gain, HeadShape shape) {
  using Elements = Head<T, kCount, kHeld>;
  Place place;
  if (!place.find(shape)) return;
  const int head_dim = shape.head_dim;
  const int64_t column = static_cast<int64_t>(place.head) * head_dim;
  const Elements x(qkv[place.row] + column, head_dim);
  T* to = y[place.row] + column;
  if (place.head >= shape.normalised) {
    Elements::store(to, head_dim, [&](int i, int k) { return x.packs[i][k]; });
    return;
  }
  const Elements factor(gain[place.head < shape.query_heads ? 0 : 1], head_dim);
  const float rstd = x.rstd(head_dim, shape.eps);
  Elements::store(to, head_dim,
                  [&](int i, int k) { return factor.packs[i][k] * (x.packs[i][k] * rstd); });
}

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kLanes* kWarps)
    gradients_of_heads(Rows<T> d_qkv, Rows<const T> d_y, Rows<const T> qkv, Rows<const T> gain,
                       HeadShape shape) {
  using Elements = Head<T, kCount, kHeld>;
  Place place;
  if (!place.find(shape)) return;
  const int head_dim = shape.head_dim;
  const int64_t column = static_cast<int64_t>(place.head) * head_dim;
  const Elements slope(d_y[place.row] + column, head_dim);
  T* to = d_qkv[place.row] + column;
  if (place.head >= shape.normalised) {
    Elements::store(to, head_dim, [&](int i, int k) { return slope.packs[i][k]; });
    return;
  }
  const Elements x(qkv[place.row] + column, head_dim);
  const Elements factor(gain[place.head < shape.query_heads ? 0 : 1], head_dim);
  const float rstd = x.rstd(head_dim, shape.eps);
  const float products = Elements::sum(
      [&](int i, int k) { return slope.packs[i][k] * factor.packs[i][k] * x.packs[i][k]; });
  const float shrink = rstd * rstd * (products / static_cast<float>(head_dim));
  Elements::store(to, head_dim, [&](int i, int k) {
    return rstd * (slope.packs[i][k] * factor.packs[i][k] - x.packs[i][k] * shrink);
  });
}

/// parts(slices, 2, head_dim): sums of a slice of rows. blockIdx (slice, row of the gain).
template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kLanes* kWarps)
    sum_heads(float* parts, Rows<const T> d_y, Rows<const T> qkv, HeadShape shape,
              int64_t slice_rows) {
  using Elements = Head<T, kCount, kHeld>;
  const int head_dim = shape.head_dim;
  const int first_head = blockIdx.y == 0 ? 0 : shape.query_heads;
  const int num_heads = (blockIdx.y == 0 ? shape.query_heads : shape.normalised) - first_head;
  const int64_t begin = blockIdx.x * slice_rows;
  const int64_t count = min(slice_rows, shape.num_rows - begin) * num_heads;
  float sums[kHeld][kCount] = {};
#pragma unroll 2
  for (int64_t item = threadIdx.y; item < count; item += kWarps) {
    const int64_t row = begin + item / num_heads;
    const int64_t column = (first_head + item % num_heads) * head_dim;
    const Elements x(qkv[row] + column, head_dim);
    const Elements slope(d_y[row] + column, head_dim);
    const float rstd = x.rstd(head_dim, shape.eps);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sums[i][k] = fmaf(slope.packs[i][k], x.packs[i][k] * rstd, sums[i][k]);
      }
    }
  }
  __shared__ float of_warps[kWarps][kHeld * kCount * kLanes];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      of_warps[threadIdx.y][(i * kCount + k) * kLanes + threadIdx.x] = sums[i][k];
    }
  }
  __syncthreads();
  float* to = parts + (static_cast<int64_t>(blockIdx.x) * 2 + blockIdx.y) * head_dim;
  for (int c = threadIdx.y * kLanes + threadIdx.x; c < head_dim; c += kLanes * kWarps) {
    const int pack = c / kCount;
    const int place = (pack / kLanes * kCount + c % kCount) * kLanes + pack % kLanes;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][place];
    to[c] = sum;
  }
}

/// d_gain law = the slices' sums in order. A thread an element; blockIdx.y: row of the gain.
__global__ void __launch_bounds__(kSumThreads)
    add_slices(Rows<float> d_gain, const float* parts, int64_t num_slices, int head_dim,
               bool accumulate) {
  const int column = static_cast<int>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (column >= head_dim) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t slice = 0; slice < num_slices; ++slice) {
    sum += parts[(slice * 2 + blockIdx.y) * head_dim + column];
  }
  float* to = d_gain[blockIdx.y] + column;
  *to = accumulate ? *to + sum : sum;
}

HeadShape shape_of(const ops::OpCall& call, int64_t num_rows, bool in_place) {
  const auto& a = call.attributes;
  HeadShape shape;
  shape.num_rows = num_rows;
  shape.query_heads = a.heads;
  shape.normalised = a.heads + a.kv_heads;
  shape.heads = shape.normalised + (in_place ? 0 : a.kv_heads);
  shape.head_dim = a.head_dim;
  shape.eps = static_cast<float>(a.eps);
  return shape;
}

Grid head_grid(const HeadShape& shape) {
  return {dim3(blocks(ceil_div(shape.num_rows * shape.heads, int64_t{kWarps}))),
          dim3(kLanes, kWarps)};
}

/// Packs that a lane holds beside the element type and the elements of a pack.
template <typename A, int kPacks>
struct HeadAccess : A {
  static constexpr int kHeld = kPacks;
};

/// body(HeadAccess) with packs of four elements where all views allow, and room for a head.
template <typename Body, typename... Views>
void with_heads(const ops::OpCall& call, const Body& body, const Views&... views) {
  constexpr int kMost = 8;
  const int64_t head_dim = call.attributes.head_dim;
  const auto held = [&]<typename A>(A) {
    const int64_t packs = ceil_div(head_dim, int64_t{A::kCount});
    check(packs <= kMost * kLanes, "{}: a head of {} elements is too large",
          ops::name_of(call.kind), head_dim);
    if (packs <= kLanes) return body(HeadAccess<A, 1>{});
    body(HeadAccess<A, kMost>{});
  };
  const bool fours = head_dim % 4 == 0 && all_fit(4, views...);
  if (call.dtype == DType::bf16) return fours ? held(Access<Bf16, 4>{}) : held(Access<Bf16, 1>{});
  return fours ? held(Access<float, 4>{}) : held(Access<float, 1>{});
}

}  // namespace

void qk_norm(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& y = call.args[0];
  const TensorView& qkv = call.args[1];
  const TensorView& gain = call.args[2];
  if (qkv.rows == 0) return;
  const HeadShape shape = shape_of(call, qkv.rows, y.data == qkv.data);
  const auto body = [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("qk_norm", normalise_heads<T, A::kCount, A::kHeld>, head_grid(shape), stream,
           rows_of<T>(y), rows_of<const T>(qkv), rows_of<const T>(gain), shape);
  };
  with_heads(call, body, y, qkv, gain);
}

void qk_norm_input_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& d_qkv = call.args[0];
  const TensorView& d_y = call.args[1];
  const TensorView& qkv = call.args[2];
  const TensorView& gain = call.args[3];
  if (qkv.rows == 0) return;
  const HeadShape shape = shape_of(call, qkv.rows, d_qkv.data == d_y.data);
  const auto body = [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("qk_norm_input_grad", gradients_of_heads<T, A::kCount, A::kHeld>, head_grid(shape),
           stream, rows_of<T>(d_qkv), rows_of<const T>(d_y), rows_of<const T>(qkv),
           rows_of<const T>(gain), shape);
  };
  with_heads(call, body, d_qkv, d_y, qkv, gain);
}

void qk_norm_weight_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& d_gain = call.args[0];
  const TensorView& d_y = call.args[1];
  const TensorView& qkv = call.args[2];
  const bool accumulate = call.law == ops::Law::add;
  if (qkv.rows == 0 && accumulate) return;
  const HeadShape shape = shape_of(call, qkv.rows, true);
  const ColumnSlices slices(qkv.rows);
  auto* parts = static_cast<float*>(call.workspace);
  const auto body = [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("qk_norm_weight_grad", sum_heads<T, A::kCount, A::kHeld>,
           {dim3(blocks(slices.count), 2), dim3(kLanes, kWarps)}, stream, parts,
           rows_of<const T>(d_y), rows_of<const T>(qkv), shape, slices.rows);
  };
  if (slices.count > 0) with_heads(call, body, d_y, qkv);
  launch("sums of slices", add_slices,
         {dim3(blocks(ceil_div(d_gain.cols, int64_t{kSumThreads})), 2), dim3(kSumThreads)}, stream,
         rows_of<float>(d_gain), parts, slices.count, shape.head_dim, accumulate);
}

}  // namespace trireme::cuda
