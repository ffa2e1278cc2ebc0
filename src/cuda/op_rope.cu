// Rotary embedding of the query and key heads of a row, and its transpose. A thread keeps the
// cosines and sines of its columns for all heads that it rotates.
#include <algorithm>

#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

constexpr int64_t kThreads = 128;

struct RopeShape {
  int64_t num_rows;
  int rotated;  // heads
  int heads;    // rotated, and those copied
  int head_dim;
  float direction;  // 1, or -1 for the transposed rotation
};

/// threadIdx.x: (head modulo step, pack of the lower half); threadIdx.y: row.
template <typename T, int kCount>
__global__ void __launch_bounds__(1024)
    rotate_heads(Rows<T> out, Rows<const T> in, Rows<const float> table, const int32_t* positions,
                 RopeShape shape) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= shape.num_rows) return;
  const int half = shape.head_dim / 2;
  const int packs = half / kCount;
  const int column = static_cast<int>(threadIdx.x) % packs * kCount;
  const int step = static_cast<int>(blockDim.x) / packs;
  const float* angles = table[positions[row]];
  const auto cosines = load_pack<kCount>(angles + column);
  const auto sines = load_pack<kCount>(angles + half + column);
  const T* from = in[row] + column;
  T* to = out[row] + column;
#pragma unroll 2
  for (int head = static_cast<int>(threadIdx.x) / packs; head < shape.heads; head += step) {
    const int at = head * shape.head_dim;
    const auto low = load_pack<kCount>(from + at);
    const auto high = load_pack<kCount>(from + at + half);
    const bool rotates = head < shape.rotated;
    float new_low[kCount];
    float new_high[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float sine = shape.direction * sines[k];
      new_low[k] = rotates ? low[k] * cosines[k] - high[k] * sine : low[k];
      new_high[k] = rotates ? high[k] * cosines[k] + low[k] * sine : high[k];
    }
    store_pack(to + at, new_low);
    store_pack(to + at + half, new_high);
  }
}

void rotate(const ops::OpCall& call, float direction, cudaStream_t stream) {
  const TensorView& out = call.args[0];
  const TensorView& in = call.args[1];
  const TensorView& table = call.args[2];
  const auto& a = call.attributes;
  if (in.rows == 0) return;
  RopeShape shape;
  shape.num_rows = in.rows;
  shape.rotated = a.heads + a.kv_heads;
  // In place, values stay where they are.
  shape.heads = out.data == in.data ? shape.rotated : shape.rotated + a.kv_heads;
  shape.head_dim = a.head_dim;
  shape.direction = direction;
  const int64_t half = a.head_dim / 2;
  const auto fits = [&](int64_t count) {
    return half % count == 0 && all_fit(count, out, in, table);
  };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const int64_t packs = half / A::kCount;
    check(packs <= 1024, "rope: a head of {} elements is too large", a.head_dim);
    const int64_t heads =
        std::clamp<int64_t>(kThreads / packs, 1, static_cast<int64_t>(shape.heads));
    const int64_t rows = std::max<int64_t>(1, kThreads / (packs * heads));
    launch("rope", rotate_heads<T, A::kCount>,
           {dim3(blocks(ceil_div(in.rows, rows))),
            dim3(static_cast<unsigned>(packs * heads), static_cast<unsigned>(rows))},
           stream, rows_of<T>(out), rows_of<const T>(in), rows_of<const float>(table),
           data_of<const int32_t>(call.args[3]), shape);
  });
}

}  // namespace

void rope(const ops::OpCall& call, OpContext&, cudaStream_t stream) { rotate(call, 1.0f, stream); }

void rope_input_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  rotate(call, -1.0f, stream);
}

}  // namespace trireme::cuda
