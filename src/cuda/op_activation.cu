// SwiGLU and its gradient, and addition.
#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kPerThread = 2;  // packs of a row that a thread loads before it uses the first

/// blockIdx.x strides over the packs of a row, blockIdx.y over rows.
Grid tile_grid(int64_t rows, int64_t packs) {
  return {dim3(blocks(ceil_div(packs, kThreads * kPerThread)), some_blocks(rows)), dim3(kThreads)};
}

__device__ int64_t first_pack() {
  return static_cast<int64_t>(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
}

/// 1 / (1 + exp(-x)). For bf16 results the hardware's approximations do.
template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  } else {
    return 1.0f / (1.0f + expf(-x));
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    swiglu_rows(Rows<T> out, Rows<const T> gate_up, int64_t num_rows, int64_t ffn) {
  const int64_t packs = ffn / kCount;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const T* from = gate_up[row];
    Pack<T, kCount> gates[kPerThread];
    Pack<T, kCount> ups[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      gates[i] = load_pack<kCount>(from + p * kCount);
      ups[i] = load_pack<kCount>(from + ffn + p * kCount);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      float result[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        result[k] = gates[i][k] * sigmoid<T>(gates[i][k]) * ups[i][k];
      }
      store_pack(out[row] + p * kCount, result);
    }
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    swiglu_grad_rows(Rows<T> d_gate_up, Rows<T> out, Rows<const T> d_out, Rows<const T> gate_up,
                     int64_t num_rows, int64_t ffn) {
  const int64_t packs = ffn / kCount;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const T* from = gate_up[row];
    Pack<T, kCount> gates[kPerThread];
    Pack<T, kCount> ups[kPerThread];
    Pack<T, kCount> slopes[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      gates[i] = load_pack<kCount>(from + p * kCount);
      ups[i] = load_pack<kCount>(from + ffn + p * kCount);
      slopes[i] = load_pack<kCount>(d_out[row] + p * kCount);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      float d_gate[kCount];
      float d_up[kCount];
      float result[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float gate = gates[i][k];
        const float s = sigmoid<T>(gate);
        d_up[k] = slopes[i][k] * (gate * s);
        result[k] = gate * s * ups[i][k];
        d_gate[k] = slopes[i][k] * ups[i][k] * (s * (1.0f + gate * (1.0f - s)));
      }
      T* to = d_gate_up[row];
      store_pack(to + p * kCount, d_gate);
      store_pack(to + ffn + p * kCount, d_up);
      if (out.data != nullptr) store_pack(out[row] + p * kCount, result);
    }
  }
}

/// out (+)= a (+ b). `b` may be null.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    add_rows(Rows<T> out, Rows<const T> a, Rows<const T> b, int64_t num_rows, int64_t packs,
             bool accumulate) {
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    Pack<T, kCount> as[kPerThread];
    Pack<T, kCount> bs[kPerThread];
    Pack<T, kCount> before[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      as[i] = load_pack<kCount>(a[row] + p * kCount);
      if (b.data != nullptr) bs[i] = load_pack<kCount>(b[row] + p * kCount);
      if (accumulate) before[i] = load_pack<kCount>(out[row] + p * kCount);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first_pack() + i * kThreads;
      if (p >= packs) continue;
      float result[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        result[k] = as[i][k];
        if (b.data != nullptr) result[k] += bs[i][k];
        if (accumulate) result[k] += before[i][k];
      }
      store_pack(out[row] + p * kCount, result);
    }
  }
}

void add_views(const TensorView& out, const TensorView& a, const TensorView& b, ops::Law law,
               DType dtype, cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return;
  const auto fits = [&](int64_t count) {
    return all_fit(count, out, a) && (!b.present() || fits_packs(b, count));
  };
  with_access(dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const int64_t packs = out.cols / A::kCount;
    launch("add", add_rows<T, A::kCount>, tile_grid(out.rows, packs), stream, rows_of<T>(out),
           rows_of<const T>(a), rows_of<const T>(b), out.rows, packs, law == ops::Law::add);
  });
}

bool is_dense(const TensorView& view) {
  return !view.present() || view.rows <= 1 || view.stride == view.cols;
}

TensorView flat(const TensorView& view) {
  return view.present() ? vector(view.data, view.dtype, view.size()) : view;
}

}  // namespace

void swiglu(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& out = call.args[0];
  const TensorView& gate_up = call.args[1];
  if (out.rows == 0 || out.cols == 0) return;
  const auto fits = [&](int64_t count) { return all_fit(count, out, gate_up); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("swiglu", swiglu_rows<T, A::kCount>, tile_grid(out.rows, out.cols / A::kCount), stream,
           rows_of<T>(out), rows_of<const T>(gate_up), out.rows, out.cols);
  });
}

void swiglu_input_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& d_gate_up = call.args[0];
  const TensorView& out = call.args[1];
  const TensorView& d_out = call.args[2];
  const TensorView& gate_up = call.args[3];
  if (d_out.rows == 0 || d_out.cols == 0) return;
  const auto fits = [&](int64_t count) {
    return all_fit(count, d_gate_up, d_out, gate_up) && (!out.present() || fits_packs(out, count));
  };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    launch("swiglu_input_grad", swiglu_grad_rows<T, A::kCount>,
           tile_grid(d_out.rows, d_out.cols / A::kCount), stream, rows_of<T>(d_gate_up), rows_of<T>(out),
           rows_of<const T>(d_out), rows_of<const T>(gate_up), d_out.rows, d_out.cols);
  });
}

void add(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  TensorView out = call.args[0];
  TensorView a = call.args[1];
  TensorView b = call.num_args > 2 ? call.args[2] : TensorView{};
  if (!is_dense(out) || !is_dense(a) || !is_dense(b)) {
    add_views(out, a, b, call.law, call.dtype, stream);
    return;
  }
  out = flat(out);
  a = flat(a);
  b = flat(b);
  // What whole packs leave over is added by elements.
  const int64_t whole = out.cols / 8 * 8;
  const auto part = [&](const auto& of) {
    add_views(of(out, whole), of(a, whole), of(b, whole), call.law, call.dtype, stream);
  };
  part(first_columns);
  part(columns_from);
}

}  // namespace trireme::cuda
