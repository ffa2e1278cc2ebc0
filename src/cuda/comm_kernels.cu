#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "cuda/comm_kernels.h"
#include "cuda/handle.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

int blocks_for(int64_t items) {
  return static_cast<int>(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

__device__ float sum(float a, float b) { return a + b; }
__device__ double sum(double a, double b) { return a + b; }
__device__ int32_t sum(int32_t a, int32_t b) { return a + b; }
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <typename T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};

template <typename T>
__global__ void add_packs(Pack<T>* out, const Pack<T>* in, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    Pack<T> a = out[i];
    const Pack<T> b = in[i];
#pragma unroll
    for (int k = 0; k < Pack<T>::kCount; ++k) {
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
  constexpr int64_t kPerPack = Pack<T>::kCount;
  const int64_t packs = is_aligned(out) && is_aligned(in) ? count / kPerPack : 0;
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

/// What a thread of the kernels below takes at a time.
template <typename T>
struct alignas(16) Eight {
  static constexpr int kCount = 8;
  T values[kCount];
};

template <typename T>
__device__ Eight<T> load(const T* from, int64_t count, bool aligned) {
  if (aligned && count >= Eight<T>::kCount) return *reinterpret_cast<const Eight<T>*>(from);
  Eight<T> some{};
#pragma unroll
  for (int k = 0; k < Eight<T>::kCount; ++k) {
    if (k < count) some.values[k] = from[k];
  }
  return some;
}

template <typename T>
__device__ void store(T* to, const Eight<T>& some, int64_t count, bool aligned) {
  if (aligned && count >= Eight<T>::kCount) {
    *reinterpret_cast<Eight<T>*>(to) = some;
    return;
  }
#pragma unroll
  for (int k = 0; k < Eight<T>::kCount; ++k) {
    if (k < count) to[k] = some.values[k];
  }
}

__device__ Eight<uint16_t> round_all(const Eight<float>& from) {
  Eight<uint16_t> to;
#pragma unroll
  for (int k = 0; k < Eight<float>::kCount; ++k) to.values[k] = bf16_from_f32(from.values[k]);
  return to;
}

/// Where a thread begins, and how far it goes each time.
struct Stride {
  int64_t first, step;
};
__device__ Stride by_eights() {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t self = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  return {self * Eight<float>::kCount, threads * Eight<float>::kCount};
}

__global__ void round_kernel(WirePlaces places, WireShares shares, int64_t count, bool aligned) {
  const int place = static_cast<int>(blockIdx.y);
  const int64_t begin = (place < places.own ? place : place + 1) * shares.stride;
  const float* from = shares.first + begin;
  uint16_t* to = places.first + place * places.stride;
  const int64_t end = min(count, shares.limit - begin);
  const Stride stride = by_eights();
  for (int64_t i = stride.first; i < end; i += stride.step) {
    store(to + i, round_all(load(from + i, end - i, aligned)), end - i, aligned);
  }
}

__global__ void sum_kernel(float* out, bool add, const float* mine, WirePlaces places,
                           int64_t count, bool aligned) {
  const Stride stride = by_eights();
  for (int64_t i = stride.first; i < count; i += stride.step) {
    const int64_t left = count - i;
    const Eight<uint16_t> own = round_all(load(mine + i, left, aligned));
    Eight<float> total;
    for (int rank = 0; rank <= places.num; ++rank) {
      const uint16_t* place = places.first + (rank - (rank > places.own)) * places.stride;
      const Eight<uint16_t> part = rank == places.own ? own : load(place + i, left, aligned);
#pragma unroll
      for (int k = 0; k < Eight<float>::kCount; ++k) {
        const float value = f32_from_bf16(part.values[k]);
        total.values[k] = rank == 0 ? value : total.values[k] + value;
      }
    }
    if (add) {
      const Eight<float> before = load(out + i, left, aligned);
#pragma unroll
      for (int k = 0; k < Eight<float>::kCount; ++k) {
        total.values[k] = before.values[k] + total.values[k];
      }
    }
    store(out + i, total, left, aligned);
  }
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

void round_shares(const WirePlaces& places, const WireShares& shares, int64_t count,
                  cudaStream_t stream) {
  if (count == 0 || places.num == 0) return;
  const bool whole = is_aligned(places.first) && places.stride % Eight<uint16_t>::kCount == 0 &&
                     is_aligned(shares.first) && shares.stride % Pack<float>::kCount == 0;
  const int64_t most = std::max<int64_t>(1, kMaxBlocks / places.num);
  const dim3 grid(static_cast<unsigned>(
                      std::min<int64_t>(blocks_for(ceil_div(count, Eight<float>::kCount)), most)),
                  static_cast<unsigned>(places.num));
  round_kernel<<<grid, kThreads, 0, stream>>>(places, shares, count, whole);
  TRIREME_CUDA(cudaGetLastError());
}

void sum_rounded(float* out, bool add, const float* mine, const WirePlaces& places, int64_t count,
                 cudaStream_t stream) {
  if (count == 0) return;
  const bool whole = is_aligned(out) && is_aligned(mine) && is_aligned(places.first) &&
                     places.stride % Eight<uint16_t>::kCount == 0;
  sum_kernel<<<blocks_for(ceil_div(count, Eight<float>::kCount)), kThreads, 0, stream>>>(
      out, add, mine, places, count, whole);
  TRIREME_CUDA(cudaGetLastError());
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
