// The gradient's norm and the step's decisions. Compiled without contraction into fused
// multiply-adds, so that step_control's results are those of the CPU.
#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/kernel_reduce.cuh"
#include "cuda/op_bodies.h"
#include "cuda/op_sizing.h"
#include "ops/control.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;  // packs loaded before the first is used

/// parts[piece] = sum of the squares of every gridDim.x-th tile; block 0 adds what packs leave
/// over.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    squares_of_pieces(double* parts, const float* x, int64_t size) {
  double sum = 0;
  const auto add = [&](const Pack<float, kCount>& pack) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const double value = static_cast<double>(pack[k]);
      sum = fma(value, value, sum);
    }
  };
  const int64_t packs = size / kCount;
  const int64_t tile = static_cast<int64_t>(kThreads) * kAhead;
  for (int64_t first = blockIdx.x * tile; first < packs; first += gridDim.x * tile) {
    Pack<float, kCount> held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t p = first + i * kThreads + threadIdx.x;
      if (p < packs) held[i] = load_pack<kCount>(x + p * kCount);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * kThreads + threadIdx.x < packs) add(held[i]);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < size - packs * kCount) {
    const double value = static_cast<double>(x[packs * kCount + threadIdx.x]);
    sum = fma(value, value, sum);
  }
  sum = row_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_pieces(double* out, const double* parts, int num_parts, bool accumulate) {
  double sum = 0;
  for (int i = threadIdx.x; i < num_parts; i += kThreads) sum += parts[i];
  sum = row_sum(sum);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

__global__ void decide_step(double* control, const double* sums, const double* schedule,
                            int64_t schedule_size, double max_grad_norm, double beta1,
                            double beta2) {
  ops::step_control(sums, schedule, schedule_size, max_grad_norm, beta1, beta2, control);
}

__global__ void store_zero(double* to) { *to = 0; }

const Grid kOneThread{dim3(1), dim3(1)};

}  // namespace

void sum_squares(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& x = call.args[1];
  auto* out = data_of<double>(call.args[0]);
  const bool accumulate = call.law == ops::Law::add;
  if (x.size() == 0) {
    if (!accumulate) launch("sum_squares", store_zero, kOneThread, stream, out);
    return;
  }
  auto* parts = static_cast<double*>(call.workspace);
  const int64_t pieces = SquarePieces::count(x.size());
  const bool packed = reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  launch("sum_squares", packed ? squares_of_pieces<4> : squares_of_pieces<1>,
         {dim3(blocks(pieces)), dim3(kThreads)}, stream, parts, data_of<const float>(x), x.size());
  launch("sum of squares", add_pieces, {dim3(1), dim3(kThreads)}, stream, out, parts,
         narrow<int>(pieces), accumulate);
}

void step_control(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.attributes;
  launch("step_control", decide_step, kOneThread, stream, data_of<double>(call.args[0]),
         data_of<const double>(call.args[1]), data_of<const double>(call.args[2]),
         call.args[2].cols, a.max_grad_norm, a.beta1, a.beta2);
}

void clear_pending(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  launch("clear_pending", store_zero, kOneThread, stream,
         data_of<double>(call.args[0]) + ops::index(ops::Control::pending));
}

}  // namespace trireme::cuda
