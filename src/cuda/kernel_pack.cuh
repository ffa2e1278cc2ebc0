// How kernels move elements: packs of 16 bytes where addresses allow, single elements elsewhere.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/tensor_view.h"

namespace trireme::cuda {

using Bf16 = __nv_bfloat16;

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Bf16 value) { return __bfloat162float(value); }
template <typename T>
__device__ T narrow_to(float value);
template <>
__device__ inline float narrow_to<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 narrow_to<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}

/// kCount elements in registers; read as f32 by compile-time index.
template <typename T, int kCount>
struct Pack;

template <int kCount>
struct Pack<float, kCount> {
  float values[kCount];

  __device__ float operator[](int i) const { return values[i]; }

  __device__ static Pack load(const float* from) {
    Pack pack;
    if constexpr (kCount % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        const float4 four = reinterpret_cast<const float4*>(from)[i];
        pack.values[4 * i] = four.x;
        pack.values[4 * i + 1] = four.y;
        pack.values[4 * i + 2] = four.z;
        pack.values[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) pack.values[i] = from[i];
    }
    return pack;
  }
};

template <int kCount>
struct Pack<Bf16, kCount> {
  static_assert(kCount == 1 || kCount % 4 == 0);
  uint32_t words[(kCount + 1) / 2];  // the element of lower index in the lower half

  __device__ float operator[](int i) const {
    const uint32_t word = words[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }

  __device__ static Pack load(const Bf16* from) {
    Pack pack;
    if constexpr (kCount % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kCount / 8; ++i) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i];
        pack.words[4 * i] = four.x;
        pack.words[4 * i + 1] = four.y;
        pack.words[4 * i + 2] = four.z;
        pack.words[4 * i + 3] = four.w;
      }
    } else if constexpr (kCount == 4) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      pack.words[0] = two.x;
      pack.words[1] = two.y;
    } else {
      pack.words[0] = *reinterpret_cast<const uint16_t*>(from);
    }
    return pack;
  }
};

template <int kCount, typename T>
__device__ Pack<T, kCount> load_pack(const T* from) {
  return Pack<T, kCount>::load(from);
}

template <int kCount>
__device__ void store_pack(float* to, const float (&values)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      reinterpret_cast<float4*>(to)[i] =
          make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = values[i];
  }
}

template <int kCount>
__device__ void store_pack(float* to, const Pack<float, kCount>& pack) {
  store_pack(to, pack.values);
}

/// Two elements as one word, the first in the lower half; rounds to nearest even.
__device__ inline uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

template <int kCount>
__device__ void store_pack(Bf16* to, const float (&values)[kCount]) {
  if constexpr (kCount % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const float* v = values + 8 * i;
      reinterpret_cast<uint4*>(to)[i] = make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]),
                                                   bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
    }
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]));
  } else {
    *to = narrow_to<Bf16>(values[0]);
  }
}

template <int kCount>
__device__ void store_pack(Bf16* to, const Pack<Bf16, kCount>& pack) {
  if constexpr (kCount % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const uint32_t* w = pack.words + 4 * i;
      reinterpret_cast<uint4*>(to)[i] = make_uint4(w[0], w[1], w[2], w[3]);
    }
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack.words[0], pack.words[1]);
  } else {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pack.words[0]);
  }
}

/// A matrix in a kernel.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};
template <typename T>
Rows<T> rows_of(const TensorView& view) {
  return {static_cast<T*>(view.data), view.stride};
}
template <typename T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data);
}

/// Whether every row of the view splits into packs of `count` elements at aligned addresses.
inline bool fits_packs(const TensorView& view, int64_t count) {
  const int64_t bytes = count * size_of(view.dtype);
  const auto alignment = static_cast<uintptr_t>(bytes < 16 ? bytes : 16);
  return reinterpret_cast<uintptr_t>(view.data) % alignment == 0 && view.cols % count == 0 &&
         (view.rows <= 1 || view.stride % count == 0);
}
template <typename... Views>
bool all_fit(int64_t count, const Views&... views) {
  return (... && fits_packs(views, count));
}

/// How a kernel is instantiated: element type and elements a pack.
template <typename Element, int kElements>
struct Access {
  using T = Element;
  static constexpr int kCount = kElements;
};

/// body(Access) with T of `dtype` and packs of 16 bytes of T when `fits(elements)`, else singles.
template <typename Fits, typename Body>
void with_access(DType dtype, const Fits& fits, const Body& body) {
  if (dtype == DType::bf16) {
    if (fits(8)) return body(Access<Bf16, 8>{});
    return body(Access<Bf16, 1>{});
  }
  check(dtype == DType::f32, "a kernel of {}", name_of(dtype));
  if (fits(4)) return body(Access<float, 4>{});
  return body(Access<float, 1>{});
}

/// The first `count` columns of a view, or those from `count`.
inline TensorView first_columns(TensorView view, int64_t count) {
  view.cols = count;
  return view;
}
inline TensorView columns_from(TensorView view, int64_t count) {
  if (view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) + count * size_of(view.dtype);
  }
  view.cols -= count;
  return view;
}

}  // namespace trireme::cuda
