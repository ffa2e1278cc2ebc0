// Attention and its gradient, plainly: each warp owns kOwned rows, and meets 32 rows of the other
// side at a time, one a lane.
//
// Forward and dQ own queries and meet keys; dK and dV own keys and meet the queries of their whole
// group. Each result has one owner and one order of summation.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/math.h"
#include "cuda/attention_kernels.h"
#include "cuda/fill.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/kernel_shared.cuh"

namespace trireme::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kOwned = 4;               // rows of a warp
constexpr int kRows = kWarps * kOwned;  // rows of a block
constexpr int kMet = 32;                // rows met at a time
constexpr int kThreads = kWarps * 32;
constexpr int64_t kMostHeadDim = 256;

/// What all kernels know.
struct Shape {
  const int32_t* cu_seqlens;
  int head_dim;
  int heads;
  int kv_heads;
  int window;  // 0: all keys
  float scale;

  __device__ int group() const { return heads / kv_heads; }
  __device__ bool visible(int query, int key, int length) const {
    return key <= query && query < length && (window == 0 || key > query - window);
  }
};

/// One block's place: rows [first, first + kRows) of a sequence.
struct Place {
  int64_t start;  // of the sequence
  int length;
  int first;
  int head;

  __device__ Place(const Shape& shape)
      : start(shape.cu_seqlens[blockIdx.z]),
        length(shape.cu_seqlens[blockIdx.z + 1] - shape.cu_seqlens[blockIdx.z]),
        first(static_cast<int>(blockIdx.x) * kRows),
        head(static_cast<int>(blockIdx.y)) {}
};

/// Copies `count` rows of head_dim elements from `first` of a sequence; rows beyond its end are 0.
template <typename T>
__device__ void load_rows(float* to, int to_stride, Rows<const T> from, int64_t column,
                          const Place& place, int first, int count, int head_dim) {
  for (int i = threadIdx.x; i < count * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int d = i % head_dim;
    const bool exists = first + row < place.length;
    to[row * to_stride + d] = exists ? widen(from[place.start + first + row][column + d]) : 0.0f;
  }
}

/// dots[r] = own row r · met row of this lane.
__device__ void dot_rows(float (&dots)[kOwned], const float* owned, const float* met,
                         int head_dim) {
#pragma unroll
  for (int r = 0; r < kOwned; ++r) dots[r] = 0;
  for (int d = 0; d < head_dim; ++d) {
    const float m = met[d];
#pragma unroll
    for (int r = 0; r < kOwned; ++r) dots[r] = fmaf(owned[r * head_dim + d], m, dots[r]);
  }
}

/// sums[r][s] += sum over lanes j of weights[r] of lane j * met row j, columns lane + 32 s.
template <int kSlices>
__device__ void add_rows(float (&sums)[kOwned][kSlices], const float (&weights)[kOwned],
                         const float* met, int met_stride, int head_dim) {
  const int lane = threadIdx.x % 32;
  for (int j = 0; j < kMet; ++j) {
    float weight[kOwned];
#pragma unroll
    for (int r = 0; r < kOwned; ++r) weight[r] = __shfl_sync(kAllLanes, weights[r], j);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      const int column = lane + 32 * s;
      const float value = column < head_dim ? met[j * met_stride + column] : 0.0f;
#pragma unroll
      for (int r = 0; r < kOwned; ++r) sums[r][s] = fmaf(weight[r], value, sums[r][s]);
    }
  }
}

template <typename T, int kSlices>
__device__ void store_rows(Rows<T> to, int64_t column, const Place& place, int first,
                           const float (&sums)[kOwned][kSlices], const float (&factors)[kOwned],
                           int head_dim) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    if (first + r >= place.length) continue;
    T* row = to[place.start + first + r] + column;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      if (lane + 32 * s < head_dim) row[lane + 32 * s] = narrow_to<T>(sums[r][s] * factors[r]);
    }
  }
}

template <typename T>
struct ForwardArgs {
  Rows<T> out;
  Rows<float> lse;
  Rows<const T> qkv;
};

/// blockIdx (rows, head, sequence).
template <typename T, int kSlices>
__global__ void __launch_bounds__(kThreads) attend(ForwardArgs<T> args, Shape shape) {
  const Place place(shape);
  if (place.first >= place.length) return;
  const int head_dim = shape.head_dim;
  const int stride = head_dim + 1;  // lanes read different rows of one column
  float* queries = shared_floats();
  float* keys = queries + kRows * head_dim;
  float* values = keys + kMet * stride;
  const int64_t key_column =
      static_cast<int64_t>(shape.heads + place.head / shape.group()) * head_dim;
  const int64_t value_column = key_column + static_cast<int64_t>(shape.kv_heads) * head_dim;
  const int64_t query_column = static_cast<int64_t>(place.head) * head_dim;
  load_rows(queries, head_dim, args.qkv, query_column, place, place.first, kRows, head_dim);

  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 * kOwned;  // of the block
  float maxima[kOwned];
  float totals[kOwned] = {};
  float sums[kOwned][kSlices] = {};
#pragma unroll
  for (int r = 0; r < kOwned; ++r) maxima[r] = -INFINITY;

  const int oldest = shape.window > 0 ? max(0, place.first - shape.window + 1) : 0;
  const int end = min(place.length, place.first + kRows);
  for (int first = oldest / kMet * kMet; first < end; first += kMet) {
    __syncthreads();
    load_rows(keys, stride, args.qkv, key_column, place, first, kMet, head_dim);
    load_rows(values, stride, args.qkv, value_column, place, first, kMet, head_dim);
    __syncthreads();
    float weights[kOwned];
    dot_rows(weights, queries + own * head_dim, keys + lane * stride, head_dim);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      const bool seen = shape.visible(place.first + own + r, first + lane, place.length);
      const float score = seen ? weights[r] * shape.scale : -INFINITY;
      const float largest = fmaxf(maxima[r], warp_max(score));
      const float base = largest == -INFINITY ? 0.0f : largest;
      const float shrink = expf(maxima[r] - base);
      weights[r] = expf(score - base);
      totals[r] = totals[r] * shrink + warp_sum(weights[r]);
      maxima[r] = largest;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) sums[r][s] *= shrink;
    }
    add_rows(sums, weights, values, stride, head_dim);
  }
  float inverses[kOwned];
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    inverses[r] = 1.0f / totals[r];
    const int query = place.first + own + r;
    if (lane == 0 && query < place.length) {
      args.lse[place.head][place.start + query] = maxima[r] + logf(totals[r]);
    }
  }
  store_rows(args.out, query_column, place, place.first + own, sums, inverses, head_dim);
}

template <typename T>
struct BackwardArgs {
  Rows<T> d_qkv;
  Rows<const T> d_out;
  Rows<const T> qkv;
  Rows<const T> out;
  Rows<const float> lse;
  float* row_sums;  // (tokens, heads): out · d_out of each head
};

/// A warp for each token and head; blockIdx.x counts tokens times heads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_rows(BackwardArgs<T> args, int64_t tokens, int heads, int head_dim) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= tokens * heads) return;
  const int64_t token = item / heads;
  const int64_t column = item % heads * head_dim;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < head_dim; d += 32) {
    sum = fmaf(widen(args.out[token][column + d]), widen(args.d_out[token][column + d]), sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) args.row_sums[item] = sum;
}

/// dQ of kRows queries of a head. blockIdx (rows, head, sequence).
template <typename T, int kSlices>
__global__ void __launch_bounds__(kThreads) query_gradient(BackwardArgs<T> args, Shape shape) {
  const Place place(shape);
  if (place.first >= place.length) return;
  const int head_dim = shape.head_dim;
  const int stride = head_dim + 1;
  float* queries = shared_floats();
  float* d_out = queries + kRows * head_dim;
  float* keys = d_out + kRows * head_dim;
  float* values = keys + kMet * stride;
  const int64_t key_column =
      static_cast<int64_t>(shape.heads + place.head / shape.group()) * head_dim;
  const int64_t value_column = key_column + static_cast<int64_t>(shape.kv_heads) * head_dim;
  const int64_t query_column = static_cast<int64_t>(place.head) * head_dim;
  load_rows(queries, head_dim, args.qkv, query_column, place, place.first, kRows, head_dim);
  load_rows(d_out, head_dim, args.d_out, query_column, place, place.first, kRows, head_dim);

  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 * kOwned;
  float lse[kOwned] = {};
  float row_sums[kOwned] = {};
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    const int query = place.first + own + r;
    if (query >= place.length) continue;
    lse[r] = args.lse[place.head][place.start + query];
    row_sums[r] = args.row_sums[(place.start + query) * shape.heads + place.head];
  }
  float sums[kOwned][kSlices] = {};
  const int oldest = shape.window > 0 ? max(0, place.first - shape.window + 1) : 0;
  const int end = min(place.length, place.first + kRows);
  for (int first = oldest / kMet * kMet; first < end; first += kMet) {
    __syncthreads();
    load_rows(keys, stride, args.qkv, key_column, place, first, kMet, head_dim);
    load_rows(values, stride, args.qkv, value_column, place, first, kMet, head_dim);
    __syncthreads();
    float weights[kOwned];
    float slopes[kOwned];
    dot_rows(weights, queries + own * head_dim, keys + lane * stride, head_dim);
    dot_rows(slopes, d_out + own * head_dim, values + lane * stride, head_dim);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      const bool seen = shape.visible(place.first + own + r, first + lane, place.length);
      const float p = seen ? expf(weights[r] * shape.scale - lse[r]) : 0.0f;
      weights[r] = seen ? p * (slopes[r] - row_sums[r]) : 0.0f;
    }
    add_rows(sums, weights, keys, stride, head_dim);
  }
  float factors[kOwned];
#pragma unroll
  for (int r = 0; r < kOwned; ++r) factors[r] = shape.scale;
  store_rows(args.d_qkv, query_column, place, place.first + own, sums, factors, head_dim);
}

/// dK and dV of kRows keys of a KV head. blockIdx (rows, KV head, sequence).
template <typename T, int kSlices>
__global__ void __launch_bounds__(kThreads) key_gradient(BackwardArgs<T> args, Shape shape) {
  const Place place(shape);
  if (place.first >= place.length) return;
  const int head_dim = shape.head_dim;
  const int stride = head_dim + 1;
  float* keys = shared_floats();
  float* values = keys + kRows * head_dim;
  float* queries = values + kRows * head_dim;
  float* d_out = queries + kMet * stride;
  const int64_t key_column = static_cast<int64_t>(shape.heads + place.head) * head_dim;
  const int64_t value_column = key_column + static_cast<int64_t>(shape.kv_heads) * head_dim;
  load_rows(keys, head_dim, args.qkv, key_column, place, place.first, kRows, head_dim);
  load_rows(values, head_dim, args.qkv, value_column, place, place.first, kRows, head_dim);

  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 * kOwned;
  float d_keys[kOwned][kSlices] = {};
  float d_values[kOwned][kSlices] = {};
  const int last_key = min(place.length, place.first + kRows) - 1;
  const int end = shape.window > 0 ? min(place.length, last_key + shape.window) : place.length;
  const int first_head = place.head * shape.group();
  for (int head = first_head; head < first_head + shape.group(); ++head) {
    const int64_t query_column = static_cast<int64_t>(head) * head_dim;
    for (int first = place.first / kMet * kMet; first < end; first += kMet) {
      __syncthreads();
      load_rows(queries, stride, args.qkv, query_column, place, first, kMet, head_dim);
      load_rows(d_out, stride, args.d_out, query_column, place, first, kMet, head_dim);
      __syncthreads();
      const int query = first + lane;
      const bool exists = query < place.length;
      const float lse = exists ? args.lse[head][place.start + query] : 0.0f;
      const float row_sum =
          exists ? args.row_sums[(place.start + query) * shape.heads + head] : 0.0f;
      float weights[kOwned];
      float slopes[kOwned];
      dot_rows(weights, keys + own * head_dim, queries + lane * stride, head_dim);
      dot_rows(slopes, values + own * head_dim, d_out + lane * stride, head_dim);
#pragma unroll
      for (int r = 0; r < kOwned; ++r) {
        const bool seen = shape.visible(query, place.first + own + r, place.length);
        weights[r] = seen ? expf(weights[r] * shape.scale - lse) : 0.0f;
        slopes[r] = seen ? weights[r] * (slopes[r] - row_sum) : 0.0f;
      }
      add_rows(d_values, weights, d_out, stride, head_dim);
      add_rows(d_keys, slopes, queries, stride, head_dim);
    }
  }
  float factors[kOwned];
#pragma unroll
  for (int r = 0; r < kOwned; ++r) factors[r] = shape.scale;
  store_rows(args.d_qkv, key_column, place, place.first + own, d_keys, factors, head_dim);
#pragma unroll
  for (int r = 0; r < kOwned; ++r) factors[r] = 1.0f;
  store_rows(args.d_qkv, value_column, place, place.first + own, d_values, factors, head_dim);
}

Shape shape_of(const ops::OpCall& call, const AttentionCase& c, const TensorView& cu_seqlens) {
  check(c.head_dim <= kMostHeadDim, "attention: heads of {} elements are too large", c.head_dim);
  Shape shape{};
  shape.cu_seqlens = data_of<const int32_t>(cu_seqlens);
  shape.head_dim = narrow<int>(c.head_dim);
  shape.heads = narrow<int>(c.heads);
  shape.kv_heads = narrow<int>(c.kv_heads);
  shape.window = narrow<int>(c.window);
  shape.scale = call.attributes.attention_scale;
  return shape;
}

/// body(T, slices): slices of 32 columns that hold a head.
template <typename Body>
void with_slices(DType dtype, int64_t head_dim, const Body& body) {
  const auto of_type = [&](auto type) {
    if (head_dim <= 32) return body(type, std::integral_constant<int, 1>{});
    if (head_dim <= 64) return body(type, std::integral_constant<int, 2>{});
    if (head_dim <= 128) return body(type, std::integral_constant<int, 4>{});
    return body(type, std::integral_constant<int, 8>{});
  };
  if (dtype == DType::f32) return of_type(float{});
  return of_type(Bf16{});
}

/// What blocks keep in shared memory: `owned` arrays of kRows rows and `met` ones of kMet.
struct Arrays {
  int owned;
  int met;
};

/// Launches `kernel` for all rows of `heads` heads of all sequences, of which a grid has room for
/// kMostSequences.
template <typename Args>
void launch_all(const char* name, void (*kernel)(Args, Shape), const AttentionCase& c,
                int64_t heads, Arrays arrays, cudaStream_t stream, const Args& args,
                const Shape& shape) {
  check(heads <= 65535, "attention: {} heads are too many", heads);
  const int64_t floats = arrays.owned * kRows * c.head_dim + arrays.met * kMet * (c.head_dim + 1);
  const int64_t shared_bytes = floats * static_cast<int64_t>(sizeof(float));
  // More shared memory than every kernel may use is asked for.
  if (shared_bytes > 48 * 1024) allow_shared(name, kernel, shared_bytes);
  for (int64_t first = 0; first < c.sequences; first += kMostSequences) {
    const int64_t count = std::min(kMostSequences, c.sequences - first);
    const Grid grid{dim3(blocks(ceil_div(c.longest, kRows)), blocks(heads), blocks(count)),
                    dim3(kThreads), shared_bytes};
    Shape part = shape;
    part.cu_seqlens += first;
    launch(name, kernel, grid, stream, args, part);
  }
}

}  // namespace

void simple_attention(const ops::OpCall& call, const AttentionCase& c, cudaStream_t stream) {
  const TensorView& out = call.args[0];
  const TensorView& lse = call.args[1];
  const TensorView& qkv = call.args[2];
  const TensorView& cu_seqlens = call.args[3];
  zero_padding(out, cu_seqlens, stream);
  zero_rows(lse, stream);
  if (c.empty()) return;
  with_slices(call.dtype, c.head_dim, [&](auto type, auto slices) {
    using T = decltype(type);
    const ForwardArgs<T> args{rows_of<T>(out), rows_of<float>(lse), rows_of<const T>(qkv)};
    launch_all("attention", attend<T, decltype(slices)::value>, c, c.heads, {1, 2}, stream, args,
               shape_of(call, c, cu_seqlens));
  });
}

void simple_attention_grad(const ops::OpCall& call, const AttentionCase& c, float* row_sums,
                           cudaStream_t stream) {
  const TensorView& d_qkv = call.args[0];
  const TensorView& cu_seqlens = call.args[5];
  zero_padding(d_qkv, cu_seqlens, stream);
  if (c.empty()) return;
  const Shape shape = shape_of(call, c, cu_seqlens);
  with_slices(call.dtype, c.head_dim, [&](auto type, auto slices) {
    using T = decltype(type);
    constexpr int kSlices = decltype(slices)::value;
    const BackwardArgs<T> args{rows_of<T>(d_qkv),
                               rows_of<const T>(call.args[1]),
                               rows_of<const T>(call.args[2]),
                               rows_of<const T>(call.args[3]),
                               rows_of<const float>(call.args[4]),
                               row_sums};
    launch("attention row sums", sum_rows<T>,
           {dim3(blocks(ceil_div(c.tokens * c.heads, kWarps))), dim3(kThreads)}, stream, args,
           c.tokens, shape.heads, shape.head_dim);
    launch_all("attention query gradient", query_gradient<T, kSlices>, c, c.heads, {2, 2}, stream,
               args, shape);
    launch_all("attention key gradient", key_gradient<T, kSlices>, c, c.kv_heads, {2, 2}, stream,
               args, shape);
  });
}

}  // namespace trireme::cuda
