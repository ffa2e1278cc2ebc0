#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cuda/comm_kernels.h"
#include "cuda/handle.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

int blocks_for(int64_t items) {
  return static_cast<int>(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

__device__ float sum(float a, float b) { return a + b; }
__device__ double sum(double a, double b) { return a + b; }
__device__ int32_t sum(int32_t a, int32_t b) { return a + b; }
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <typename T>
struct alignas(16) Pack {
  T values[16 / sizeof(T)];
};

template <typename T>
__global__ void add_packs(Pack<T>* out, const Pack<T>* in, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    Pack<T> a = out[i];
    const Pack<T> b = in[i];
#pragma unroll
    for (int k = 0; k < static_cast<int>(16 / sizeof(T)); ++k) {
      a.values[k] = sum(a.values[k], b.values[k]);
    }
    out[i] = a;
  }
}

template <typename T>
__global__ void add_singles(T* out, const T* in, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    out[i] = sum(out[i], in[i]);
  }
}

template <typename T>
void launch_add(void* out, const void* in, int64_t count, cudaStream_t stream) {
  constexpr int64_t kPerPack = 16 / sizeof(T);
  const bool aligned =
      (reinterpret_cast<uintptr_t>(out) % 16 == 0) && (reinterpret_cast<uintptr_t>(in) % 16 == 0);
  const int64_t packs = aligned ? count / kPerPack : 0;
  if (packs > 0) {
    add_packs<T><<<blocks_for(packs), kThreads, 0, stream>>>(
        static_cast<Pack<T>*>(out), static_cast<const Pack<T>*>(in), packs);
    TRIREME_CUDA(cudaGetLastError());
  }
  const int64_t done = packs * kPerPack;
  if (done == count) return;
  add_singles<T><<<blocks_for(count - done), kThreads, 0, stream>>>(
      static_cast<T*>(out) + done, static_cast<const T*>(in) + done, count - done);
  TRIREME_CUDA(cudaGetLastError());
}

__global__ void delay_kernel(int64_t nanoseconds) {
  const auto now = [] {
    int64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const int64_t start = now();
  while (now() - start < nanoseconds) __nanosleep(10000);
}

__global__ void fill_kernel(uint8_t* to, uint8_t byte, int64_t bytes) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes;
       i += stride) {
    to[i] = byte;
  }
}

}  // namespace

void add_elements(DType dtype, void* out, const void* in, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  switch (dtype) {
    case DType::f32:
      return launch_add<float>(out, in, count, stream);
    case DType::bf16:
      return launch_add<__nv_bfloat16>(out, in, count, stream);
    case DType::f64:
      return launch_add<double>(out, in, count, stream);
    case DType::i32:
      return launch_add<int32_t>(out, in, count, stream);
    default:
      throw BugError("sums of " + std::string(name_of(dtype)));
  }
}

void delay(std::chrono::nanoseconds time, cudaStream_t stream) {
  if (time.count() <= 0) return;
  delay_kernel<<<1, 1, 0, stream>>>(time.count());
  TRIREME_CUDA(cudaGetLastError());
}

void fill_bytes(void* to, uint8_t byte, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  fill_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(static_cast<uint8_t*>(to), byte, bytes);
  TRIREME_CUDA(cudaGetLastError());
}

}  // namespace trireme::cuda
